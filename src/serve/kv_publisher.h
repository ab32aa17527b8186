/* Publishes the events of prefix trees (run/kv_events.h) over ZeroMQ, as vLLM does. A process of its own, forked before the
 * sandbox is closed, has libzmq (by dlopen) and the network; the server only sends it messages, and never waits long for it.
 *
 * A message has three frames: the topic "kv@HOST@MODEL", its number (of the topic, from 0, 8 bytes, the highest first) and
 * the events. Where there is a replay endpoint, [number] or [number, topic] asks for all messages from a number on, as far
 * as they are kept; the last reply has the number -1 and no events. */
#pragma once

#include "base/err.h"

#include <stddef.h>

struct kv_publisher;

struct kv_publisher_options {
    const char *endpoint; /* with a star for the host or the port it is bound, else connected to */
    const char *replay;   /* is bound; NULL = none */
    const char *host;     /* in topics */
};

int kv_publisher_start(struct kv_publisher **out, const struct kv_publisher_options *o, struct err *e);
/* Any thread's. What the process does not take within a second is lost, and so is all that follows: that is logged. */
void kv_publisher_send(struct kv_publisher *p, const char *model, const void *events, size_t n);
void kv_publisher_stop(struct kv_publisher *p); /* NULL is fine; what was sent goes out first */
