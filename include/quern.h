/* libquern: a language model in a few calls.
 *
 *     struct quern_error why;
 *     struct quern_model *m = quern_open("model.gguf", NULL, &why);
 *     struct quern_request r = {.prompt = "Why is the sky blue?", .text = print, .arg = stdout};
 *     struct quern_answer a;
 *     if (!quern_generate(m, &r, &a, &why))
 *         quern_answer_free(&a);
 *     quern_close(m);
 *
 * Many requests at once: open the model with `streams`, submit each, and read each one's stream:
 *
 *     struct quern_stream *s = quern_submit(m, &r, &why);
 *     struct quern_chunk chunk;
 *     while (quern_next(s, -1, &chunk, &why) > 0 && !chunk.done)
 *         fwrite(chunk.text, 1, chunk.text_length, stdout);
 *     quern_stream_close(s);
 *
 * Ownership: the caller frees what a call returns, with the call named beside it. A call only reads its
 * arguments, and only while it runs. Threads: any thread may call into a model, many at once; one thread at a
 * time reads a stream, and any thread may cancel it. Close a model last, when no call runs and all streams
 * are closed. Requests share common prefixes: each is computed once and kept once. Errors: a call that fails
 * returns NULL or -1 and fills quern_error, whose code is the exit code that the program would give. Zero in
 * any field of an options struct means the default. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUERN_API __attribute__((visibility("default")))

struct quern_model;
struct quern_stream;

struct quern_error {
    int code; /* 64 usage, 65 bad or missing model, 70 device fault, 75 out of a resource, 130 interrupted */
    char text[768];
};

struct quern_options {
    const char *device;        /* "cpu", "cuda", "cuda:N" */
    const char *chat_template; /* a chat template instead of the model's own */
    uint32_t ctx;              /* tokens of context; 0 = the model's, at most 8,192 */
    int threads;               /* 0 = all cores that this process may use */
    int deterministic;         /* 1 = (CPU) the same bits whatever runs beside a request: slower */
    int exact;                 /* 1 = float activations and F32 KV: slower, the oracle's arithmetic */
    uint32_t streams;          /* requests that run at once; 0 = 1 */
    uint32_t queue;            /* queue length, in requests; 0 = 512 */
    uint32_t draft;            /* speculation: most draft tokens a step, up to 16; 0 = none */
    const char *draft_model;   /* draft model: a small one with the same vocabulary; `draft` 0 = 8 */
    int embed;                 /* 1 = for quern_embed only */
    const char *const *lora;   /* adapters: "NAME=PATH[:SCALE]" each, NULL-terminated; NULL = none */
    const char *cache_dir;     /* a folder that keeps prompt prefixes across restarts; NULL = none */
    uint64_t cache_bytes;      /* largest size of that folder in bytes; 0 = 4 GiB */
};

/* Set one of the three: `messages` (a JSON array, as in OpenAI's API), `prompt` (one message of the user), or
 * `raw` (the text itself, no template). */
struct quern_request {
    const char *messages, *prompt, *raw;
    const char *system;  /* put before `prompt` */
    uint32_t max_tokens; /* 0 = until the model ends or the context is full */
    uint64_t seed;
    int greedy;                       /* 1 = always the best token */
    double temperature, top_p, min_p; /* 0 = the model's default */
    uint32_t top_k;
    const char *const *stop; /* strings that end the answer, NULL-terminated */
    const char *json_schema; /* the answer is JSON that this schema (its text) accepts */
    const char *grammar;     /* or it is text that this grammar (GBNF) accepts */
    const char *lora;        /* adapters by name: "NAME[:SCALE]", several with commas between; NULL = none */
    int logprobs;            /* 1 = return the natural logarithm of each token's probability in the chunks */
    int echo;                /* 1 = with logprobs: the chunks begin with the prompt's tokens */
    int prompt_only; /* 1 = only read the prompt, for its probabilities or for the cache; generate nothing */
    double seconds;  /* deadline in seconds; 0 = none */
    uint64_t salt;   /* requests share prefixes only with requests of the same salt */
    /* quern_generate calls it with each new text: whole characters. A result other than 0 ends generation. */
    int (*text)(void *arg, const char *text, size_t n);
    void *arg;
};

struct quern_answer {
    char *text; /* NUL-terminated; UTF-8 if the model writes valid UTF-8 */
    size_t text_length;
    int32_t *ids;
    size_t id_count;
    uint32_t prompt_tokens, cached_tokens;
    const char *finish_reason;     /* "stop", "length", "cancelled"; static */
    double first_seconds, seconds; /* until the first token; in all */
};

QUERN_API const char *quern_version(void);

/* path: a .gguf (first of a split) or a folder with safetensors. options may be NULL. */
QUERN_API struct quern_model *quern_open(const char *path, const struct quern_options *options,
                                         struct quern_error *error);
QUERN_API void quern_close(struct quern_model *m);

QUERN_API int quern_generate(struct quern_model *m, const struct quern_request *request,
                             struct quern_answer *answer, struct quern_error *error);
QUERN_API void quern_answer_free(struct quern_answer *answer);

/* NULL when the request is wrong, or the queue is full (code 75). */
QUERN_API struct quern_stream *quern_submit(struct quern_model *m, const struct quern_request *request,
                                            struct quern_error *error);

/* What has arrived since the last call of quern_next; pointers are valid until the next one. */
struct quern_chunk {
    const char *text; /* whole characters */
    size_t text_length;
    const int32_t *ids;
    const float *logprobs; /* NULL unless requested; NAN for the prompt's first token */
    size_t count, echoed;  /* number of ids; how many of them, the first ones, belong to the prompt */
    int done;              /* the last chunk: the fields below are set */
    const char *finish_reason;
    uint32_t prompt_tokens, cached_tokens;
    double queued_seconds, first_seconds, seconds; /* seconds in the queue; until the first token; in all */
};

/* Waits up to `seconds` for a chunk (< 0: without limit). 1: *chunk is set; 0: none yet; -1: the request
 * failed. */
QUERN_API int quern_next(struct quern_stream *s, double seconds, struct quern_chunk *chunk,
                         struct quern_error *error);
QUERN_API void quern_cancel(struct quern_stream *s);       /* takes effect within a step */
QUERN_API void quern_stream_close(struct quern_stream *s); /* cancels, if it runs */

/* A text as a vector of length 1, with the model's pooling. Free *vector with quern_free. Returns its width,
 * or -1. */
QUERN_API long quern_embed(struct quern_model *m, const char *text, size_t n, float **vector,
                           struct quern_error *error);

/* Text to ids; special != 0 parses control tokens in the text and adds what the model adds (BOS). Returns the
 * count, or -1; free *ids with quern_free. */
QUERN_API long quern_tokenize(struct quern_model *m, const char *text, size_t n, int special, int32_t **ids,
                              struct quern_error *error);
QUERN_API void quern_free(void *p);

#ifdef __cplusplus
}
#endif
