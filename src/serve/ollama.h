/* Ollama's API. Requests are converted to OpenAI's format and take the same path from there; replies are
 * lines of JSON. Functions of a request run on a worker, which owns it until it is submitted; those of a connection
 * answer at once, on the loop's thread. */
#pragma once

#include <jansson.h>

struct conn;
struct json;
struct request;

void ollama_version(struct conn *c);
void ollama_tags(struct conn *c);
void ollama_ps(struct conn *c);
void ollama_refuse(struct conn *c);
void ollama_show(struct request *a);
void ollama_pull(struct request *a);
void ollama_create(struct request *a);
void ollama_copy(struct request *a);
void ollama_delete(struct request *a);
void ollama_chat(struct request *a);
void ollama_generate(struct request *a);
void ollama_embed(struct request *a);      /* /api/embed: many texts */
void ollama_embeddings(struct request *a); /* /api/embeddings: one, the older shape */

int ollama_context_read(struct request *a, const json_t *body);
void ollama_context_write(const struct request *a, struct json *j);

/* The model that a body names: `model`, or `name` from older clients. NULL = none. */
const char *ollama_model(const json_t *body);
void ollama_time(struct json *j, const char *key, double seconds_from_now);
