#include "run/picture.h"
#include "base/mem.h"
#include "hub/sha.h"

#include <string.h>

static void picture_digest(struct picture *p)
{
    struct sha s;
    sha_start(&s, SHA_256);
    sha_add(&s, &p->prepared.kept, sizeof p->prepared.kept);
    for (uint32_t i = 0; i < p->prepared.tiles; i++) {
        const struct vision_tile *t = &p->prepared.tile[i];
        const uint32_t size[] = {t->width, t->height, p->prepared.grid_cols, p->prepared.grid_rows};
        sha_add(&s, size, sizeof size);
        sha_add(&s, t->pixels, (size_t)3 * t->width * t->height * sizeof *t->pixels);
    }
    sha_end_bytes(&s, p->digest);
}

int picture_make(struct picture **out, const struct vision_params *v, const struct image *image,
                 struct err *e)
{
    struct vision_layout l;
    *out = NULL;
    if (vision_layout(&l, v, image->width, image->height, e))
        return -1;
    struct picture *p = mem_zalloc(1, sizeof *p);
    if (!p)
        return err_memory(e, "an image", sizeof *p);
    atomic_init(&p->users, 1);
    p->rows = l.rows;
    if (vision_prepare(&p->prepared, v, image, e)) {
        mem_free(p);
        return -1;
    }
    picture_digest(p);
    *out = p;
    return 0;
}

size_t picture_bytes(const struct picture *p)
{
    const struct vision_tile *t = p->prepared.tile; /* all are of one size */
    return sizeof *p + p->prepared.tiles * (sizeof *t + (size_t)3 * t->width * t->height * sizeof *t->pixels);
}

struct picture *picture_hold(struct picture *p)
{
    atomic_fetch_add(&p->users, 1);
    return p;
}

void picture_drop(struct picture *p)
{
    if (!p || atomic_fetch_sub(&p->users, 1) != 1)
        return;
    vision_prepared_free(&p->prepared);
    mem_free(p);
}

int picture_place(struct prompt_image *out, struct picture *const *pictures, uint32_t count,
                  const int32_t *ids, size_t n, int32_t image_token, struct err *e)
{
    uint32_t at = 0, seen = 0; /* the picture, and its rows so far */
    uint64_t all = 0, found = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] != image_token)
            continue;
        found++;
        if (at == count)
            continue;
        if (!seen)
            out[at] = (struct prompt_image){.picture = pictures[at], .first = (uint32_t)i};
        if (++seen == pictures[at]->rows) {
            out[at].tokens = (uint32_t)i + 1 - out[at].first;
            at++;
            seen = 0;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        all += pictures[i]->rows;
    return all == found
               ? 0
               : err_set(
                     e, ERR_DATA,
                     "the prompt has %llu image tokens and the images have %llu rows; text that reads as an "
                     "image token of this model cannot stand in a prompt",
                     (unsigned long long)found, (unsigned long long)all);
}
