/* libquern: a language model in a few calls.
 *
 *     struct quern_error why;
 *     struct quern_model *m = quern_open("model.gguf", NULL, &why);
 *     struct quern_request r = QUERN_REQUEST;
 *     r.prompt = "Why is the sky blue?";
 *     struct quern_answer a;
 *     if (!quern_generate(m, &r, &a, &why)) {
 *         puts(a.text);
 *         quern_answer_free(&a);
 *     }
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
 * One thread can read all streams: quern_ready waits for the next ones that have a chunk.
 *
 * Ownership: the caller frees what a call returns, with the call named beside it. A call only reads its
 * arguments, and only while it runs. Threads: any thread may call into a model, many at once; one thread at a
 * time reads a stream, and any thread may cancel it. Close a model last, when no call runs and all streams
 * are closed. Requests share common prefixes: each is computed once and kept once. Errors: a call that fails
 * returns NULL or -1 and fills quern_error, whose code is the exit code that the program would give.
 *
 * Versions: structs that the caller fills begin with their size. QUERN_OPTIONS and QUERN_REQUEST set it, or
 * quern_options_init and quern_request_init where the caller has no C compiler. Later versions add fields only at
 * the end, and a caller with the smaller struct gets their defaults. A struct whose size is 0 (all zero, without
 * these macros) is of the first version, where 0 in a sampling field means the model's default. Structs that the library
 * fills change only with QUERN_ABI. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUERN_API __attribute__((visibility("default")))
#define QUERN_ABI 1

struct quern_model;
struct quern_stream;

struct quern_error {
    /* 64 usage, 65 bad or missing model, 69 a hub that does not reply, 70 device fault, 73 disk full, 74 the model file
     * changed, 75 out of a resource, 130 interrupted */
    int code;
    char text[768];
};

/* An image: the bytes of a file (JPEG, PNG, WebP, GIF), at most 32 MiB and 64 million pixels. */
struct quern_image {
    const void *bytes;
    size_t length;
};

/* 0 and NULL in any field mean the default. */
struct quern_options {
    size_t size;               /* of this struct, by QUERN_OPTIONS */
    const char *device;        /* "cpu", "cuda", "cuda:N"; NULL = a GPU where there is one */
    const char *chat_template; /* a chat template instead of the model's own */
    uint32_t ctx;              /* tokens of context; 0 = the model's, at most 8,192 */
    int threads;               /* 0 = all cores that this process may use */
    int deterministic;         /* 1 = (CPU) the same bits whatever runs beside a request: slower */
    int exact;                 /* 1 = float activations and F32 KV: slower, the oracle's arithmetic */
    uint32_t streams;          /* requests that run at once; 0 = 1 */
    uint32_t queue;            /* queue length, in requests; 0 = 512 */
    uint32_t draft;            /* speculation: most draft tokens a step, up to 16; 0 = none */
    const char *draft_model;   /* draft model: a small one with the same vocabulary; `draft` 0 = 8 */
    int embed;                 /* 1 = for quern_embed only; encoders always are */
    const char *const *lora;   /* adapters: "NAME=PATH[:SCALE]" each, NULL-terminated; NULL = none */
    const char *cache_dir;     /* a folder that keeps prompt prefixes across restarts; NULL = none */
    uint64_t cache_bytes;      /* largest size of that folder in bytes; 0 = 4 GiB */
    int offline;               /* 1 = a model that is not on this machine is an error, and not fetched */
    /* Called while the model is fetched ("fetching", "checking": bytes) and loaded ("loading": parts of 1,000), by the
     * thread that opens it or one of its helpers. A result other than 0 ends a download: code 130. */
    int (*progress)(void *arg, const char *what, uint64_t done, uint64_t total);
    void *progress_arg;
    const char *mmproj; /* the file with the tower for images; NULL = what is in the model or beside it */
};

/* Set one of the four: `messages` (a JSON array, as in OpenAI's API), `prompt` (one message of the user),
 * `raw` (the text itself, no template), or `ids` (tokens).
 *
 * Images, where the model takes them (quern_info): messages may have parts of type image_url with a data: URL. `images`
 * are in front of `prompt`; of messages, they stand for the parts {"type": "image"}, in order; of `raw`, for each
 * <__media__>, or in front of it. They are decoded in a process without rights, which quern_open starts for such models. */
struct quern_request {
    size_t size; /* of this struct, by QUERN_REQUEST */
    const char *messages, *prompt, *raw;
    const char *system;  /* put before `prompt` */
    uint32_t max_tokens; /* 0 = until the model ends or the context is full */
    uint64_t seed;
    int greedy; /* 1 = always the best token */
    /* QUERN_DEFAULT (NaN) = the model's default; 0 is 0: temperature 0 is greedy. Where size is 0, 0 = the default. */
    double temperature, top_p, min_p;
    int32_t top_k;           /* -1 = the model's default, 0 = off. Where size is 0, 0 = the default */
    const char *const *stop; /* strings that end the answer, NULL-terminated; at most 16 */
    /* At most one of these four says what the answer has to be; of messages and prompt, after the reasoning: */
    const char *json_schema;    /* JSON that this schema (its text) accepts */
    const char *grammar;        /* text that this grammar (GBNF) accepts */
    const char *regex;          /* text that matches this regular expression, all of it */
    const char *const *choices; /* one of these texts, NULL-terminated */
    const char *lora;      /* adapters by name: "NAME[:SCALE]", several with commas between; NULL = none */
    int logprobs;          /* 1 = return the natural logarithm of each token's probability in the chunks */
    uint32_t top_logprobs; /* and this many best tokens at each place; at most 20 */
    int echo;              /* 1 = with logprobs: the chunks begin with the prompt's tokens */
    int prompt_only; /* 1 = only read the prompt, for its probabilities or for the cache; generate nothing */
    double seconds;  /* deadline in seconds; 0 = none */
    uint64_t salt;   /* requests share prefixes only with requests of the same salt */
    /* quern_generate calls it with each new text: whole characters. A result other than 0 ends generation. */
    int (*text)(void *arg, const char *text, size_t n);
    void *arg; /* of `text`; and quern_ready returns it */
    const int32_t *ids;
    size_t id_count;
    /* With messages. tools: a JSON array, as in OpenAI's API. tool_choice: "auto" (NULL), "none", "required", or the name
     * of a tool. The calls come as pieces. */
    const char *tools, *tool_choice;
    int single_call; /* 1 = at most one call */
    const char *
        template_args; /* a JSON object: more variables of the template, such as {"enable_thinking": false} */
    int parse;         /* 1 = split reasoning from the text, too: pieces. With tools always */
    const char *sampling; /* a JSON object: more sampling fields by name, such as {"repeat_penalty": 1.1} */
    int32_t
        reasoning_tokens; /* budget: then reasoning is closed and the answer follows; -1 (size 0: 0, too) = none */
    int ignore_end;       /* 1 = go on after the model's end token, until max_tokens */
    int notify;           /* 1 = quern_ready returns the stream when it has a chunk */
    const struct quern_image *images;
    size_t image_count; /* at most 64 in a request, those of messages included */
};

/* NaN, without a header */
#define QUERN_DEFAULT ((double)__builtin_nanf(""))
#define QUERN_OPTIONS                                                                                        \
    {                                                                                                        \
        .size = sizeof(struct quern_options)                                                                 \
    }
#define QUERN_REQUEST                                                                                        \
    {                                                                                                        \
        .size = sizeof(struct quern_request), .temperature = QUERN_DEFAULT, .top_p = QUERN_DEFAULT,          \
        .min_p = QUERN_DEFAULT, .top_k = -1, .reasoning_tokens = -1                                          \
    }

struct quern_answer {
    char *text; /* NUL-terminated; UTF-8 if the model writes valid UTF-8 */
    size_t text_length;
    int32_t *ids;
    size_t id_count;
    uint32_t prompt_tokens, cached_tokens;
    const char *finish_reason;     /* "stop", "length", "cancelled", "tool_calls"; static */
    double first_seconds, seconds; /* until the first token; in all */
    char *reasoning;               /* NUL-terminated; NULL = none */
    char *
        tool_calls; /* JSON, as in OpenAI's API: [{"id", "type", "function": {"name", "arguments"}}]; NULL = none */
    float *logprobs; /* (id_count); NULL unless requested */
};

QUERN_API const char *quern_version(void);
/* The library's QUERN_ABI: another one than the header's means other structs. */
QUERN_API int quern_abi(void);
/* As the macros, for a struct of `size` bytes. */
QUERN_API void quern_options_init(struct quern_options *options, size_t size);
QUERN_API void quern_request_init(struct quern_request *request, size_t size);

/* Messages of the library, for the whole process; write NULL = to standard error, as at first. level: 0 errors, 1 warnings,
 * 2 information, 3 debug: what is above it is dropped. Any thread may call `write`. */
QUERN_API void quern_log(void (*write)(void *arg, int level, const char *line), void *arg, int level);

/* model: a .gguf (first of a split), a folder with safetensors, or a name as the program takes it (NULL = its default
 * model): "user/repo:Q4_K_M", a URL, an alias. What is not on this machine is fetched. options may be NULL. */
QUERN_API struct quern_model *quern_open(const char *model, const struct quern_options *options,
                                         struct quern_error *error);
QUERN_API void quern_close(struct quern_model *m);
/* JSON: {"path", "name", "architecture", "device", "context", "vocabulary", "width", "generates", "chats", "tools",
 * "reasoning", "images", "adapters": [{"name", "scale"}], "streams"}. Free with quern_free. NULL: no memory. */
QUERN_API char *quern_info(struct quern_model *m);

QUERN_API int quern_generate(struct quern_model *m, const struct quern_request *request,
                             struct quern_answer *answer, struct quern_error *error);
QUERN_API void quern_answer_free(struct quern_answer *answer);

/* NULL when the request is wrong, or the queue is full (code 75). */
QUERN_API struct quern_stream *quern_submit(struct quern_model *m, const struct quern_request *request,
                                            struct quern_error *error);

enum quern_part { QUERN_TEXT, QUERN_REASONING, QUERN_CALL };

/* A part of what the model writes. A call that begins has a name and an id, and its arguments (JSON) follow in this piece
 * and the next ones, until one has `more` 0. */
struct quern_piece {
    int part; /* enum quern_part */
    int more; /* of a call: its arguments are not complete yet */
    const char *text;
    size_t text_length;
    const char *name, *id; /* NULL unless a call begins */
};

struct quern_probability {
    int32_t id; /* -1 = none */
    float logprob;
};

/* What has arrived since the last call of quern_next; pointers are valid until the next one. */
struct quern_chunk {
    const char *text; /* whole characters; with pieces, those of QUERN_TEXT */
    size_t text_length;
    const int32_t *ids;
    const float *logprobs; /* NULL unless requested; NAN for the prompt's first token */
    size_t count, echoed;  /* number of ids; how many of them, the first ones, belong to the prompt */
    int done;              /* the last chunk: finish_reason and what follows up to `seconds` are set */
    const char *finish_reason;
    uint32_t prompt_tokens, cached_tokens;
    double queued_seconds, first_seconds, seconds; /* seconds in the queue; until the first token; in all */
    const struct quern_probability *top;           /* (count, top_logprobs); NULL unless requested */
    const struct quern_piece *pieces;              /* (piece_count), with `parse` or tools */
    size_t piece_count;
};

/* Waits up to `seconds` for a chunk (< 0: without limit). 1: *chunk is set; 0: none yet; -1: the request
 * failed. */
QUERN_API int quern_next(struct quern_stream *s, double seconds, struct quern_chunk *chunk,
                         struct quern_error *error);
QUERN_API void quern_cancel(struct quern_stream *s);       /* takes effect within a step */
QUERN_API void quern_stream_close(struct quern_stream *s); /* cancels, if it runs */

/* A stream that has a chunk, and the `arg` of its request. */
struct quern_event {
    struct quern_stream *stream;
    void *arg;
};

/* Waits up to `seconds` (< 0: without limit) until streams with `notify` have chunks; returns how many, at most `most`. Each
 * is returned once for each new chunk. One thread at a time, which is the one that reads and closes these streams.
 * quern_interrupt makes it, or the next call of it, return 0 at once. */
QUERN_API size_t quern_ready(struct quern_model *m, double seconds, struct quern_event *events, size_t most);
QUERN_API void quern_interrupt(struct quern_model *m);

/* A text as a vector of length 1, with the model's pooling. Free *vector with quern_free. Returns its width,
 * or -1. Texts of several threads share steps. */
QUERN_API long quern_embed(struct quern_model *m, const char *text, size_t n, float **vector,
                           struct quern_error *error);
/* `count` texts at once: *vectors is (count, width). prompt: the name of a text that the model's files put before such texts
 * ("query", "document"); NULL = the default one. */
QUERN_API long quern_embed_many(struct quern_model *m, const char *const *texts, const size_t *lengths,
                                size_t count, const char *prompt, float **vectors, struct quern_error *error);

/* The logits after each of the tokens from `first` on: *logits is (n - first, vocabulary), freed with quern_free. Returns
 * the number of rows, or -1. lora as in requests. */
QUERN_API long quern_logits(struct quern_model *m, const int32_t *ids, size_t n, size_t first,
                            const char *lora, float **logits, struct quern_error *error);

/* Text to ids; special != 0 parses control tokens in the text and adds what the model adds (BOS). Returns the
 * count, or -1; free *ids with quern_free. */
QUERN_API long quern_tokenize(struct quern_model *m, const char *text, size_t n, int special, int32_t **ids,
                              struct quern_error *error);
/* Ids to text; special != 0 writes control tokens, too. Returns the length, or -1; free *text, which ends with NUL, with
 * quern_free. */
QUERN_API long quern_detokenize(struct quern_model *m, const int32_t *ids, size_t n, int special, char **text,
                                struct quern_error *error);
/* The ids of a conversation's prompt, by the request's messages, tools and template_args. As quern_tokenize. */
QUERN_API long quern_prompt(struct quern_model *m, const struct quern_request *request, int32_t **ids,
                            struct quern_error *error);
QUERN_API void quern_free(void *p);

#ifdef __cplusplus
}
#endif
