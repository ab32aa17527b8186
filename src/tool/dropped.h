/* Paths that a terminal writes when a file is dropped on it: quoted, or with backslashes before blanks. */
#pragma once

#include <stddef.h>

/* Where the text begins with the path of an image's file that exists: that path, and how many bytes of the text it
 * took, with the blanks behind it; else 0. */
size_t dropped_image(const char *text, char *path, size_t size);
