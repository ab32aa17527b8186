/* quern info MODEL: what is in a model file, for people and as JSON. */
#include "run/vision.h"
#include "tool/tool.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "base/json.h"
#include "base/log.h"
#include "base/size.h"
#include "device/device.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "format/store.h"
#include "model/model.h"
#include "run/memory.h"
#include "run/runner.h"
#include "tool/facts.h"

#include <inttypes.h>
#include <string.h>

/* ---- JSON ---- */

static void info_json_text(struct json *j, const char *key, const char *value)
{
    json_key(j, key);
    json_str(j, *value ? value : NULL);
}

/* A missing fact is null; a missing count of experts is 0. */
static void info_json_count(struct json *j, const char *key, uint64_t value)
{
    json_key(j, key);
    if (value)
        json_uint(j, value);
    else
        json_nil(j);
}

static void info_json_uint(struct json *j, const char *key, uint64_t value)
{
    json_key(j, key);
    json_uint(j, value);
}

static double info_bits(const struct facts *f)
{
    return f->parameters ? 8.0 * (double)f->weights / (double)f->parameters : 0;
}

/* Bytes of the weights, and of the KV and state of a sequence of `tokens` tokens; 0 where it is not known or overflows. */
static uint64_t info_memory_at(const struct facts *f, uint64_t tokens)
{
    size_t bytes, window;
    uint32_t ctx = tokens < UINT32_MAX ? (uint32_t)tokens : UINT32_MAX;
    bool fits = size_mul(tokens, f->kv_per_token - f->kv_sliding, &bytes) &&
                size_mul(runner_kv_tokens(f->window, ctx, 1), f->kv_sliding, &window) &&
                size_add(bytes, window, &bytes) && size_add(bytes, f->weights, &bytes) &&
                size_add(bytes, f->state, &bytes);
    return tokens && fits ? bytes : 0;
}

static void info_json_memory(struct json *j, const struct facts *f)
{
    json_key(j, "memory");
    json_begin(j, '{');
    info_json_uint(j, "weights", f->weights);
    info_json_uint(j, "kv_per_token", f->kv_per_token);
    info_json_uint(j, "kv_sliding", f->kv_sliding);
    if (f->state)
        info_json_uint(j, "state", f->state);
    info_json_count(j, "at_4096", info_memory_at(f, 4096));
    info_json_count(j, "at_full", info_memory_at(f, f->context));
    json_end(j, '}');
}

static void info_json_facts(struct json *j, const struct store *s, const struct facts *f)
{
    info_json_text(j, "path", s->path);
    info_json_text(j, "format", s->gguf ? "gguf" : "safetensors");
    info_json_text(j, "architecture", f->architecture);
    if (*f->problem)
        info_json_text(j, "problem", f->problem);
    info_json_text(j, "name", f->name);
    info_json_text(j, "license", f->license);
    info_json_uint(j, "parameters", f->parameters);
    info_json_uint(j, "bytes", s->bytes);
    json_key(j, "bits_per_weight");
    json_num(j, info_bits(f));
    info_json_count(j, "context", f->context);
    info_json_count(j, "layers", f->layers);
    info_json_count(j, "width", f->width);
    info_json_count(j, "heads", f->heads);
    info_json_count(j, "kv_heads", f->kv_heads);
    info_json_count(j, "head_dim", f->head_dim);
    info_json_count(j, "ffn", f->ffn);
    info_json_uint(j, "experts", f->experts);
    info_json_count(j, "vocab", f->vocab);
    info_json_text(j, "tokenizer", f->tokenizer);
    json_key(j, "template");
    json_bool(j, f->template);
    json_key(j, "types");
    json_begin(j, '{');
    for (uint32_t t = 0; t < DTYPE_MOST; t++)
        if (f->types[t])
            info_json_uint(j, dtype_get(t)->name, f->types[t]);
    json_end(j, '}');
    info_json_memory(j, f);
}

static void info_json_value(struct json *j, const struct gguf_key *k, uint64_t i)
{
    if (k->item == GGUF_BOOL)
        json_bool(j, k->data[i] != 0);
    else if (k->item == GGUF_F32)
        json_f32(j, (float)gguf_item_f64(k, i));
    else if (k->item == GGUF_F64)
        json_num(j, gguf_item_f64(k, i));
    else if (k->item == GGUF_U64) {
        uint64_t v;
        memcpy(&v, k->data + i * sizeof v, sizeof v);
        json_uint(j, v);
    } else
        json_int(j, gguf_item_i64(k, i));
}

/* The value of a key, of an array the first `most` items. */
static void info_json_key(struct json *j, const struct gguf_key *k, uint64_t most)
{
    size_t at = 0;
    struct gguf_str text;
    struct gguf_key inner;
    if (k->type == GGUF_ARRAY)
        json_begin(j, '[');
    if (k->item == GGUF_STRING)
        for (uint64_t i = 0; i < most && gguf_next_str(k, &at, &text); i++)
            json_strn(j, text.s, text.n);
    else if (k->item == GGUF_ARRAY)
        for (uint64_t i = 0; i < most && gguf_next_array(k, &at, &inner); i++)
            info_json_key(j, &inner, most);
    else
        for (uint64_t i = 0; i < most && i < k->count; i++)
            info_json_value(j, k, i);
    if (k->type == GGUF_ARRAY)
        json_end(j, ']');
}

static void info_json_metadata(struct json *j, const struct store *s)
{
    json_key(j, "metadata");
    json_begin(j, '{');
    for (size_t i = 0; s->gguf && i < gguf_key_count(s->gguf); i++) {
        json_key(j, gguf_key_at(s->gguf, i)->name);
        info_json_key(j, gguf_key_at(s->gguf, i), UINT64_MAX); /* whole: files are compared by it */
    }
    const json_t *const parts[] = {s->config, s->generation, s->metadata};
    static const char *const names[] = {"config.json", "generation_config.json", "__metadata__"};
    for (int i = 0; i < 3; i++)
        if (parts[i]) {
            json_key(j, names[i]);
            jsonread_write(j, parts[i]);
        }
    json_end(j, '}');
}

/* Shapes are written as the file writes them: innermost first in a GGUF, outermost first in safetensors. */
static uint64_t info_dimension(const struct store *s, const struct tensor *t, uint32_t d)
{
    return t->shape[s->gguf ? d : t->dims - 1 - d];
}

static void info_json_tensors(struct json *j, const struct store *s)
{
    json_key(j, "tensors");
    json_begin(j, '[');
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        size_t offset = 0;
        const char *file = store_tensor_file(s, t, &offset);
        json_begin(j, '{');
        info_json_text(j, "name", t->name);
        info_json_text(j, "type", dtype_get(t->type)->name);
        json_key(j, "shape");
        json_begin(j, '[');
        for (uint32_t d = 0; d < t->dims; d++)
            json_uint(j, info_dimension(s, t, d));
        json_end(j, ']');
        info_json_uint(j, "bytes", t->bytes);
        info_json_text(j, "file", file);
        info_json_uint(j, "offset", offset);
        json_end(j, '}');
    }
    json_end(j, ']');
}

/* Rows of an image of 1,024 x 1,024 pixels: what it costs in tokens; 0 where the processor refuses it. */
static uint32_t info_image_tokens(const struct vision_params *v)
{
    struct vision_layout l;
    struct err none = {0};
    return vision_layout(&l, v, 1024, 1024, &none) ? 0 : l.rows;
}

static void info_json_images(struct json *j, const struct store *s)
{
    struct vision_params v;
    if (!vision_look(&v, s))
        return;
    json_key(j, "images");
    json_begin(j, '{');
    info_json_text(j, "projector", v.projector);
    info_json_uint(j, "layers", v.layers);
    info_json_uint(j, "width", v.width);
    info_json_uint(j, "heads", v.heads);
    info_json_uint(j, "patch", v.patch);
    info_json_uint(j, "merge", v.merge);
    info_json_uint(j, "tokens_1024", info_image_tokens(&v));
    json_end(j, '}');
}

static void info_json(struct buf *out, const struct store *s, const struct facts *f, bool metadata,
                      bool tensors)
{
    struct json j = {.out = out};
    json_begin(&j, '{');
    info_json_facts(&j, s, f);
    info_json_images(&j, s);
    if (metadata)
        info_json_metadata(&j, s);
    if (tensors)
        info_json_tensors(&j, s);
    json_end(&j, '}');
    buf_char(out, '\n');
}

/* ---- text ---- */

static void info_line(struct buf *out, const char *what)
{
    buf_printf(out, "\n  %-14s ", what);
}

static void info_count(struct buf *out, const char *what, uint64_t v)
{
    info_line(out, what);
    if (v)
        buf_printf(out, "%" PRIu64, v);
    else
        buf_str(out, "not said");
}

static void info_size(struct buf *out, const struct store *s, const struct facts *f)
{
    const char *between = "";
    info_line(out, "parameters");
    /* billions of parameters are written with a B */
    if (f->parameters >= 1000000000)
        buf_printf(out, "%.2f B", (double)f->parameters / 1e9);
    else
        tool_scaled(out, (double)f->parameters, "");
    info_line(out, "size");
    tool_scaled(out, (double)s->bytes, "B");
    if (!f->parameters)
        return;
    buf_printf(out, ", %.2f bits a weight (", info_bits(f));
    for (uint32_t t = 0; t < DTYPE_MOST; t++)
        if (f->types[t]) {
            buf_printf(out, "%s%" PRIu64 " %s", between, f->types[t], dtype_get(t)->name);
            between = ", ";
        }
    buf_str(out, ")");
}

/* Types that the GPU has no kernels for. */
static void info_decoded(struct buf *out, const struct facts *f)
{
    bool any = false;
    for (uint32_t t = 0; t < DTYPE_MOST; t++) {
        if (!f->types[t] || cuda_has_type(t))
            continue;
        if (!any)
            info_line(out, "on a GPU");
        buf_printf(out, "%s%" PRIu64 " %s", any ? ", " : "", f->types[t], dtype_get(t)->name);
        any = true;
    }
    if (any)
        buf_str(out, " are decoded to F16 at load");
}

/* What a token takes, and how many there is room for now. */
static void info_token(struct buf *out, const struct facts *f)
{
    struct memory m;
    memory_read(&m);
    uint64_t room = memory_for_model(&m), fixed = info_memory_at(f, 1),
             each = f->kv_per_token - f->kv_sliding;
    info_line(out, "a token");
    tool_scaled(out, (double)f->kv_per_token, "B");
    buf_str(out, " of F16 keys and values");
    if (each && fixed && room > fixed)
        buf_printf(out, "; %" PRIu64 " fit into the memory that is free", (room - fixed) / each);
}

static void info_memory(struct buf *out, const struct facts *f)
{
    info_line(out, "memory");
    tool_scaled(out, (double)f->weights, "B");
    buf_str(out, " for the weights");
    if (f->state) {
        info_line(out, "a sequence");
        tool_scaled(out, (double)f->state, "B");
        buf_str(out, " of recurrent state");
    }
    if (!f->kv_per_token)
        return;
    info_token(out, f);
    const struct {
        const char *what;
        uint64_t tokens;
    } rows[] = {{"at 4k", 4096}, {"at full", f->context}};
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = info_memory_at(f, rows[i].tokens);
        if (!bytes)
            continue;
        info_line(out, rows[i].what);
        tool_scaled(out, (double)bytes, "B");
        buf_printf(out, " with %" PRIu64 " tokens of F16 keys and values", rows[i].tokens);
        if (f->kv_sliding)
            buf_printf(out, ", of which %.0f %% see %" PRIu32 " only",
                       100.0 * (double)f->kv_sliding / (double)f->kv_per_token, f->window);
    }
}

static void info_text(struct buf *out, const struct store *s, const struct facts *f)
{
    buf_str(out, *f->name ? log_safe(f->name) : "a model without a name");
    info_line(out, "architecture");
    buf_printf(out, "%s (%s)", *f->architecture ? log_safe(f->architecture) : "not said",
               s->gguf ? "GGUF" : "safetensors");
    if (*f->problem) {
        info_line(out, "cannot run");
        buf_str(out, f->problem);
    }
    info_size(out, s, f);
    info_count(out, "context", f->context);
    info_count(out, "layers", f->layers);
    info_count(out, "width", f->width);
    info_count(out, "heads", f->heads);
    info_count(out, "kv heads", f->kv_heads);
    info_count(out, "head width", f->head_dim);
    info_count(out, "ffn", f->ffn);
    if (f->experts)
        info_count(out, "experts", f->experts);
    info_count(out, "vocabulary", f->vocab);
    info_line(out, "tokenizer");
    buf_str(out, *f->tokenizer ? log_safe(f->tokenizer) : "none");
    info_line(out, "template");
    buf_str(out, f->template ? "yes" : "no");
    info_line(out, "licence");
    buf_str(out, *f->license ? log_safe(f->license) : "not said");
    struct vision_params v;
    if (vision_look(&v, s)) {
        info_line(out, "images");
        buf_printf(out, "tower of %u layers, width %u, patches of %u (%s); 1024 x 1024 pixels take %u tokens",
                   v.layers, v.width, v.patch, log_safe(v.projector), info_image_tokens(&v));
    }
    info_memory(out, f);
    info_decoded(out, f);
    buf_char(out, '\n');
}

static void info_text_gguf(struct buf *out, const struct gguf *g, struct buf *value)
{
    enum { ITEMS = 16 };
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        struct json j = {.out = value};
        buf_clear(value);
        info_json_key(&j, k, ITEMS);
        buf_printf(out, "  %-44s %s", log_safe(k->name), gguf_type_name(k->item));
        if (k->type == GGUF_ARRAY)
            buf_printf(out, "[%" PRIu64 "]", k->count);
        if (k->count > ITEMS)
            buf_str(value, "...");
        buf_printf(out, " %s\n", log_safe_n(value->data, value->len));
    }
}

static void info_text_metadata(struct buf *out, const struct store *s)
{
    struct buf value = {0};
    buf_char(out, '\n');
    if (s->gguf)
        info_text_gguf(out, s->gguf, &value);
    const json_t *const parts[] = {s->config, s->generation, s->metadata};
    for (int i = 0; i < 3; i++) {
        const char *key;
        json_t *item;
        json_object_foreach((json_t *)(uintptr_t)parts[i], key, item)
        {
            struct json j = {.out = &value};
            buf_clear(&value);
            jsonread_write(&j, item);
            buf_printf(out, "  %-44s %s\n", log_safe(key), log_safe_n(value.data, value.len));
        }
    }
    buf_free(&value);
}

static void info_text_tensors(struct buf *out, const struct store *s)
{
    buf_char(out, '\n');
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        buf_printf(out, "  %-44s %-8s", log_safe(t->name), dtype_get(t->type)->name);
        for (uint32_t d = 0; d < t->dims; d++)
            buf_printf(out, "%s%" PRIu64, d ? " x " : "", info_dimension(s, t, d));
        buf_char(out, '\n');
    }
}

/* The operations of a forward pass, one a line; or the launches that a card runs them with. */
static int info_plan(const struct args *a, struct buf *out, const struct store *s, struct err *e)
{
    const char *device = args_text(a, "device");
    const struct cuda_explain how = {.rows = (uint32_t)args_int(a, "rows", 1),
                                     .keys = (uint32_t)args_int(a, "keys", 512),
                                     .prompt = args_flag(a, "prompt")};
    const bool cuda = device && !strcmp(device, "cuda");
    if (device && !cuda && strcmp(device, "cpu") != 0)
        return err_set(e, ERR_USAGE, "--device %s: cpu or cuda was expected", log_safe(device));
    struct model *m;
    if (model_open(&m, s, &(struct model_options){0}, e))
        return -1;
    buf_char(out, '\n');
    int bad = cuda ? cuda_explain(&m->plan, &m->weights, &how, out, e) : 0;
    if (!cuda)
        plan_print(&m->plan, &m->weights, out);
    model_close(m);
    return bad;
}

static int info_run(const struct args *a, struct err *e)
{
    struct store *s;
    struct facts f;
    struct buf out = {0};
    if (tool_open(&s, a->count ? a->words[0] : NULL, e) < 0)
        return -1;
    int result = facts_read(&f, s, e);
    bool metadata = args_flag(a, "metadata"), tensors = args_flag(a, "tensors");
    if (!result && args_flag(a, "json")) {
        info_json(&out, s, &f, metadata, tensors);
    } else if (!result) {
        info_text(&out, s, &f);
        if (metadata)
            info_text_metadata(&out, s);
        if (tensors)
            info_text_tensors(&out, s);
        if (args_flag(a, "plan"))
            result = info_plan(a, &out, s, e);
    }
    result = result < 0 ? (buf_free(&out), -1) : tool_print(&out, e);
    store_close(s);
    return result;
}

static const struct arg_option info_options[] = {
    {.name = "tensors", .help = "list the tensors: name, type, shape (in the order of the file)"},
    {.name = "metadata", .help = "list the keys of the file, or of config.json"},
    {.name = "plan", .help = "list the operations of a forward pass"},
    {.name = "device",
     .kind = ARG_TEXT,
     .value = "NAME",
     .help = "with --plan: cuda lists the kernels that each operation is launched as, and why (no card is "
             "needed)"},
    {.name = "rows",
     .kind = ARG_INT,
     .value = "N",
     .least = 1,
     .most = 4096,
     .help = "with --plan --device cuda: for this number of sequences that decode (default 1)"},
    {.name = "prompt", .help = "with --rows: for a prompt of as many tokens instead"},
    {.name = "keys",
     .kind = ARG_INT,
     .value = "N",
     .least = 1,
     .most = 1 << 24,
     .help = "with --plan --device cuda: tokens in KV (default 512)"},
    {.name = "json", .help = "one JSON object, with the lists inside where they are asked for"},
    {0},
};

const struct tool_verb tool_info = {
    .name = "info",
    .words = "[MODEL]",
    .brief = "print a model's shape, size and memory needs",
    .more = "  quern info smollm2\n"
            "  quern info model.gguf --tensors\n"
            "  quern info model.gguf --plan --device cuda --rows 8\n"
            "  quern info ./Qwen3-0.6B --json | jq .memory\n",
    .options = info_options,
    .most = 1,
    .run = info_run,
};
