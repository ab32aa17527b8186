/* The parity gate: before a model is used, a sample of every weight's outputs is computed by the GPU's
 * products (one row, eight rows, many rows) and by the host from the file's own bytes; they must agree. */
#pragma once

#include "device/cuda/exec.h"

int parity_check(struct cuda_device *d, const struct step_sizes *sizes, struct err *e);
/* Bytes on the card that it takes meanwhile. */
uint64_t parity_bytes(const struct step_sizes *sizes);
