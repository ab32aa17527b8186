/* Where the operations of a plan run when a model may be too large for one device: the last layers and the
 * head on the main one, as many as fit by the device's own figures, and the rest on the CPU. */
#pragma once

#include "device/device.h"

enum place_how {
    PLACE_FIT,  /* as many layers as fit */
    PLACE_ALL,  /* all of them, or it fails */
    PLACE_SOME, /* `layers` of them */
};

struct place_request {
    struct plan *plan;
    const struct weights *weights;
    struct device *main;
    struct device_shape shape;
    enum place_how how;
    uint32_t layers;      /* PLACE_SOME */
    bool experts_on_rest; /* operations with experts are not for the main device */
    uint64_t memory;      /* bytes that the main device may give; 0 = what is free */
    uint64_t spare;       /* of which this is left where a part is on the rest: for weights that are sent */
};

/* The result. */
struct placement {
    uint32_t layers, of;        /* whole layers on the main device (without experts), and all layers */
    uint32_t main, rest;        /* operations */
    struct device_memory need;  /* of the main device's part */
    struct device_memory whole; /* with PLACE_FIT: of all of it */
};

/* Bytes that may be taken of a device with `free` bytes free, `limit` at most (0 = all). */
uint64_t place_room(const struct device_memory *m, uint64_t limit);
/* Sets `device` of every operation of the plan. */
int place_plan(const struct place_request *r, struct placement *out, struct err *e);
