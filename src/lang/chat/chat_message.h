/* Converts clients' messages to the form that a template takes. */
#pragma once

#include "base/err.h"
#include "lang/chat/chat.h"

#include <jansson.h>

/* A new array; the messages given are not touched. mark: the text for an image where the template has no place for one. */
json_t *chat_messages(const json_t *messages, const struct chat_caps *caps, const char *mark, struct err *e);
