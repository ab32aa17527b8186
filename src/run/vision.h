/* The eyes of a model: its tower, where the file or folder has one or an mmproj file is beside it, and the rows that it has
 * made of pictures. Opened before the text model's plan is built, which has to know of it (vision_images).
 *
 * Used by one thread at a time: the engine's, or that of a tool. */
#pragma once

#include "model/model.h"
#include "model/vision/encode.h"
#include "run/picture_ids.h"
#include "run/runner.h"

struct vision {
    struct store *own; /* an mmproj file; NULL: the tower is in the model's store */
    struct tower *tower;
    struct encoder *encoder; /* opened when it is first needed */
    char *device;
    struct device_options device_options;
    int32_t image_token;         /* -1: the vocabulary has none by a name that is known */
    struct picture_rows *newest; /* rows of pictures, the most recent first */
    uint64_t bytes;              /* of them */
    double seconds;              /* that encoding took so far, with loading the tower for it */
    struct picture_ids *ids;     /* what stands for rows of pictures in sequences */
    struct picture *going;       /* what is being encoded, held; NULL: nothing */
    struct picture_rows *goes;   /* its rows */
};

/* The rows of one picture. Held by its users; the last one frees it. */
struct picture_rows {
    struct picture_rows *next; /* of those that are kept */
    uint8_t digest[PICTURE_DIGEST];
    uint32_t users, rows, width;
    float *data; /* (rows, width) */
};

struct vision_options {
    const char *mmproj; /* a file; NULL: as found beside the model */
    const char *device; /* "cpu", "cuda", "cuda:N"; NULL = cpu */
    struct device_options device_options;
};

/* Whether the model has a tower, or an mmproj file is beside it. */
bool vision_found(const struct store *model);
/* *out is NULL, without an error, where the model has no tower and none was asked for. */
int vision_open(struct vision **out, const struct store *model, const struct vision_options *o,
                struct err *e);
void vision_close(struct vision *v);
/* What the tower of a model says about images, without its weights. False: it has none that is supported. */
bool vision_look(struct vision_params *out, const struct store *model);
/* For model_options; v may be NULL. */
struct model_images vision_images(const struct vision *v);
/* An error unless its rows are as wide as the text model's. */
int vision_fits(const struct vision *v, const struct model *m, struct err *e);
/* The tower's device, with its weights loaded. */
int vision_load(struct vision *v, struct err *e);
/* The rows of a picture, encoded unless they are kept. vision_drop returns them. */
struct picture_rows *vision_encode(struct vision *v, struct picture *p, struct err *e);
/* The same for about `seconds`: 1 and rows, 0: there is more to do, -1: failed. A picture that was begun is finished first,
 * whoever asked for it. */
int vision_encode_some(struct vision *v, struct picture *p, double seconds, struct picture_rows **out,
                       struct err *e);
struct picture_rows *vision_hold(struct picture_rows *r);
void vision_drop(struct picture_rows *r); /* NULL is fine */
/* How many pictures have been encoded. */
uint64_t vision_encoded(const struct vision *v);

/* Replaces the image tokens of a prompt by ids of the rows of its pictures, and says where they are; out: (count), without
 * data. From any thread. */
int vision_place(const struct vision *v, const struct prompt_image *images, uint32_t count, int32_t *ids,
                 struct seq_image *out, struct err *e);
