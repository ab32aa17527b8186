/* Two devices that share one plan. `device` of an operation is the device that runs it: 0 the main device (a
 * GPU), 1 the rest (the CPU). Runs of operations with the same device are segments; between two segments
 * those buffers pass through host memory that the next one reads and the other has written last. KV pages are
 * on the device of their layers, so writing and reading KV of a layer are on the same device.
 *
 * place.h decides where operations run; the tests cut plans anywhere, on two CPU devices. */
#pragma once

#include "device/device.h"

/* Takes both over, also when it fails. */
int split_open(struct device **out, struct device *main, struct device *rest, struct err *e);
