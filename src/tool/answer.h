/* One request in the terminal: prompt ids in, text streamed to standard output, Ctrl-C ends it. Shared by
 * `quern run` with a prompt and by the chat. */
#pragma once

#include "run/engine.h"
#include "run/session.h"

#include <jansson.h>
#include <stdbool.h>

struct answer_options {
    const struct sampler_params *sampler;
    uint32_t most;                   /* tokens; 0 = no limit but the context */
    const char *const *stop_strings; /* (stops) */
    size_t stops;
    struct constraint_ref *constraint; /* the answer's constraint; NULL = none */
    struct wrap *wrap;                 /* breaks lines at words; NULL = as they are */
    bool quiet;                        /* nothing is streamed: --json */
    bool special;                      /* show control tokens */
    bool ignore_eog;
    struct reasoning_rule reasoning; /* answer_reasoning */
    struct adapter_mix lora;
    const struct prompt_image *images; /* (image_count) of the prompt */
    uint32_t image_count;
};

/* The prompt: through the model's template, or raw. */
struct answer_prompt {
    const char *text;
    size_t n;
    const char *system; /* NULL = none */
    const json_t *set;  /* variables of the template; NULL = none */
    bool raw;
    struct picture *const
        *pictures; /* (picture_count): in front of the text, or where a raw one has IMAGE_TEXT_MARK */
    uint32_t picture_count;
    struct prompt_image *images; /* (picture_count): gets their places */
};
int answer_prompt_ids(const struct session *l, const struct answer_prompt *p, struct ids *out, struct err *e);

/* The session's budget of reasoning, for this prompt. */
struct reasoning_rule answer_reasoning(const struct session *l, const struct ids *prompt);

struct generation {
    struct buf text; /* all of it */
    struct ids ids;  /* what was sampled, stop token included */
    enum finish_kind finish;
    bool context_full; /* FINISH_LENGTH because the context ended */
    uint32_t prompt;   /* tokens of the prompt */
    uint32_t cached;   /* how many of them were in the cache */
    uint32_t reasoned; /* tokens of reasoning in ids */
    uint32_t drafted, accepted,
        forced; /* draft tokens verified, accepted, and of those forced by the constraint */
    double first_seconds, decode_seconds; /* until the first token, after it */
};

/* Appends to *out, which the caller zeroes first and frees afterwards; after an error it holds what came before. */
int answer_run(struct engine *g, const struct ids *prompt, const struct answer_options *o,
               struct generation *out, struct err *e);
void generation_free(struct generation *g);

/* "prompt 31 tokens, 350 tok/s; answer 128 tokens, 40.1 tok/s; ..." on stderr */
void answer_stats(const struct session *l, const struct generation *g);
