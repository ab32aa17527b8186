/* quern batch: runs the requests of a file, without a server. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/name.h"
#include "media/decoder.h"
#include "serve/limit.h"
#include "serve/server.h"
#include "tool/batch_file.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/slots.h"
#include "tool/speculate.h"
#include "tool/tool.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { BATCH_SLOTS = 16 /* on a CPU, and the fewest on a GPU */, BATCH_TEXTS = 32, BATCH_PATIENCE = 86400 };

static const struct arg_option batch_options[] = {
    {"output", 'o', ARG_TEXT, "FILE", "the replies, one a line; what it has already is not run again", 0, 0},
    {"errors", 0, ARG_TEXT, "FILE", "requests that failed (default: the output's name with .errors.jsonl)", 0,
     0},
    {"slots", 0, ARG_INT, "N",
     "requests generated at once (default: 16; on a GPU 16, 32, 64 or 128, at most its memory in GiB)", 1,
     256},
    {"limit", 0, ARG_TEXT, "NAME=N", "a limit of requests, as of quern serve; may be repeated", 0, 0},
    {"template", 0, ARG_TEXT, "FILE", "a chat template instead of the model's own", 0, 0},
    {"tool-parser", 0, ARG_TEXT, "NAME", "how the model writes tool calls (default: from its template)", 0,
     0},
    {"reasoning", 0, ARG_TEXT, "NAME",
     "how the model marks reasoning, or 'none' (default: from its template)", 0, 0},
    LOAD_REASONING,
    SPECULATE_OPTIONS,
    LOAD_CACHE,
    IMAGES_TOWER,
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

struct batch_command {
    const struct args *a;
    struct batch_file file;
    struct models_options m;
    struct models *models;
    struct decoder *decoder; /* of images */
    struct buf chat_template;
    char path[PATH_MAX], errors[PATH_MAX];
};

static int batch_list(void *arg, struct model_list *out, struct err *e)
{
    struct batch_command *b = arg;
    char *name = model_name(b->path);
    int failed = name ? model_list_add(out, name, b->path, e) : err_memory(e, "a name", strlen(b->path));
    mem_free(name);
    return failed;
}

static int batch_open(void *arg, struct session **out, const char *path, const struct session_options *o,
                      struct err *e)
{
    struct batch_command *b = arg;
    struct session_options own = *o;
    struct engine_options *g = &b->m.engine;
    own.chat_template = b->chat_template.data;
    own.tool_parser = args_text(b->a, "tool-parser");
    own.reasoning = args_text(b->a, "reasoning");
    if ((!own.hidden && speculate_read(b->a, g, &own, e)) || load_model(out, path, &own, b->a, e))
        return -1;
    if (own.hidden || g->draft_model || !speculate_load(b->a, args_text(b->a, "draft"), g, *out, e))
        return 0;
    session_close(*out);
    *out = NULL;
    return -1;
}

/* The file of errors: OUT.jsonl has OUT.errors.jsonl. */
static int batch_errors_path(struct batch_command *b, const char *out, struct err *e)
{
    const char *given = args_text(b->a, "errors"), *dot = strrchr(out, '.');
    size_t n = dot && !strchr(dot, '/') ? (size_t)(dot - out) : strlen(out);
    int length = given ? snprintf(b->errors, sizeof b->errors, "%s", given)
                       : snprintf(b->errors, sizeof b->errors, "%.*s.errors.jsonl", (int)n, out);
    if (length < 0 || (size_t)length >= sizeof b->errors)
        return err_set(e, ERR_USAGE, "--output is too long");
    return strcmp(b->errors, out) != 0
               ? 0
               : err_set(e, ERR_USAGE, "--errors has to be another file than --output");
}

static int batch_read(struct batch_command *b, struct err *e)
{
    const char *out = args_text(b->a, "output"), *file = args_text(b->a, "template"), *word;
    int at = 0;
    while ((word = args_next(b->a, "limit", &at)))
        if (limit_set(word, e))
            return -1;
    if (!out)
        return err_set(e, ERR_USAGE, "quern batch needs --output FILE");
    if (batch_errors_path(b, out, e) || (file && file_read(file, &b->chat_template, e)))
        return -1;
    b->m = (struct models_options){.keep = MODELS_KEEP_FOREVER,
                                   .patience = BATCH_PATIENCE,
                                   .ctx = (uint32_t)args_int(b->a, "ctx", 0),
                                   .texts = BATCH_TEXTS,
                                   .list = batch_list,
                                   .open = batch_open,
                                   .arg = b,
                                   .chat_template = b->chat_template.data};
    b->m.engine.slots = (uint32_t)args_int(b->a, "slots", 0);
    return load_cache(b->a, &b->m.engine, e) ? -1
                                             : batch_file_open(&b->file, b->a->words[0], out, b->errors, e);
}

/* What is left is run by a server without an address. */
static int batch_serve(struct batch_command *b, struct err *e)
{
    const char *model = b->a->count > 1 ? b->a->words[1] : HUB_DEFAULT;
    struct batch_file *f = &b->file;
    if (tool_model_path(model, b->path, sizeof b->path, e))
        return -1;
    if (!b->m.engine.slots)
        b->m.engine.slots = slots_default(b->a, BATCH_SLOTS);
    const struct batch_feed feed = {
        .next = batch_file_next, .done = batch_file_done, .arg = f, .most = 2 * b->m.engine.slots + 2};
    if (decoder_start(&b->decoder, e))
        return -1;
    const struct server_options o = {.notify = -1, .one_model = true, .feed = &feed, .decoder = b->decoder};
    if (f->before)
        log_info("%zu of %zu lines are done; going on with the rest", f->before, f->count);
    return models_open(&b->models, &b->m, e) ? -1
                                             : server_run(b->models, &o, &(struct server_sockets){-1, -1}, e);
}

static int batch_all(struct batch_command *b, struct err *e)
{
    struct batch_file *f = &b->file;
    if (batch_read(b, e) || (f->done < f->count && batch_serve(b, e)))
        return -1;
    progress_end(&f->progress);
    if (f->done < f->count)
        return err_set(e, ERR_INTERRUPTED,
                       "stopped after %zu of %zu lines; the same command goes on from here", f->done,
                       f->count);
    if (f->failed)
        return err_set(e, ERR_DATA, "%zu of %zu lines failed: %s has the errors", f->failed, f->count,
                       log_safe(f->errors.path));
    log_info("%zu lines are done", f->count);
    return 0;
}

static int batch_run(const struct args *a, struct err *e)
{
    struct batch_command *b = mem_zalloc(1, sizeof *b);
    if (!b)
        return err_memory(e, "the batch", sizeof *b);
    b->a = a;
    b->chat_template.max = 4 << 20;
    b->file = (struct batch_file){.in.fd = -1, .out.fd = -1, .errors.fd = -1};
    mem_give_back();
    int failed = batch_all(b, e);
    models_close(b->models);
    session_close(b->m.engine.draft_model);
    decoder_stop(b->decoder);
    failed |= batch_file_close(&b->file, e);
    buf_free(&b->chat_template);
    mem_free(b);
    return failed ? -1 : 0;
}

const struct tool_verb tool_batch = {
    .name = "batch",
    .words = "FILE [MODEL]",
    .brief = "run a file of requests, without a server",
    .more =
        "FILE has lines as those of OpenAI's Batch API, with custom_id, method, url and body:\n"
        "  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {...}}\n"
        "The model answers all of them, whatever model they name. After a stop of any kind the same\n"
        "command goes on with the lines that have no reply yet.\n"
        "  quern batch in.jsonl -o out.jsonl\n"
        "  quern batch in.jsonl -o out.jsonl model.gguf --slots 32\n",
    .options = batch_options,
    .least = 1,
    .most = 2,
    .run = batch_run,
};
