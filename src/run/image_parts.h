/* Images in the messages of a chat, as the APIs have them: parts of type image_url, input_image or image. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether a part of a message is an image. */
bool image_part(const json_t *part);
/* What the image is: {"image_url": {"url": text}}, {"image_url": text}, or {"data": text}. NULL: the part does not say. */
const json_t *image_part_text(const json_t *part, bool *is_url);
/* The messages with {"type": "image"} in place of each image; the given ones are not changed. `add` (NULL: none) is called
 * with each, in order; where: the part's name for errors. NULL: it returned other than 0, or there is no memory. */
json_t *image_parts_read(const json_t *messages, int (*add)(void *arg, const json_t *part, const char *where),
                         void *arg);
/* The bytes of an image: of base64, or of data:image/...;base64,... ERR_USAGE: it is neither. */
int image_part_bytes(struct buf *out, const char *text, size_t n, struct err *e);
