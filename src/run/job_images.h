/* The images of a job. Image tokens in its ids are replaced by ids of the pictures (run/picture_ids.h), so that the prefix
 * tree never takes one for another; a picture is encoded only when a row of it has to be computed. */
#pragma once

#include "run/vision.h"

struct job;
struct engine_request;
struct session;

struct job_images {
    struct seq_image *at;       /* (count) */
    struct picture **picture;   /* (count), held */
    struct picture_rows **rows; /* (count): NULL while they are not needed */
    uint32_t count;
};

/* ids: the prompt, which is changed. */
int job_images_open(struct job_images *m, const struct vision *v, const struct engine_request *r,
                    int32_t *ids, struct err *e);
uint32_t job_images_longest(const struct job_images *m); /* tokens of the largest tile: of a run */
void job_images_close(struct job_images *m);
/* How many of n tokens from `from` on come before the first row of an image that is not encoded. */
uint32_t job_images_ready(const struct job_images *m, uint32_t from, uint32_t n);
/* Encodes the next image that has a token from `len` on and before `end`, for about `seconds`, and drops rows that are no
 * longer needed. 1: it has encoded one, or a part of one; 0: there was none to encode. */
int job_images_encode(struct job_images *m, struct vision *v, uint32_t len, uint32_t end, double seconds,
                      struct err *e);
/* The start of the image that position `len` is in the middle of; else len. */
uint32_t job_images_start(const struct job_images *m, uint32_t len);
