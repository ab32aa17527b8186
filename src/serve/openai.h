/* OpenAI's API: its routes, and what the other APIs use of it, since their requests become requests of OpenAI's. All of it
 * runs on a worker, except for openai_write_timings. openai_request.h is what its own files share. */
#pragma once

#include <jansson.h>
#include <stddef.h>

struct ids;
struct json;
struct request;

#define OPENAI_TOKENS 9e18 /* as a limit of tokens, any number: the answer ends where the context is full */

void openai_chat(struct request *a);
void openai_count(struct request *a);
void openai_completion(struct request *a);

/* The body as an object without its nulls, a reference of the caller's own; NULL and a failure. */
json_t *openai_body(struct request *a);
/* The request goes on as if it had come in OpenAI's shape, which is taken over. */
void openai_as(struct request *a, json_t *body, void (*ask)(struct request *a));
int openai_messages(struct request *a, const json_t *messages);
/* Only the prompt of a chat, in prompts[0]. */
int openai_prompt(struct request *a);
/* The body in the form that has tools, where it came with functions. */
int openai_functions(struct request *a, json_t *body);
/* Does a new turn begin behind the messages, does the last one go on, or neither. */
enum openai_turn { TURN_BEGINS, TURN_GOES_ON, TURN_CLOSED };
int openai_turn(struct request *a, const json_t *body, enum openai_turn *out);
/* A prompt that does not fit: the failure that clients know. */
int openai_too_long(struct request *a, const struct ids *ids, const char *param);
/* Tokens of a prompt after which counting ends: twice those that fit. */
size_t openai_count_most(const struct request *a);

/* The key "timings" of a reply. */
void openai_write_timings(const struct request *a, struct json *j);
