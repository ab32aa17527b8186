/* The description of all of this, as bytes of this program: doc/openapi.json. */
#include "serve/own.h"

__asm__(".section .rodata\nquern_openapi:\n.incbin \"" QUERN_OPENAPI
        "\"\nquern_openapi_end:\n.byte 0\n.previous\n");
extern const char quern_openapi[], quern_openapi_end[];

void openapi_show(struct conn *c)
{
    struct buf out = {0};
    buf_add(&out, quern_openapi, (size_t)(quern_openapi_end - quern_openapi));
    route_json(c, 200, &out);
}
