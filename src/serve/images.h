/* The images of a request: from base64 or an address to pictures (run/picture.h). Runs on a worker. */
#pragma once

#include "run/picture.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct request;

/* Of one prompt. */
struct request_images {
    struct picture **pictures;   /* (count), held */
    struct prompt_image *places; /* (count): where they are in the prompt, once that is made */
    size_t room;
    uint32_t count;
};

/* One more image of this prompt: a text that is base64, or (is_url) a data: URL or an address. where: for errors. */
int request_image_add(struct request *a, struct request_images *to, const json_t *text, bool is_url,
                      const char *where);
/* The places for as many as there are now. */
int request_image_places(struct request *a, struct request_images *to);
void request_images_free(struct request_images *i);

/* Why a part of this type is refused: what the model reads. type may be NULL. */
const char *request_reads(const struct request *a, const char *type);
/* Whether the part has what an image of its form needs; 400 where not, or where the model reads only text. */
int part_check_image(struct request *a, const json_t *part, const char *where);
/* Reads the images of all messages into `to` (NULL: they are not read). Returns the messages with {"type": "image"} in
 * their places; the given ones are not changed. NULL and a failure. */
json_t *request_images_read(struct request *a, const json_t *messages, struct request_images *to);
