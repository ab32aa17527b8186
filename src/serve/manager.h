/* The manager: a separate process that downloads, makes, copies and removes models for a server whose sandbox allows neither
 * the network nor writing files. It is forked before the sandbox is closed, may write only to the Hub's cache, quern's own
 * and the folder of models.json, and forks one more process for each request. A request is one JSON object:
 *
 *   {"do": "pull" | "create" | "copy" | "delete", "model": NAME, "entry": a preset, "to": NAME}
 *
 * The reply is lines of JSON: {"status", "digest"?, "total"?, "completed"?} as Ollama has them, and at the end
 * {"status": "success", "path"?, "preset"?} or {"error": text, "code": of enum err_code}. */
#pragma once

#include "base/err.h"

#include <stddef.h>

struct hub;
struct manager;

enum { MANAGER_REQUEST = 128 << 10, MANAGER_WAIT = 1 /* seconds between two looks at a silent reply */ };

int manager_start(struct manager **out, const struct hub *h, struct err *e);
/* A socket where the lines come; -1 and an error. Closing it ends the work: a download can be resumed. Any thread. */
int manager_call(struct manager *m, const char *request, size_t n, struct err *e);
void manager_stop(struct manager *m); /* NULL is fine */
