/* The files of --image, decoded, and as a model's tower takes them. */
#pragma once

#include "run/vision.h"
#include "tool/args.h"

#define IMAGES_TOWER                                                                                         \
    {                                                                                                        \
        "mmproj", 0, ARG_TEXT, "FILE",                                                                       \
            "the tower for images of a GGUF model (default: mmproj*.gguf beside it)", 0, 0                   \
    }
#define IMAGES_OPTIONS                                                                                       \
    {"image", 0, ARG_TEXT, "FILE", "an image: JPEG, PNG, WebP or GIF; may be repeated", 0, 0}, IMAGES_TOWER

struct images {
    struct decoder *decoder;  /* started by images_start, or with the first file */
    struct image *image;      /* (count); of those that are prepared the pixels are freed */
    struct picture **picture; /* (count): the first `prepared` of them */
    uint32_t count, prepared;
    const char **named; /* (count of images_load): their files */
};

/* Starts the process that decodes, before there are threads: for files that are named later. */
int images_start(struct images *m, struct err *e);

/* Every --image of the call. Before threads are started: decoding forks. */
int images_load(struct images *m, const struct args *a, struct err *e);
/* One file more. */
int images_add(struct images *m, const char *path, struct err *e);
/* As the tower takes them; an error where there is none (v NULL). */
int images_prepare(struct images *m, const struct vision_params *v, struct err *e);
/* Forgets all but the first ones. */
void images_cut(struct images *m, uint32_t count);
/* Forgets the first ones. */
void images_drop(struct images *m, uint32_t count);
void images_free(struct images *m);
