/* What stands for images in the text of a prompt: as many image tokens as the tower gives rows, with the begin, the end, the
 * line breaks and the names of tiles that the model's family has. Each family's processor in the transformers library is the
 * definition. */
#pragma once

#include "base/mem.h"
#include "lang/jinja/jinja.h"
#include "lang/token/tokenizer.h"
#include "run/picture.h"

struct session;

#define IMAGE_TEXT_MARK "<__media__>" /* llama.cpp's: an image stands here in a plain text */

/* Spans for tokenizer_encode_spans; their texts belong to it and to what it was made from. */
struct image_text {
    struct tok_span *spans; /* (count) */
    size_t count, room;
    struct arena arena;
};

/* The id of the image token; -1: the vocabulary has none. */
int32_t image_token(const struct session *l);

/* A rendered chat: an image stands where the template wrote its place, or (mark, not NULL) where that text is in the data.
 * ERR_DATA where there are not as many places as pictures. */
int image_text_chat(struct image_text *out, const struct session *l, const struct spans *spans,
                    const char *mark, struct picture *const *pictures, uint32_t count, struct err *e);
/* A plain text with IMAGE_TEXT_MARK for each image. */
int image_text_plain(struct image_text *out, const struct session *l, const char *text, size_t n,
                     struct picture *const *pictures, uint32_t count, struct err *e);
void image_text_free(struct image_text *t);
