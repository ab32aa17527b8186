/* A model ready for inference: its file, weights and plan, tokenizer, chat template, and a runner. Opened and
 * used by one thread, unless a function says otherwise. */
#pragma once

#include "base/err.h"
#include "lang/chat/chat.h"
#include "lang/grammar/constraint.h"
#include "lang/chat/output.h"
#include "lang/token/tokenizer.h"
#include "model/model.h"
#include "quant/recipe.h"
#include "run/adapters.h"
#include "run/constraint_cache.h"
#include "run/picture.h"
#include "run/runner.h"
#include "run/sampler.h"
#include "run/vision.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { SESSION_CTX = 8192 }; /* default tokens of context: at most this, at most the model's */

struct session_options {
    struct runner_options runner; /* ctx 0: as above */
    const char *chat_template;    /* text of a template instead of the model's own; NULL = its own */
    const char *tool_parser;      /* name of a form of tool calls; NULL = as the template says */
    const char *reasoning;        /* name of a form of reasoning, or "none"; NULL = as the template says */
    bool reasoning_limited;       /* reasoning has a budget, where requests have none of their own: */
    uint32_t reasoning_budget;    /* in tokens */
    bool lock;                    /* keep the weights in memory (mlock) */
    bool no_text;                 /* neither tokenizer nor template are needed: ids in, logits out */
    bool hidden;                  /* results are the final rows (embeddings), not logits */
    const struct recipe *quant;   /* quantise while loading; NULL = weights as they are */
    const char *mmproj;           /* the file of the tower for images; NULL: as found beside the model */
    bool no_images;               /* no tower is opened */
    const char *const *lora;      /* (loras): adapters, each "NAME=PATH[:SCALE]" or "PATH[:SCALE]" */
    size_t loras;
    uint32_t lora_places, lora_rank; /* for adapters that come later (engine_load_adapter); 0 = none come */
    uint64_t lora_bytes;             /* that those may take */
    const char *name;                /* that it was asked for by; NULL = by its path */
    const json_t *preset; /* settings of its own: parameters, system, messages (hub/preset.h); NULL = none */
};

struct session {
    struct store *store;
    struct model *model;
    struct tokenizer *tokenizer; /* NULL with no_text */
    struct chat *chat;           /* NULL where the model has no template: chat_why says so */
    struct err chat_why;
    const struct output_form *form;       /* how it writes calls of tools */
    const struct output_thought *thought; /* and reasoning; NULL = reasoning is text */
    uint32_t reasoning_budget;            /* default of requests; REASONING_UNLIMITED = none */
    bool marks_hidden;                    /* some of these marks are control tokens */
    const struct vision_params *vision;   /* what its tower takes; NULL = it reads only text */
    struct runner *runner;
    struct vision *tower;              /* the same, with what runs it; NULL = it reads only text */
    struct sampler_params defaults;    /* ours, then what the model's files say */
    struct sampler_room *sampler_room; /* of the engine's thread */
    int32_t *stop_ids;                 /* (stops): eos_token_id of generation_config.json */
    size_t stops;
    uint64_t kv_bytes; /* of all pages of KV */
    double seconds;    /* to open all of it */
    struct adapters adapters;
    json_t *preset;            /* as in the options, or NULL */
    const char **preset_stops; /* (preset_stop_count): stop strings of requests that have none */
    size_t preset_stop_count;
    uint32_t preset_most; /* tokens of an answer where a request does not say; 0 = no limit */
    pthread_mutex_t lock;
    struct constraint_vocab *vocab, *call_vocab; /* created on first use, under the lock */
    struct constraint_cache *constraints;        /* in these vocabularies */
};

/* Takes over the store, also when it fails. */
int session_open(struct session **out, struct store *store, const struct session_options *o, struct err *e);
void session_close(struct session *l);

/* A file of the model was changed while it was in use: its steps fail with ERR_CHANGED. Does not check the
 * file; any thread. */
bool session_is_changed(const struct session *l);
/* The default context. */
uint32_t session_context(const struct hparams *h);
/* Does this token end a generation. */
bool session_ends(const struct session *l, int32_t id);
/* The vocabulary for constraints; thread-safe. NULL and an error: there is no tokenizer, or no memory. */
const struct constraint_vocab *session_vocab(struct session *l, struct err *e);
/* The same with the control tokens that calls are written with. */
const struct constraint_vocab *session_call_vocab(struct session *l, struct err *e);

/* A digest of what KV is computed with, except adapters: weights, plan, settings and kernels. Reads all
 * weights. */
struct digest session_digest(const struct session *l);

/* The prompt of a conversation, as ids: template, then tokenizer. tools and set (extra template variables) may be NULL. */
struct prompt_request {
    const json_t *messages, *tools, *set;
    bool no_generation_prompt;
    bool continue_final; /* the output continues the last message: no new turn */
    /* Messages have a part {"type": "image"} for each picture; `images` gets their places. */
    struct picture *const *pictures; /* (picture_count) */
    uint32_t picture_count;
    struct prompt_image *images; /* (picture_count) */
};
int session_prompt(const struct session *l, const struct prompt_request *r, struct ids *out, struct err *e);
/* A plain text, with IMAGE_TEXT_MARK for each picture of r; bare: without BOS and the like. */
int session_plain_prompt(const struct session *l, const struct prompt_request *r, const char *text, size_t n,
                         bool bare, struct ids *out, struct err *e);
