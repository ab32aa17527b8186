/* Tokens with their ids and probabilities, in the shapes of OpenAI, vLLM and llama.cpp. The loop's: part of formats. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct choice;
struct json;
struct request;
struct stream_chunk;

/* Of one chunk, or of a whole answer. It points into the chunk or the choice. */
struct probs {
    const int32_t *ids;
    const float *logprobs;
    const struct token_prob *tops; /* (count, request.top_stride) */
    const uint32_t *ranks;
    size_t count, echoed; /* echoed: the first of them are the prompt's */
};

struct probs openai_write_choice_probs(const struct request *a, const struct choice *c);
struct probs openai_write_chunk_probs(const struct stream_chunk *chunk);         /* NULL = none */
struct probs openai_write_answer_probs(const struct request *a, struct probs p); /* without the prompt's */
/* [{token, logprob, bytes, top_logprobs}] without the token that ends the answer. */
void openai_write_token_probs(const struct request *a, struct json *j, const struct probs *p);
/* Each writes one key of an object. p NULL: null. */
void openai_write_probs(struct request *a, struct json *j, struct choice *c, const struct probs *p);
void openai_write_ids(struct json *j, const char *key, const int32_t *ids, size_t n);
void openai_write_prompt_probs(const struct request *a, const struct choice *c, struct json *j);
void openai_write_native_probs(const struct request *a, struct json *j, const struct probs *p);
