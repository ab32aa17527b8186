/* What those who run servers ask: is it alive, is it ready, its counters, and to leave. Answered in the loop. */
#pragma once

struct conn;

/* Only a restart helps where this is not 200. */
void probe_live(struct conn *c);
/* 200: requests are served. Not while a model is loaded, not while the server is leaving or ending, and not when it
 * cannot serve. */
void probe_ready(struct conn *c);
void probe_metrics(struct conn *c);
/* POST: not ready from now on, but what comes is served; the reply says how many requests run. For an admin key or, on
 * the port of the metrics, for programs of this machine. */
void probe_drain(struct conn *c);
