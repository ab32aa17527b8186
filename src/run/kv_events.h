/* What changes in a prefix tree, for routers that choose the replica with the longest known prefix. A block is a whole page
 * of tokens; its hash names it and all tokens before it. Events are collected during a step and sent as one message:
 *
 *     [time, [event, ...], rank]                                                              MessagePack
 *     ["BlockStored", [hash, ...], parent hash or nil, [token, ...], tokens of a block, adapter or nil]
 *     ["BlockRemoved", [hash, ...]]
 *     ["AllBlocksCleared"]
 *
 * Blocks of one event follow each other. The first event of an engine is AllBlocksCleared, and the last.
 * Used by the engine's thread only; nothing is allocated after kv_events_open. */
#pragma once

#include "base/err.h"
#include "run/runner.h"

#include <stddef.h>
#include <stdint.h>

struct kv_events;

struct kv_events_options {
    /* Takes a message. NULL = there are no events. */
    void (*send)(void *arg, const void *message, size_t n);
    void *arg;
};

/* *out is NULL where messages have no reader; all below take NULL. */
int kv_events_open(struct kv_events **out, const struct kv_events_options *o, struct err *e);
void kv_events_close(struct kv_events *k); /* sends what is left */

/* The hash of a block after the one of hash `parent` (0 = it is the first of a text with this salt). Never 0. */
uint64_t kv_events_hash(const struct kv_events *k, uint64_t parent, uint64_t salt,
                        const int32_t ids[RUNNER_PAGE]);
/* adapter: its number, from 1; 0 = none. */
void kv_events_stored(struct kv_events *k, uint64_t hash, uint64_t parent, const int32_t ids[RUNNER_PAGE],
                      uint32_t adapter);
void kv_events_removed(struct kv_events *k, uint64_t hash);
void kv_events_cleared(struct kv_events *k);
void kv_events_flush(struct kv_events *k);
