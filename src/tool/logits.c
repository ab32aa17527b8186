/* quern logits MODEL --tokens 1,2,3: runs token ids through a model and prints its logits, without a
 * tokenizer. */
#include "base/buf.h"
#include "codec/dtype.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/store.h"
#include "model/evaluate.h"
#include "model/lora.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <string.h>

struct logits {
    uint32_t width, count; /* count: tokens */
    uint32_t *argmax;      /* (count) */
    float *last;           /* (width) */
};

/* Images in the tokens. */
struct seen {
    struct images images;
    struct vision *vision;
    struct prompt_image *place; /* (images.count) */
    struct seq_image *at;
    struct picture_rows **rows;
};

static void take_row(struct logits *l, uint32_t pos, const float *row)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < l->width; i++)
        if (row[i] > row[best])
            best = i;
    l->argmax[pos] = best;
    if (pos + 1 == l->count)
        memcpy(l->last, row, l->width * sizeof *row);
}

static void print_json(struct buf *out, const struct logits *l)
{
    struct json j = {.out = out};
    json_begin(&j, '{');
    json_key(&j, "argmax");
    json_begin(&j, '[');
    for (uint32_t i = 0; i < l->count; i++)
        json_uint(&j, l->argmax[i]);
    json_end(&j, ']');
    json_key(&j, "last");
    json_begin(&j, '[');
    for (uint32_t i = 0; i < l->width; i++)
        json_f32(&j, l->last[i]);
    json_end(&j, ']');
    json_end(&j, '}');
    buf_char(out, '\n');
}

/* The ten best of the last position. */
static void print_text(struct buf *out, const struct logits *l)
{
    buf_str(out, "best at each position:");
    for (uint32_t i = 0; i < l->count; i++)
        buf_printf(out, " %u", l->argmax[i]);
    buf_str(out, "\nbest at the last:\n");
    float above = 0;
    uint32_t best = l->argmax[l->count - 1];
    for (int n = 0; n < 10; n++) {
        buf_printf(out, "%8u  %g\n", best, (double)l->last[best]);
        above = l->last[best];
        uint32_t next = l->width;
        for (uint32_t i = 0; i < l->width; i++)
            if (l->last[i] < above && (next == l->width || l->last[i] > l->last[next]))
                next = i;
        if (next == l->width)
            break;
        best = next;
    }
}

/* The tokens in steps of `chunk`, every result wanted. */
static int run_steps(struct runner *r, struct seq *q, const int32_t *ids, struct logits *l, struct err *e)
{
    for (uint32_t at = 0; at < l->count;) {
        uint32_t n = seq_whole(q, ids + at, l->count - at, r->chunk);
        if (!n)
            return err_set(e, ERR_USAGE, "an image has more tokens than a step; a larger --chunk helps");
        struct seq_rows rows = {.seq = q, .ids = ids + at, .n = n, .outs = n};
        const float *result = runner_step(r, &rows, 1, e) ? NULL : runner_results(r, e);
        if (!result)
            return -1;
        for (uint32_t i = 0; i < n; i++)
            take_row(l, at + i, result + (size_t)i * l->width);
        at += n;
    }
    return 0;
}

/* Encodes the images, and puts them in the place of their tokens. */
static int see_images(struct seen *s, int32_t *ids, uint32_t n, struct err *e)
{
    const uint32_t count = s->images.count;
    s->place = mem_alloc(count, sizeof *s->place);
    s->at = mem_alloc(count, sizeof *s->at);
    s->rows = mem_zalloc(count, sizeof(struct picture_rows *));
    if (!s->place || !s->at || !s->rows)
        return err_memory(e, "images", count * sizeof *s->at);
    if (images_prepare(&s->images, &s->vision->tower->v, e) ||
        picture_place(s->place, s->images.picture, count, ids, n, s->vision->image_token, e) ||
        vision_place(s->vision, s->place, count, ids, s->at, e))
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        if (!(s->rows[i] = vision_encode(s->vision, s->images.picture[i], e)))
            return -1;
        s->at[i].data = s->rows[i]->data;
    }
    return 0;
}

static void seen_free(struct seen *s)
{
    for (uint32_t i = 0; s->rows && i < s->images.count; i++)
        vision_drop(s->rows[i]);
    images_free(&s->images);
    vision_close(s->vision);
    mem_free(s->place);
    mem_free(s->at);
    mem_free(s->rows);
}

static int run_model(const struct args *a, struct model *m, int32_t *ids, struct seen *seen, struct logits *l,
                     struct err *e)
{
    struct device_options d = {.threads = (int)args_int(a, "threads", 0),
                               .activations = (int)args_int(a, "activations", 0),
                               .exact = args_flag(a, "exact"),
                               .tier = args_text(a, "tier")};
    struct runner_options o = {.device = args_text(a, "device"),
                               .device_options = d,
                               .ctx = l->count,
                               .whole = vision_images(seen->vision).whole,
                               .chunk = (uint32_t)args_int(a, "chunk", 128),
                               .outs = UINT32_MAX,
                               .kv_type = DTYPE_F16};
    struct runner *r = NULL;
    struct seq *q = NULL;
    l->width = m->plan.out_width;
    l->argmax = mem_alloc(l->count, sizeof *l->argmax);
    l->last = mem_alloc(l->width, sizeof *l->last);
    if (!l->argmax || !l->last)
        return err_memory(e, "logits", l->width * sizeof *l->last);
    if (evaluate_check(m, ids, l->count, e) || load_gpu(a, &o, e) || load_ranks(a, &o, e) ||
        (seen->images.count && see_images(seen, ids, l->count, e)))
        return -1;
    o.device = o.device ? o.device : "cpu";
    int failed = runner_open(&r, &m->plan, &m->weights, &o, e) || !(q = seq_open(r, e));
    if (!failed) {
        q->lora.count = m->plan.adapters;
        for (uint32_t i = 0; i < q->lora.count; i++) {
            q->lora.id[i] = i + 1;
            q->lora.scale[i] = 1;
        }
        q->image = seen->at;
        q->images = seen->images.count;
        failed = run_steps(r, q, ids, l, e);
    }
    seq_close(q);
    runner_close(r);
    if (failed)
        load_served(e);
    return failed ? -1 : 0;
}

/* Every --lora, all at once. */
static int open_adapters(const struct args *a, struct model *m, struct err *e)
{
    const char *paths[ADAPTERS_MIXED];
    int at = 0;
    uint32_t n = 0;
    for (const char *path; (path = args_next(a, "lora", &at)); paths[n++] = path)
        if (n == ADAPTERS_MIXED)
            return err_set(e, ERR_USAGE, "more than %d of --lora", ADAPTERS_MIXED);
    return n ? lora_bind(m, paths, n, e) : 0;
}

/* With --image: the tower, and what the model's plan has to know of it. */
static int open_vision(const struct args *a, const struct store *s, struct seen *seen,
                       struct model_options *o, struct err *e)
{
    const struct vision_options with = {.mmproj = args_text(a, "mmproj"),
                                        .device = args_text(a, "device"),
                                        .device_options = {.threads = (int)args_int(a, "threads", 0),
                                                           .activations = (int)args_int(a, "activations", 0),
                                                           .exact = args_flag(a, "exact"),
                                                           .tier = args_text(a, "tier")}};
    if (images_load(&seen->images, a, e))
        return -1;
    if (!seen->images.count)
        return 0;
    if (vision_open(&seen->vision, s, &with, e))
        return -1;
    o->images = vision_images(seen->vision);
    return seen->vision ? 0 : images_prepare(&seen->images, NULL, e);
}

static int logits_run(const struct args *a, struct err *e)
{
    struct store *s = NULL;
    struct model *m = NULL;
    struct seen seen = {0};
    struct logits l = {0};
    struct buf out = {0};
    int ok = -1;
    const char *text = args_text(a, "tokens");
    if (!text)
        return err_set(e, ERR_USAGE, "quern logits wants --tokens, ids with commas between");
    int32_t *ids = tool_tokens(text, &l.count, e);
    if (ids && tool_open(&s, a->words[0], e) == 0) {
        struct model_options o = {.ctx = (uint32_t)args_int(a, "ctx", l.count)};
        if (open_vision(a, s, &seen, &o, e) == 0 && model_open(&m, s, &o, e) == 0 &&
            vision_fits(seen.vision, m, e) == 0 && load_predicts(m, s->path, e) == 0 &&
            open_adapters(a, m, e) == 0 && run_model(a, m, ids, &seen, &l, e) == 0) {
            if (args_flag(a, "json"))
                print_json(&out, &l);
            else
                print_text(&out, &l);
            ok = tool_print(&out, e);
        }
    }
    mem_free(l.argmax);
    mem_free(l.last);
    mem_free(ids);
    seen_free(&seen);
    model_close(m);
    if (s)
        store_close(s);
    return ok;
}

static const struct arg_option options[] = {
    {"tokens", 0, ARG_TEXT, "IDS", "token ids with commas between: 1,2,3", 0, 0},
    IMAGES_OPTIONS,
    {"exact", 0, ARG_FLAG, NULL, "float activations and F32 keys and values", 0, 0},
    {"lora", 0, ARG_TEXT, "PATH", "an adapter; may be repeated", 0, 0},
    {"device", 0, ARG_TEXT, "D", "cpu, cuda or cuda:N (cpu)", 0, 0},
    LOAD_GPU,
    LOAD_RANKS,
    {"activations", 0, ARG_INT, "BITS", "CPU: 8 or 16 (default: 16 for models below 320 MiB)", 8, 16},
    {"tier", 0, ARG_TEXT, "T",
     "highest kernel tier of the CPU: scalar; avx2, avx512, amx; neon, dotprod, i8mm", 0, 0},
    {"threads", 't', ARG_INT, "N", "compute threads (all cores)", 1, 1024},
    {"chunk", 0, ARG_INT, "N", "tokens a step (128)", 1, 4096},
    {"ctx", 0, ARG_INT, "N", "context length for the scaling of positions (default: the number of tokens)", 1,
     1 << 28},
    {"json", 0, ARG_FLAG, NULL,
     "print {\"argmax\": [one id per position], \"last\": [logits of the last position]}", 0, 0},
    {0},
};

const struct tool_verb tool_logits = {
    .name = "logits",
    .words = "MODEL",
    .brief = "run token ids through a model and print its logits",
    .more = NULL,
    .options = options,
    .least = 1,
    .most = 1,
    .run = logits_run,
};
