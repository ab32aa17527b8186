/* The last responses, for those that go on from them (responses_request.c). Guarded by the server's mutex. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum { SHELF_ENTRIES = 256 };

struct shelf {
    struct shelf_entry {
        char id[48];
        uint32_t key; /* whose it is */
        size_t bytes;
        json_t *conversation, *response;
    } entries[SHELF_ENTRIES];
    uint32_t next; /* the oldest one's place */
    size_t bytes;
};

void shelf_free(struct shelf *s);
