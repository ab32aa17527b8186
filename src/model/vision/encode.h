/* Runs a tower: prepared tiles in, rows for the text model out. One object has one device with the tower's weights; used
 * by one thread at a time. Memory grows with the largest tile so far. */
#pragma once

#include "device/device.h"
#include "model/vision/tower.h"

struct encoder;

/* device: "cpu", "cuda", "cuda:N". */
int encoder_open(struct encoder **out, const struct tower *t, const char *device,
                 const struct device_options *o, struct err *e);
void encoder_close(struct encoder *c);
/* Floats of a row: the text model's width, and once more for each layer of deepstack. */
uint32_t encoder_width(const struct encoder *c);
/* The same in slices, so that a thread can do other work between them: start, then go until it returns 1 (0: there is more
 * to do, -1: failed). A slice takes `seconds`, and as long as the operation that runs then. Image and rows belong to the
 * caller and have to last until the end, or until stop. */
int encoder_start(struct encoder *c, const struct vision_prepared *image, float *rows, struct err *e);
int encoder_go(struct encoder *c, double seconds, struct err *e);
void encoder_stop(struct encoder *c);
/* rows: (vision_rows of the image, encoder_width). */
int encoder_run(struct encoder *c, const struct vision_prepared *image, float *rows, struct err *e);
/* What images take while there is a profile: rows of pixels and positions, sending them, and each operation. */
struct encoder_profile {
    double rows, sending;
    double *operations; /* (plan.count) */
};
void encoder_profile(struct encoder *c, struct encoder_profile *p); /* NULL: no more */
/* Images encoded so far. */
uint64_t encoder_count(const struct encoder *c);
/* The device that it runs on, with the tower's weights. */
struct device *encoder_device(const struct encoder *c);
