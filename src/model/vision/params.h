/* What a model that sees says about images: how pixels are prepared, and the shape of its tower and projector. Read from
 * config.json and preprocessor_config.json (or processor_config.json) of a folder, or from the keys of an mmproj GGUF
 * file (general.architecture "clip"). Plain data; read-only once read.
 *
 * Preparing (preprocess) gives tiles: planes of normalised pixels whose sides are multiples of
 * patch * merge. The tower cuts them into patches, encodes each tile alone, and gives a row for
 * each merge x merge patches, tile after tile, row by row of the tile. */
#pragma once

#include "base/err.h"
#include "device/kinds.h"
#include "format/store.h"

#include <stdbool.h>
#include <stdint.h>

enum vision_family {
    VISION_NONE,
    VISION_LLAVA,      /* CLIP, a class row that is dropped, one layer before the last */
    VISION_LLAVA_NEXT, /* ... in tiles that are joined again, with a row behind each line */
    VISION_GEMMA3,     /* SigLIP, mean of n x n rows */
    VISION_GEMMA4,     /* tables and rotary positions for both axes, mean of n x n rows */
    VISION_IDEFICS3,   /* SigLIP, tiles, pixel shuffle; SmolVLM too */
    VISION_PIXTRAL,    /* 2-D rotary; mistral3 merges n x n rows */
    VISION_QWEN2,      /* qwen2-vl: 2-D rotary, merge */
    VISION_QWEN2_5,    /* ... and windows */
    VISION_QWEN3,      /* qwen3-vl and qwen3.5: resized table, 2-D rotary, merge, deepstack */
    VISION_INTERNVL    /* InternViT, tiles, pixel shuffle */
};

/* How the size of the prepared image follows from that of the image. */
enum vision_sizing {
    SIZING_EXACT, /* width x height, whatever the proportions; with `pan` crops too (gemma3) */
    SIZING_CROP, /* the shorter side becomes `shortest`, or both sides `resized`; then the middle `width` x `height`
                     (llava, clip) */
    SIZING_LONGEST, /* at most `longest` wide and high, sides rounded up to the unit (pixtral) */
    SIZING_PIXELS,  /* sides rounded to the unit, between min_pixels and max_pixels in all (qwen) */
    SIZING_TOKENS,  /* the largest multiples of the unit within max_tokens rows (gemma4) */
    SIZING_SPLIT,   /* longest side `longest`, then tiles of `tile` and the whole in one more (idefics3) */
    SIZING_ANYRES,  /* the whole, then tiles of the size among `grid` that wastes least (llava-next) */
    SIZING_GRID     /* the grid of tiles nearest in proportion, and a thumbnail (internvl) */
};

/* Filters by PIL's numbers. */
enum vision_filter {
    FILTER_NEAREST,
    FILTER_LANCZOS,
    FILTER_BILINEAR,
    FILTER_BICUBIC,
    FILTER_BOX,
    FILTER_HAMMING
};

enum { VISION_GRIDS_MOST = 64 };

/* Pixels. The unit of sizes is patch * merge. */
struct vision_pixels {
    enum vision_sizing sizing;
    enum vision_filter filter;
    bool resize, rescale, normalise; /* steps that a config may turn off */
    bool crop;                       /* SIZING_CROP, SIZING_ANYRES: cut the middle out */
    bool square;                     /* SIZING_CROP: first padded to a square with the mean colour */
    bool pan;                        /* SIZING_EXACT: long images give crops beside the whole */
    bool split;                      /* SIZING_SPLIT: else one tile */
    bool thumbnail;                  /* SIZING_GRID: one more tile with the whole, where there are several */
    uint32_t width, height;          /* SIZING_EXACT, SIZING_CROP */
    uint32_t resized_width, resized_height; /* SIZING_CROP, SIZING_ANYRES: 0 = by `shortest` */
    uint32_t shortest, longest;             /* sides */
    uint32_t pan_least, pan_most;           /* side of a crop, number of crops */
    double pan_ratio;                       /* of the sides, from which on there are crops */
    uint32_t grid[VISION_GRIDS_MOST][2];    /* SIZING_ANYRES: (grids) height and width */
    uint32_t grids;
    uint32_t tile;                   /* SIZING_SPLIT, SIZING_GRID: side of a tile */
    uint64_t min_pixels, max_pixels; /* SIZING_PIXELS */
    uint32_t max_tokens;             /* SIZING_TOKENS */
    uint32_t min_tiles, max_tiles;   /* SIZING_GRID */
    double scale;                    /* of rescale: mostly 1/255 */
    float mean[3], std[3];
};

enum { VISION_DEEPSTACK_MOST = 16, VISION_LAYERS_MOST = 256, VISION_FEATURES_MOST = 8 };

/* The key of an mmproj file, behind clip.vision: whether the tokens of an image see each other. Ours; other programs take it
 * from the kind of projector. */
#define VISION_TWO_SIDED "bidirectional_tokens"
/* Another of ours: whether GELU is the one by erf or its approximation by tanh, where a family's files mean the other. */
#define VISION_GELU_ERF "gelu_erf"

struct vision_params {
    enum vision_family family;
    char projector[32];  /* clip.projector_type; of a folder the name that a GGUF file gets */
    char model_type[48]; /* of a folder: model_type of config.json */
    struct vision_pixels pixels;
    uint32_t patch;  /* side of a patch */
    uint32_t merge;  /* n x n patches become one row for the text model */
    uint32_t frames; /* an image is repeated this many times in a patch (video models), mostly 1 */

    uint32_t
        image_size; /* side that the tower was trained with; tables of positions have (image_size / patch)^2 rows */
    uint32_t width, layers, heads, kv_heads, head_dim, ffn;
    uint32_t out_width; /* of a row after the projector: the text model's width */
    uint32_t
        used_layers; /* the first layers, up to the last one whose output is taken (llava: all but the last) */
    uint32_t
        feature[VISION_FEATURES_MOST]; /* (features): after how many layers rows are taken, side by side */
    uint32_t features;
    bool last_norm;  /* the norm behind the last layer is used */
    bool class_row;  /* a row of its own before the patches */
    bool keep_class; /* ... which the projector keeps */
    bool drop_first; /* the first patch's row is left out, where there is no class row */
    enum act_kind act, projector_act;
    float eps, projector_eps;
    float theta;                   /* of 2-D rotary positions */
    uint32_t positions;            /* rows of the table of learned positions; 0 = none */
    uint32_t window;               /* qwen2.5: side of a window in pixels; 0 = none */
    bool full[VISION_LAYERS_MOST]; /* layers that see the whole image in spite of windows */
    /* Layers whose rows are added to the text model's first ones, and the number of each one's merger in the file. */
    uint32_t deepstack[VISION_DEEPSTACK_MOST], merger[VISION_DEEPSTACK_MOST];
    uint32_t deepstacks;
    bool standardise; /* gemma4 */
    bool two_sided;   /* the tokens of an image see each other in the text model (gemma3) */
    bool sides_said;  /* the file has said so; else the text model's shape tells (gemma4 as GGUF) */

    /* Ids of a folder's config.json; -1 = not said (a GGUF file: by name in the vocabulary). */
    int32_t image_token, image_begin, image_end;
};

/* One input of the tower: normalised pixels, sides multiples of patch * merge. */
struct vision_tile {
    uint32_t width, height;
    float *pixels; /* (3, height, width) */
};

/* llava-next: the rows of all tiles but the first are joined as they are in the image; of these lines and columns, those
 * that are no padding, each line with one more row behind it. bottom 0: they are not joined. */
struct vision_kept {
    uint32_t top, bottom, left, right;
};

/* An image, prepared. Tiles are in the order of their rows in the text; where the image was split, the whole comes last
 * (idefics3, internvl) or first (llava-next, gemma3). */
struct vision_prepared {
    struct vision_tile *tile; /* (tiles) */
    struct vision_kept kept;
    uint32_t tiles;
    uint32_t grid_cols, grid_rows; /* of the split, without the whole; 0 = not split */
};

/* Rows of a tile after the projector: its tokens in the text. */
uint32_t vision_tile_rows(const struct vision_params *v, uint32_t width, uint32_t height);
uint32_t vision_rows(const struct vision_params *v, const struct vision_prepared *p);
/* Rows of the largest tile that the processor makes; 0: they have no limit of their own. */
uint32_t vision_most_rows(const struct vision_params *v);
uint32_t vision_kept_rows(const struct vision_kept *k);

/* False where the store has no tower. */
bool vision_present(const struct store *s);
int vision_read(struct vision_params *v, const struct store *s, struct err *e);
/* preprocessor_config.json, or the processor's whole file with the image processor in it. (processor.c) */
int vision_read_processor(struct vision_params *v, const struct store *s, struct err *e);
/* image_grid_pinpoints, where `o` has them. */
int vision_read_grids(struct vision_pixels *p, const json_t *o, struct err *e);
