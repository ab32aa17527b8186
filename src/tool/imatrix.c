/* quern imatrix: runs a text through a model and writes the mean squares of the inputs of its matrix
 * products. */
#include "quant/imatrix.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "quant/collect.h"
#include "tool/answer.h"
#include "tool/interrupt.h"
#include "tool/load.h"
#include "tool/output_file.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <string.h>

enum { IMATRIX_CTX = 512 };

static const struct arg_option imatrix_options[] = {
    {"file", 'f', ARG_TEXT, "FILE", "the text ('-': standard input)", 0, 0},
    {"output", 'o', ARG_TEXT, "OUT", "the importance matrix (GGUF)", 0, 0},
    {"chunks", 0, ARG_INT, "N", "only the first N chunks", 1, 1 << 24},
    {"head", 0, ARG_FLAG, NULL, "collect for the output head too", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON object", 0, 0},
    OUTPUT_OPTIONS,
    LOAD_OPTIONS,
    {0},
};

/* Chunk by chunk, each from an empty context. */
static int imatrix_feed(struct session *l, const struct ids *ids, uint32_t chunks, struct err *e)
{
    struct progress bar;
    uint32_t ctx = l->runner->ctx;
    int32_t bos = tokenizer_adds_bos(l->tokenizer) ? tokenizer_id(l->tokenizer, TOK_BOS) : -1;
    struct seq *s = seq_open(l->runner, e);
    int failed = s ? 0 : -1;
    interrupt_catch();
    progress_start(&bar, "collecting");
    for (uint32_t c = 0; c < chunks && !failed; c++) {
        int32_t *chunk = ids->data + (size_t)c * ctx;
        if (bos >= 0)
            chunk[0] = bos;
        seq_truncate(s, 0);
        failed = interrupted() ? err_set(e, ERR_INTERRUPTED, "interrupted") : seq_feed(s, chunk, ctx, e);
        progress_show(&bar, (double)(c + 1) / chunks, NULL);
    }
    progress_end(&bar);
    seq_close(s);
    return failed;
}

static int imatrix_ids(const struct session *l, const char *path, struct ids *ids, struct err *e)
{
    struct buf text = {0};
    int failed = file_read(path, &text, e) ||
                 tokenizer_encode(l->tokenizer, text.data ? text.data : "", text.len, TOK_ADD, ids, e);
    buf_free(&text);
    if (!failed && ids->len < l->runner->ctx)
        failed =
            err_set(e, ERR_DATA, "the text has %zu tokens; at least %u are needed", ids->len, l->runner->ctx);
    return failed ? -1 : 0;
}

static int imatrix_print(const struct imatrix *m, const char *path, double seconds, bool as_json,
                         struct err *e)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    if (!as_json) {
        buf_printf(&out, "%s: %zu tensors over %u chunks of %u tokens, %.1f s\n", path, m->count, m->chunks,
                   m->chunk_size, seconds);
        return tool_print(&out, e);
    }
    json_begin(&j, '{');
    json_key(&j, "path");
    json_str(&j, path);
    json_key(&j, "tensors");
    json_uint(&j, m->count);
    json_key(&j, "chunks");
    json_uint(&j, m->chunks);
    json_key(&j, "context");
    json_uint(&j, m->chunk_size);
    json_key(&j, "seconds");
    json_num(&j, seconds);
    json_end(&j, '}');
    buf_char(&out, '\n');
    return tool_print(&out, e);
}

static int imatrix_collect(struct session *l, const struct args *a, struct err *e)
{
    struct collect c = {0};
    struct imatrix m = {.dataset = args_text(a, "file"), .chunk_size = l->runner->ctx};
    struct ids ids = {0};
    double start = clock_now();
    uint32_t most = (uint32_t)args_int(a, "chunks", 0);
    int failed =
        imatrix_ids(l, args_text(a, "file"), &ids, e) || collect_open(&c, l->model, args_flag(a, "head"), e);
    if (!failed) {
        m.chunks = (uint32_t)(ids.len / l->runner->ctx);
        m.chunks = most && most < m.chunks ? most : m.chunks;
        l->runner->device->watch = collect_watch;
        l->runner->device->watch_arg = &c;
        failed = imatrix_feed(l, &ids, m.chunks, e);
        l->runner->device->watch = NULL;
    }
    failed = failed || collect_result(&c, &m, e) || imatrix_write(&m, args_text(a, "output"), e) ||
             imatrix_print(&m, args_text(a, "output"), clock_now() - start, args_flag(a, "json"), e);
    collect_close(&c);
    imatrix_free(&m);
    ids_free(&ids);
    return failed ? -1 : 0;
}

static int imatrix_verb(const struct args *a, struct err *e)
{
    struct session *l = NULL;
    /* only the float path has the inputs of products as they are */
    struct session_options o = {
        .runner = {.ctx = IMATRIX_CTX, .device = "cpu", .device_options = {.exact = true}}};
    const char *device = args_text(a, "device");
    if (!args_text(a, "file") || !args_text(a, "output"))
        return err_set(e, ERR_USAGE, "quern imatrix wants a text and a place for the result: -f FILE -o OUT");
    if (device && strcmp(device, "cpu"))
        return err_set(e, ERR_USAGE, "an importance matrix is collected on the CPU, not on %s", device);
    struct output_file output = {.force = args_flag(a, "force")};
    int failed = output_file_reads_model(&output, a->words[0], e) ||
                 output_file_reads(&output, args_text(a, "file"), e) ||
                 output_file_allow(&output, args_text(a, "output"), e) ||
                 load_model(&l, a->words[0], &o, a, e) || imatrix_collect(l, a, e);
    session_close(l);
    output_file_free(&output);
    return failed ? -1 : 0;
}

const struct tool_verb tool_imatrix = {
    .name = "imatrix",
    .words = "MODEL",
    .brief = "collect an importance matrix for quantize",
    .more = "The file is llama.cpp's (GGUF). Chunks of --ctx tokens (512) of the text are read, each from an "
            "empty\n"
            "context.\n\n"
            "  quern imatrix model-f16.gguf -f text.txt -o model.imatrix\n",
    .options = imatrix_options,
    .least = 1,
    .most = 1,
    .run = imatrix_verb,
};
