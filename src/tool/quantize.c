/* quern quantize: a model into a GGUF file of other types. */
#define _GNU_SOURCE
#include "quant/quantize.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/vision/params.h"
#include "tool/check.h"
#include "tool/load.h"
#include "tool/output_file.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static volatile int quantize_stop;

static void quantize_interrupted(int signal)
{
    (void)signal;
    quantize_stop = 1;
}

static void quantize_show(void *arg, double share)
{
    progress_show(arg, share, NULL);
}

/* PATTERN=TYPE, as often as it is given. */
static int quantize_overrides(const struct args *a, struct quantize_options *o,
                              struct quantize_override **out, struct arena *texts, struct err *e)
{
    int at = 0;
    size_t n = 0;
    while (args_next(a, "tensor", &at))
        n++;
    *out = mem_alloc(n + 1, sizeof **out);
    if (!*out)
        return err_memory(e, "options", n);
    at = 0;
    for (const char *text; (text = args_next(a, "tensor", &at));) {
        const char *eq = strrchr(text, '=');
        int type = eq ? dtype_find(eq + 1) : -1;
        if (!eq || eq == text || type < 0 || !dtype_get((uint32_t)type)->encode || type >= DTYPE_F8_E4M3)
            return err_set(e, ERR_USAGE, "--tensor wants PATTERN=TYPE with a type such as Q6_K, not '%s'",
                           log_safe(text));
        struct quantize_override *one = &(*out)[o->override_count++];
        one->type = (uint32_t)type;
        if (!(one->pattern = arena_strndup(texts, text, (size_t)(eq - text))))
            return err_memory(e, "options", strlen(text));
    }
    o->overrides = *out;
    return 0;
}

/* A file that was written: the model, or its tower for images. */
struct quantize_file {
    const char *path;
    const struct recipe *recipe; /* NULL: it is not wanted */
    struct quantize_result r;
    double seconds;
};

struct quantize_report {
    struct quantize_file model, tower;
    bool has_tower;
    struct check check;
    struct output_file output;
};

/* A type that could not be used. */
static void quantize_json_swap(struct json *j, const struct recipe_swap *s)
{
    json_begin(j, '{');
    json_key(j, "wanted");
    json_str(j, dtype_get(s->wanted)->name);
    json_key(j, "type");
    json_str(j, dtype_get(s->type)->name);
    json_key(j, "tensors");
    json_uint(j, s->tensors);
    json_end(j, '}');
}

/* The fields of a file. */
static void quantize_json_file(struct json *j, const struct quantize_file *q)
{
    json_key(j, "path");
    json_str(j, q->path);
    json_key(j, "type");
    json_str(j, q->recipe->name);
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"files", q->r.files},       {"bytes", q->r.file_bytes},    {"tensors", q->r.tensors},
                   {"parameters", q->r.values}, {"bytes_before", q->r.before}, {"bytes_after", q->r.after}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        json_key(j, numbers[i].key);
        json_uint(j, numbers[i].value);
    }
    json_key(j, "bits_per_weight");
    json_num(j, q->r.values ? 8.0 * (double)q->r.after / (double)q->r.values : 0);
    json_key(j, "seconds");
    json_num(j, q->seconds);
    json_key(j, "types");
    json_begin(j, '{');
    for (uint32_t t = 0; t < DTYPE_MOST; t++)
        if (q->r.types[t]) {
            json_key(j, dtype_get(t)->name);
            json_uint(j, q->r.types[t]);
        }
    json_end(j, '}');
    json_key(j, "instead");
    json_begin(j, '[');
    for (size_t i = 0; i < q->r.instead.count; i++)
        quantize_json_swap(j, &q->r.instead.all[i]);
    json_end(j, ']');
}

static void quantize_json(struct buf *out, const struct quantize_report *q)
{
    struct json j = {.out = out};
    json_begin(&j, '{');
    quantize_json_file(&j, &q->model);
    if (q->has_tower) {
        json_key(&j, "tower");
        json_begin(&j, '{');
        quantize_json_file(&j, &q->tower);
        json_end(&j, '}');
    }
    if (q->check.done) {
        json_key(&j, "check");
        check_json(&j, &q->check);
    }
    json_end(&j, '}');
    buf_char(out, '\n');
}

static void quantize_text(struct buf *out, const struct quantize_file *q)
{
    double bits = q->r.values ? 8.0 * (double)q->r.after / (double)q->r.values : 0;
    buf_printf(out, "%s: %s, %.1f MB in %u file%s, %.2f bits a weight (%.1f MB before), %.1f s\n", q->path,
               q->recipe->name, 1e-6 * (double)q->r.file_bytes, q->r.files, q->r.files == 1 ? "" : "s", bits,
               1e-6 * (double)q->r.before, q->seconds);
    buf_str(out, "tensors:");
    for (uint32_t t = 0; t < DTYPE_MOST; t++)
        if (q->r.types[t])
            buf_printf(out, " %s %u", dtype_get(t)->name, q->r.types[t]);
    buf_char(out, '\n');
    if (q->r.instead.count) {
        buf_printf(out, "%s could not be used for all tensors: ", q->recipe->name);
        recipe_write_instead(&q->r.instead, out);
        buf_char(out, '\n');
    }
}

static int quantize_one(const struct store *s, struct quantize_options *o, struct quantize_file *f,
                        struct err *e)
{
    struct progress bar;
    const double start = clock_now();
    progress_start(&bar, o->tower ? "quantising the tower" : "quantising");
    o->recipe = f->recipe;
    o->progress = quantize_show;
    o->arg = &bar;
    int failed = quantize_run(s, f->path, o, &f->r, e);
    progress_end(&bar);
    f->seconds = clock_now() - start;
    return failed;
}

/* The model, and the tower for images that its folder has. */
static int quantize_write(const struct args *a, struct quantize_options *o, struct quantize_report *q,
                          struct err *e)
{
    struct store *s;
    struct sigaction stop = {.sa_handler = quantize_interrupted, .sa_flags = (int)SA_RESETHAND}, before;
    if (tool_open(&s, a->words[0], e))
        return -1;
    o->cancel = &quantize_stop;
    sigaction(SIGINT, &stop, &before);
    o->allow = output_file_allow;
    o->allow_arg = &q->output;
    int failed = output_file_reads_store(&q->output, s, e) || quantize_one(s, o, &q->model, e);
    struct quantize_options with = {.tower = true,
                                    .threads = o->threads,
                                    .cancel = o->cancel,
                                    .allow = o->allow,
                                    .allow_arg = o->allow_arg};
    struct err why = {0};
    q->has_tower = !failed && s->kind != STORE_GGUF && q->tower.recipe && vision_present(s);
    if (q->has_tower && quantize_one(s, &with, &q->tower, &why)) {
        q->has_tower = false;
        if (why.code == ERR_DATA)
            log_warn("%s; only the text model is written", why.text);
        else
            failed = err_set(e, why.code, "%s", why.text);
    }
    sigaction(SIGINT, &before, NULL);
    store_close(s);
    return failed;
}

/* The file of the tower: OUT with mmproj- before its name. */
static int quantize_tower(const struct args *a, struct quantize_file *f, struct arena *texts, struct err *e)
{
    const char *type = args_text(a, "tower"), *out = a->words[1], *slash = strrchr(out, '/');
    const char *name = slash ? slash + 1 : out;
    const size_t room = strlen(out) + sizeof "mmproj-";
    char *path = arena_alloc(texts, room, 1);
    if (!path)
        return err_memory(e, "a path", room);
    snprintf(path, room, "%.*smmproj-%s", (int)(name - out), out, name);
    f->path = path;
    if (type && !strcasecmp(type, "none"))
        return 0;
    return (f->recipe = recipe_find(type ? type : "F16", e)) ? 0 : -1;
}

/* What was written against what it was written from. */
static int quantize_check(struct quantize_report *q, const struct args *a, struct err *e)
{
    struct buf first = {0};
    const char *path = q->model.path;
    size_t n = strlen(path);
    n -= n > 5 && !strcmp(path + n - 5, ".gguf") ? 5 : 0;
    if (q->model.r.files > 1)
        buf_printf(&first, "%.*s-00001-of-%05u.gguf", (int)n, path, q->model.r.files);
    else
        buf_str(&first, path);
    int failed = first.failed ? err_memory(e, "a path", n)
                              : check_run(&q->check, first.data, a->words[0], args_text(a, "check"), a, e);
    buf_free(&first);
    return failed;
}

static int quantize_verb(const struct args *a, struct err *e)
{
    struct quantize_options o = {.pure = args_flag(a, "pure"), .threads = (int)args_int(a, "threads", 0)};
    struct quantize_override *overrides = NULL;
    struct arena texts = {0};
    struct imatrix imatrix = {0};
    const char *importance = args_text(a, "imatrix");
    struct buf out = {0};
    if (!(o.recipe = recipe_find(a->words[2], e)))
        return -1;
    o.split = (uint64_t)args_int(a, "split-size", 0);
    struct quantize_report q = {.model = {.path = a->words[1], .recipe = o.recipe},
                                .output.force = args_flag(a, "force")};
    int failed = quantize_tower(a, &q.tower, &texts, e) || quantize_overrides(a, &o, &overrides, &texts, e) ||
                 (importance && imatrix_read(&imatrix, importance, e)) ||
                 output_file_reads(&q.output, importance, e) ||
                 output_file_reads(&q.output, args_text(a, "check"), e);
    if (!failed && importance) {
        o.imatrix = &imatrix;
        o.imatrix_file = importance;
    }
    if (!failed && !strcmp(o.recipe->name, "Q2_K_S") && !importance)
        log_warn("Q2_K_S without an importance matrix (--imatrix) gives poor results");
    failed = failed || quantize_write(a, &o, &q, e);
    if (!failed && args_text(a, "check"))
        failed = quantize_check(&q, a, e);
    if (!failed) {
        if (args_flag(a, "json")) {
            quantize_json(&out, &q);
        } else {
            quantize_text(&out, &q.model);
            if (q.has_tower)
                quantize_text(&out, &q.tower);
            if (q.check.done)
                check_text(&out, &q.check);
        }
        failed = tool_print(&out, e);
    }
    check_free(&q.check);
    output_file_free(&q.output);
    imatrix_free(&imatrix);
    arena_free(&texts);
    mem_free(overrides);
    return failed ? -1 : 0;
}

static const struct arg_option options[] = {
    {"imatrix", 0, ARG_TEXT, "FILE", "importance matrix ('quern imatrix' makes one)", 0, 0},
    {"tensor", 0, ARG_TEXT, "PATTERN=TYPE", "this type for tensors whose name matches; may be repeated", 0,
     0},
    {"pure", 0, ARG_FLAG, NULL, "the same type for all matrices", 0, 0},
    {"tower", 0, ARG_TEXT, "TYPE",
     "type of the tower for images, which is written as mmproj-OUT; 'none': it is not written (F16)", 0, 0},
    {"split-size", 0, ARG_BYTES, "SIZE", "split the output: at most SIZE bytes of tensors a file, such as 4G",
     1, 1e15},
    {"check", 0, ARG_TEXT, "FILE", "perplexity of this text and KL divergence against the source", 0, 0},
    {"chunks", 0, ARG_INT, "N", "--check: only the first N chunks of 512 tokens", 1, 1 << 24},
    OUTPUT_OPTIONS,
    LOAD_OPTIONS,
    {"json", 0, ARG_FLAG, NULL, "print one JSON object", 0, 0},
    {0},
};

const struct tool_verb tool_quantize = {
    .name = "quantize",
    .words = "MODEL OUT TYPE",
    .brief = "write a model as a GGUF file of another type",
    .more =
        "MODEL is a GGUF file or a folder with safetensors. TYPE is F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, "
        "Q5_K_S,\n"
        "Q4_K_M, Q4_K_S, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K, Q2_K_S, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL, IQ4_XS, "
        "MXFP4,\n"
        "TQ2_0 or TQ1_0 (of ternary weights),\n"
        "with llama.cpp's choice of types for each tensor. A folder with a tower for images gives two files: "
        "OUT "
        "and\n"
        "mmproj-OUT beside it. An mmproj file as MODEL gives one of another type. --ctx, --device and what "
        "follows them are for "
        "--check.\n\n"
        "  quern quantize ./Qwen2.5-7B-Instruct qwen.gguf Q4_K_M\n"
        "  quern quantize model-f16.gguf out.gguf Q4_K_M --imatrix model.imatrix --tensor 'ffn_down=Q6_K'\n",
    .options = options,
    .least = 3,
    .most = 3,
    .run = quantize_verb,
};
