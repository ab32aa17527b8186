/* quern perplexity: how well a model predicts a text. */
#include "base/file.h"
#include "base/json.h"
#include "run/perplexity.h"
#include "tool/load.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <stdio.h>

enum { PERPLEXITY_CTX = 512, PERPLEXITY_OUTS = 64 };

static const struct arg_option perplexity_options[] = {
    {"file", 'f', ARG_TEXT, "FILE", "the text ('-': standard input)", 0, 0},
    {"chunks", 0, ARG_INT, "N", "only the first N chunks", 1, 1 << 24},
    {"json", 0, ARG_FLAG, NULL, "print one JSON object", 0, 0},
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

static void perplexity_show(void *arg, uint32_t done, uint32_t of, double value)
{
    char note[32];
    snprintf(note, sizeof note, "%.4f", value);
    progress_show(arg, (double)done / of, note);
}

static int perplexity_print(const struct perplexity *p, uint32_t ctx, bool json, struct err *e)
{
    struct buf out = {0};
    if (json) {
        struct json j = {.out = &out};
        json_begin(&j, '{');
        json_key(&j, "perplexity");
        json_num(&j, p->value);
        json_key(&j, "error");
        json_num(&j, p->error);
        json_key(&j, "chunks");
        json_uint(&j, p->chunks);
        json_key(&j, "context");
        json_uint(&j, ctx);
        json_key(&j, "scored");
        json_uint(&j, p->scored);
        json_end(&j, '}');
        buf_char(&out, '\n');
    } else {
        buf_printf(&out, "perplexity %.4f +- %.4f over %u chunks of %u tokens (%llu scored)\n", p->value,
                   p->error, p->chunks, ctx, (unsigned long long)p->scored);
    }
    return tool_print(&out, e);
}

static int perplexity_measure(struct loaded *l, struct seq *s, const struct args *a, struct err *e)
{
    struct buf text = {0};
    struct ids ids = {0};
    struct perplexity p;
    struct progress bar;
    struct perplexity_options o = {
        .ctx = l->runner->ctx,
        .chunks = (uint32_t)args_int(a, "chunks", 0),
        .bos = tokenizer_adds_bos(l->tokenizer) ? tokenizer_id(l->tokenizer, TOK_BOS) : -1,
        .progress = perplexity_show,
        .arg = &bar,
    };
    int failed = file_read(args_text(a, "file"), &text, e) ||
                 tokenizer_encode(l->tokenizer, text.data ? text.data : "", text.len, TOK_ADD, &ids, e);
    if (!failed) {
        progress_start(&bar, "perplexity");
        failed = perplexity_run(s, ids.data, ids.len, &o, &p, e);
        progress_end(&bar);
    }
    if (!failed)
        failed = perplexity_print(&p, o.ctx, args_flag(a, "json"), e);
    buf_free(&text);
    ids_free(&ids);
    return failed ? -1 : 0;
}

static int perplexity_verb(const struct args *a, struct err *e)
{
    struct loaded *l = NULL;
    struct loaded_options o = {.runner = {.ctx = PERPLEXITY_CTX, .outs = PERPLEXITY_OUTS}};
    if (!args_text(a, "file"))
        return err_set(e, ERR_USAGE, "quern perplexity wants a text: -f FILE");
    if (args_int(a, "ctx", PERPLEXITY_CTX) < 4)
        return err_set(e, ERR_USAGE, "--ctx has to be at least 4 here");
    if (load_model(&l, a->words[0], &o, a, e))
        return -1;
    struct seq *s = load_predicts(l->model, l->store->path, e) ? NULL : load_seq(l, e);
    int failed = !s || perplexity_measure(l, s, a, e);
    seq_close(s);
    loaded_close(l);
    return failed ? -1 : 0;
}

const struct tool_verb tool_perplexity = {
    .name = "perplexity",
    .words = "MODEL",
    .brief = "how well a model predicts a text (lower is better)",
    .more = "The scheme is llama.cpp's: chunks of --ctx tokens (512), the second half of each scored,\n"
            "BOS at the start of each chunk where the model has one.\n",
    .options = perplexity_options,
    .least = 1,
    .most = 1,
    .run = perplexity_verb,
};
