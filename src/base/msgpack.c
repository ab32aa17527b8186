#include "base/msgpack.h"

#include <string.h>

/* The type byte, and a big-endian number of `bytes` bytes. */
static void msgpack_number(struct buf *out, uint8_t kind, uint64_t value, unsigned bytes)
{
    uint8_t text[9] = {kind};
    for (unsigned i = 0; i < bytes; i++)
        text[1 + i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
    buf_add(out, text, 1 + bytes);
}

void msgpack_nil(struct buf *out)
{
    msgpack_number(out, 0xc0, 0, 0);
}

void msgpack_uint(struct buf *out, uint64_t value)
{
    if (value < 0x80)
        msgpack_number(out, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        msgpack_number(out, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        msgpack_number(out, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        msgpack_number(out, 0xce, value, 4);
    else
        msgpack_number(out, 0xcf, value, 8);
}

void msgpack_double(struct buf *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    msgpack_number(out, 0xcb, bits, 8);
}

void msgpack_str(struct buf *out, const char *text)
{
    size_t n = strlen(text);
    if (n < 32)
        msgpack_number(out, (uint8_t)(0xa0 | n), 0, 0);
    else if (n <= UINT8_MAX)
        msgpack_number(out, 0xd9, n, 1);
    else if (n <= UINT16_MAX)
        msgpack_number(out, 0xda, n, 2);
    else
        msgpack_number(out, 0xdb, n, 4);
    buf_add(out, text, n);
}

void msgpack_array(struct buf *out, uint32_t count)
{
    if (count < 16)
        msgpack_number(out, (uint8_t)(0x90 | count), 0, 0);
    else if (count <= UINT16_MAX)
        msgpack_number(out, 0xdc, count, 2);
    else
        msgpack_number(out, 0xdd, count, 4);
}
