/* Writes MessagePack, as far as it is used here: the shortest form of each value. */
#pragma once

#include "base/buf.h"

#include <stdint.h>

void msgpack_nil(struct buf *out);
void msgpack_uint(struct buf *out, uint64_t value);
void msgpack_double(struct buf *out, double value);
void msgpack_str(struct buf *out, const char *text);
void msgpack_array(struct buf *out, uint32_t count); /* as many values follow */
