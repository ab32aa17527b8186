/* A CUDA driver that computes nothing, for the error paths: memory is the host's, launches do nothing, and the test says
 * what the card is and what goes wrong. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct fake_cuda {
    int version, cards, major, minor;
    size_t memory; /* bytes of the card */
    _Atomic size_t used;
    int sync_result, module_result, alloc_result, register_result;
    int graphs, allocations;
    int allocated_on; /* the card of the last one; -1: the thread had chosen none */
    _Atomic int launch_result, launches, pinned; /* of many threads */
    _Atomic unsigned records;                    /* of events */
    int maps;                                    /* of memory behind reserved addresses, so far */
    int cannot_map;                              /* there are no such addresses */
    int cannot_read;                             /* kernels cannot read memory of the host */
    _Atomic int sends;                           /* copies from the host to the card */
    /* NULL, or what a launch does: its grid, and its arguments; by many threads */
    void (*launched)(const unsigned grid[3], const void *args);
};

/* Events come in pairs, one before and one after a launch: launch i takes the ticks from 2 i to 2 i + 5, so it overlaps with
 * the two that follow it. */
#define FAKE_TICK_MS 0.00001f
