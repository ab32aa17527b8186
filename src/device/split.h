/* Two devices that share one plan. `device` of an operation is the device that runs it: 0 the main device (a
 * GPU), 1 the rest (the CPU). Runs of operations with the same device are segments; between two segments
 * those buffers pass through host memory that the next one reads and the other has written last. KV pages are
 * on the device of their layers, so writing and reading KV of a layer are on the same device.
 *
 * Prompts may go another way (plan_stream in plan.h): the weights of the rest are sent to the card, and its products are
 * computed there, where that takes less time. The rest keeps its KV and attention, so decode finds everything in place.
 * Experts are divided between both, so that the rest computes while weights are on their way (border.h).
 *
 * place.h decides where operations run; the tests cut plans anywhere, on two CPU devices. */
#pragma once

#include "device/device.h"

struct split_devices {
    struct device *main, *rest; /* the rest has its rows in host memory (host_rows) */
    /* computes products of the rest for prompts, with weights that are sent to it; NULL: none. It is of the main device's
     * kind: rows pass between the two directly (take_rows). */
    struct device *stream;
    uint32_t stream_rows; /* from this many rows on; 0 = from as many as measurement says */
};

/* From the next step on, `experts` of each operation are sent to the streaming device, and the rest computes the others.
 * Without it, measurement says how many (border.h). d: what split_open opened. */
void split_fix_border(struct device *d, uint32_t experts);

/* Takes all of them over, also when it fails. */
int split_open(struct device **out, const struct split_devices *of, struct err *e);
