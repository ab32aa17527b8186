/* The files of --image, decoded, and as a model's tower takes them. */
#pragma once

#include "run/vision.h"
#include "tool/args.h"

#define IMAGES_OPTIONS                                                                                       \
    {"image", 0, ARG_TEXT, "FILE", "an image: JPEG, PNG, WebP or GIF; may be repeated", 0, 0},               \
    {                                                                                                        \
        "mmproj", 0, ARG_TEXT, "FILE",                                                                       \
            "the tower for images of a GGUF model (default: mmproj*.gguf beside it)", 0, 0                   \
    }

struct images {
    struct image *image;      /* (count) */
    struct picture **picture; /* (count), once images_prepare has made them */
    uint32_t count;
};

/* Every --image of the call. Before threads are started: decoding forks. */
int images_load(struct images *m, const struct args *a, struct err *e);
/* One file more. */
int images_add(struct images *m, const char *path, struct err *e);
/* As the tower takes them; an error where there is none. */
int images_prepare(struct images *m, const struct vision *v, struct err *e);
void images_free(struct images *m);
