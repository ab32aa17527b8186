/* Decodes images in processes that cannot open a file, reach a network, or start a program.
 *
 * decoder_start forks a process that waits, before the program has threads, a loaded model or secrets in memory. For each
 * image that process forks another one, which gives up the rest of its rights, reads the file's bytes from a socket,
 * decodes them (decode.h), writes the pixels to the socket, and ends. The kernel stops it at its limits of time and
 * memory. So a file that makes a library hang, grow or fail costs one process and one error. */
#pragma once

#include "media/decode.h"

struct decoder;

int decoder_start(struct decoder **out, struct err *e);
/* As image_decode; from any thread, several at once. */
int decoder_run(struct decoder *d, struct image *out, const void *bytes, size_t n,
                const struct image_limits *limits, struct err *e);
void decoder_stop(struct decoder *d); /* NULL is fine */
