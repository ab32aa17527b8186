/* The parts of a body of multipart/form-data (RFC 7578): fields and files of a form. Nothing is copied. */
#pragma once

#include "base/err.h"

#include <stddef.h>

enum { MULTIPART_PARTS = 32, MULTIPART_NAME = 256, MULTIPART_BOUNDARY = 71 };

struct multipart {
    struct multipart_part {
        char name[MULTIPART_NAME], filename[MULTIPART_NAME]; /* "" = none */
        const char *data;                                    /* (n), in the body */
        size_t n;
    } parts[MULTIPART_PARTS];
    size_t count;
};

/* The boundary of a Content-Type: a text of 1 to 70 bytes; 0 = it has it, -1 = it is none of a form. */
int multipart_boundary(const char *type, char out[MULTIPART_BOUNDARY]);
int multipart_read(const char *boundary, const char *body, size_t n, struct multipart *out, struct err *e);
/* The part of this name; NULL = none. */
const struct multipart_part *multipart_find(const struct multipart *m, const char *name);
