/* The settings of a model's own (hub/preset.h), as far as the model applies them itself: sampling, stop strings, the
 * limit of tokens, and the messages that every conversation begins with. */
#pragma once

#include "base/err.h"
#include "run/session.h"

/* What they say before the model is opened: context, template, adapters, the budget of reasoning; only where o has none. The
 * texts are the preset's. lora: room for SESSION_ADAPTERS, o->lora may point to it. */
int preset_options(const json_t *preset, struct session_options *o, const char *lora[SESSION_ADAPTERS],
                   struct err *e);
/* Sets the session's defaults. */
int preset_apply(struct session *l, const json_t *preset, struct err *e);
/* Are all parameters known, and in their ranges? Those that mean nothing here are ignored. */
int preset_check_parameters(const json_t *parameters, struct err *e);
/* The messages with those of the preset before them; a new reference. NULL: no memory. */
json_t *preset_messages(const struct session *l, const json_t *messages);
