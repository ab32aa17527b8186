/* From an image to the tiles that a tower takes, as the processors of the transformers library do it with PIL. */
#pragma once

#include "media/image.h"
#include "model/vision/params.h"

/* What an image of some size becomes; known without its pixels. */
struct vision_layout {
    uint32_t tiles;         /* with the whole, where there is one */
    uint32_t width, height; /* of each tile; what is left over of a patch, right and below, is not in it */
    uint32_t grid_cols, grid_rows; /* of the split, without the whole; 0 = not split */
    uint32_t rows;                 /* of all tiles after the projector */
    struct vision_kept kept;       /* llava-next */
};

/* An error (ERR_DATA) where the model's processor refuses the size. */
int vision_layout(struct vision_layout *out, const struct vision_params *v, int width, int height,
                  struct err *e);
int vision_prepare(struct vision_prepared *out, const struct vision_params *v, const struct image *image,
                   struct err *e);
void vision_prepared_free(struct vision_prepared *p);
