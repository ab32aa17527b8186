/* An image as the tower of a model takes it, and where it stands in a prompt. */
#pragma once

#include "media/image.h"
#include "model/vision/preprocess.h"

#include <stdatomic.h>
#include <stdint.h>

enum { PICTURE_DIGEST = 32 };

/* Read-only once it is made. Requests share it; the last user frees it. */
struct picture {
    atomic_uint users;
    struct vision_prepared prepared;
    uint32_t rows; /* that the tower gives: image tokens in the prompt */
    /* SHA-256 of the tiles' sizes and values: the identity of the image for prefixes. What was prepared in another way is
     * another picture. */
    uint8_t digest[PICTURE_DIGEST];
};

int picture_make(struct picture **out, const struct vision_params *v, const struct image *image,
                 struct err *e);
size_t picture_bytes(const struct picture *p);   /* of memory */
struct picture *picture_hold(struct picture *p); /* one more user; from any thread */
void picture_drop(struct picture *p);            /* NULL is fine */

/* Of the tokens [first, first + tokens) those with the model's image token are the rows of the picture, in order, as many as
 * it has rows. The others between them (line breaks, names of tiles) are text. */
struct prompt_image {
    struct picture *picture;
    uint32_t first, tokens;
};

/* The places of the pictures in a prompt whose image tokens are expanded already; out: (count). The pictures are not held
 * by it. ERR_DATA where there are more or fewer image tokens than rows. */
int picture_place(struct prompt_image *out, struct picture *const *pictures, uint32_t count,
                  const int32_t *ids, size_t n, int32_t image_token, struct err *e);
