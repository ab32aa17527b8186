/* Tensors into weights. */
#include "model/bind.h"

#include "base/dtype.h"
#include "base/half.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

struct owned {
    struct owned *next;
    void *bytes;
};

int binder_open(struct binder *b, const struct store *s, const struct hparams *h, struct weights *w,
                struct err *e)
{
    *b = (struct binder){.h = h, .weights = w, .e = e};
    lookup_open(&b->names, s, "");
    b->used = mem_zalloc(s->count + 1, 1);
    if (!b->used)
        return err_memory(e, "tensor flags", s->count);
    json_t *q = json_object_get(s->config, "quantization_config"),
           *block = json_object_get(q, "weight_block_size");
    for (size_t i = 0; i < 2; i++) {
        json_int_t n = json_integer_value(json_array_get(block, i));
        b->fp8_block[i] = n > 0 && n < 65536 ? (uint32_t)n : 128;
    }
    return 0;
}

void binder_close(struct binder *b)
{
    mem_free(b->used);
    b->used = NULL;
}

void owned_free(struct owned *o)
{
    while (o) {
        struct owned *next = o->next;
        mem_free(o->bytes);
        mem_free(o);
        o = next;
    }
}

void *bind_memory(struct binder *b, size_t bytes)
{
    struct owned *o = b->e->code ? NULL : mem_alloc(1, sizeof *o);
    void *p = o ? mem_aligned(64, bytes ? bytes : 1) : NULL;
    if (!p) {
        mem_free(o);
        err_memory(b->e, "converted weights", bytes);
        return NULL;
    }
    *o = (struct owned){b->owned, p};
    b->owned = o;
    b->owned_bytes += bytes;
    return p;
}

static struct tensor_at at_layer(const char *name, int layer)
{
    return (struct tensor_at){name, layer, LOOKUP_NO_EXPERT};
}

bool bind_has(const struct binder *b, const char *name, int layer)
{
    return lookup_find(&b->names, at_layer(name, layer), ".weight") != NULL;
}

uint64_t bind_rows(const struct binder *b, const char *name, int layer)
{
    const struct tensor *t = lookup_find(&b->names, at_layer(name, layer), ".weight");
    return !t ? 0 : b->conv1d ? t->shape[0] : t->shape[1];
}

void bind_mark(struct binder *b, const struct tensor *t)
{
    b->used[t - b->names.store->tensors] = 1;
}

const struct tensor *bind_tensor(struct binder *b, struct tensor_at at, const char *suffix)
{
    if (b->e->code)
        return NULL;
    const struct tensor *t = lookup_find(&b->names, at, suffix);
    char name[256];
    if (!t)
        err_set(b->e, ERR_DATA, "the file has no tensor %s, which a model of architecture %s needs",
                lookup_expected(&b->names, at, suffix, name), b->h->arch->name);
    else
        bind_mark(b, t);
    return t;
}

int bind_check(struct binder *b, const struct tensor *t, struct shape want)
{
    if (t->shape[0] == want.cols && t->shape[1] == want.rows && t->shape[2] == want.count && t->shape[3] == 1)
        return 0;
    char have[96];
    int n = 0;
    for (uint32_t i = 0; i < (t->dims ? t->dims : 1); i++)
        n += snprintf(have + n, sizeof have - (size_t)n, "%s%llu", i ? ", " : "",
                      (unsigned long long)t->shape[(t->dims ? t->dims : 1) - 1 - i]);
    if (want.count > 1)
        return err_set(b->e, ERR_DATA, "tensor %s has the shape (%s); (%u, %u, %u) is expected",
                       log_safe(t->name), have, want.count, want.rows, want.cols);
    return err_set(b->e, ERR_DATA, "tensor %s has the shape (%s); (%u, %u) is expected", log_safe(t->name),
                   have, want.rows, want.cols);
}

bool bind_is_fp8(uint32_t type)
{
    return type == DTYPE_F8_E4M3 || type == DTYPE_F8_E5M2;
}

/* The scales of an FP8 matrix: one, one a row, or one a block of rows and columns. */
struct scales {
    const float *value; /* owned; NULL = none */
    uint64_t rows, cols, row_span, col_span;
    bool divide;
};

static struct scales fp8_scales(struct binder *b, struct tensor_at at, const struct tensor *t)
{
    struct scales s = {.row_span = 1, .col_span = 1};
    const struct tensor *q = lookup_find(&b->names, at, ".weight_scale_inv");
    if (!q)
        q = lookup_find(&b->names, at, ".weight_scale");
    if (!q)
        return s;
    bind_mark(b, q);
    const struct dtype_info *info = dtype_get(q->type);
    uint64_t rows = t->shape[1], cols = t->shape[0];
    s.cols = q->shape[0], s.rows = q->shape[1];
    if (q->dims <= 1 && q->values == rows)
        s.cols = 1, s.rows = rows;
    s.row_span = s.rows == rows ? 1 : s.rows == 1 ? rows : b->fp8_block[0];
    s.col_span = s.cols == 1 ? cols : b->fp8_block[1];
    float *value = info->decode ? bind_memory(b, q->values * sizeof *value) : NULL;
    if (!info->decode || s.rows * s.row_span < rows || s.cols * s.col_span < cols ||
        s.rows * s.cols != q->values) {
        err_set(b->e, ERR_DATA, "tensor %s: its shape does not fit the scales of %s", log_safe(q->name),
                log_safe(t->name));
        return s;
    }
    if (value)
        info->decode(q->data, value, q->values);
    s.value = value;
    return s;
}

void bind_decode_fp8(struct binder *b, struct tensor_at at, const struct tensor *t, uint16_t *dst)
{
    struct scales s = fp8_scales(b, at, t);
    uint64_t cols = t->shape[0], rows = t->values / cols;
    float *row = mem_alloc(cols, sizeof *row);
    if (!row)
        err_memory(b->e, "a row of weights", cols * sizeof *row);
    for (uint64_t r = 0; r < rows && !b->e->code; r++) {
        dtype_get(t->type)->decode(t->data + r * cols, row, cols);
        for (uint64_t c = 0; c < cols; c++) {
            float scale = s.value ? s.value[r / s.row_span * s.cols + c / s.col_span] : 1;
            dst[r * cols + c] = bf16_from_f32(row[c] * scale);
        }
    }
    mem_free(row);
}

/* A weight over the tensor's own bytes. */
static struct weight as_weight(struct binder *b, const struct tensor *t, struct shape s)
{
    struct weight w = {
        .name = t->name, .type = t->type, .rows = s.rows, .cols = s.cols, .count = s.count, .data = t->data};
    if (!dtype_row_bytes(t->type, s.cols, &w.row_bytes) || !size_mul(w.row_bytes, s.rows, &w.each_bytes)) {
        err_set(b->e, ERR_DATA, "tensor %s: rows of %u values cannot be of type %s", log_safe(t->name),
                s.cols, dtype_get(t->type)->name);
        w.data = NULL;
    }
    return w;
}

static bool is_number(uint32_t type)
{
    return dtype_get(type)->decode && type != DTYPE_I8 && type != DTYPE_I16 && type != DTYPE_I32 &&
           type != DTYPE_I64 && type != DTYPE_F64 && type < DTYPE_F8_E4M3;
}

struct weight bind_find(struct binder *b, struct tensor_at at, struct shape want)
{
    struct weight none = {0};
    const struct tensor *t = bind_tensor(b, at, ".weight");
    if (!t)
        return none;
    bool turned = b->conv1d && at.layer >= 0;
    struct shape lies = turned ? (struct shape){want.cols, want.rows, want.count} : want;
    if (bind_check(b, t, lies) < 0)
        return none;
    struct weight w;
    if (bind_is_fp8(t->type)) {
        uint16_t *bytes = bind_memory(b, t->values * sizeof *bytes);
        if (!bytes)
            return none;
        bind_decode_fp8(b, at, t, bytes);
        w = (struct weight){
            .name = t->name, .type = DTYPE_BF16, .rows = lies.rows, .cols = lies.cols, .count = lies.count};
        w.data = (const uint8_t *)bytes;
        w.row_bytes = lies.cols * sizeof *bytes;
        w.each_bytes = w.row_bytes * lies.rows;
    } else if (is_number(t->type)) {
        w = as_weight(b, t, lies);
    } else {
        err_set(b->e, ERR_DATA, "tensor %s is of type %s, which is not one for weights", log_safe(t->name),
                dtype_get(t->type)->name);
        return none;
    }
    return b->e->code ? none : turned ? bind_transpose(b, &w) : w;
}

weight_id bind_add(struct binder *b, const struct weight *w)
{
    if (b->e->code || !w->data)
        return 0;
    weight_id id = weights_add(b->weights, w);
    if (!id)
        err_memory(b->e, "the table of weights", sizeof *w);
    return id;
}

weight_id bind_matrix(struct binder *b, const char *name, int layer, struct shape want)
{
    struct weight w = bind_find(b, at_layer(name, layer), want);
    return bind_add(b, &w);
}

weight_id bind_table(struct binder *b, const char *name, const float *data, uint32_t n)
{
    size_t bytes = (size_t)n * sizeof *data;
    struct weight w = {.name = name, .type = DTYPE_F32, .rows = 1, .cols = n, .count = 1, .row_bytes = bytes};
    w.data = (const uint8_t *)data;
    w.each_bytes = bytes;
    return bind_add(b, &w);
}

const float *bind_floats(struct binder *b, const struct tensor *t, uint64_t n, float add)
{
    const struct dtype_info *info = dtype_get(t->type);
    if (t->values != n) {
        err_set(b->e, ERR_DATA, "tensor %s has %llu values; %llu are expected", log_safe(t->name),
                (unsigned long long)t->values, (unsigned long long)n);
        return NULL;
    }
    if (!info->decode || n % info->block_values) {
        err_set(b->e, ERR_DATA, "tensor %s is of type %s, which does not hold numbers", log_safe(t->name),
                info->name);
        return NULL;
    }
    if (t->type == DTYPE_F32 && add == 0 && (uintptr_t)t->data % sizeof(float) == 0)
        return (const float *)t->data;
    float *out = bind_memory(b, n * sizeof *out);
    if (!out)
        return NULL;
    info->decode(t->data, out, n);
    for (uint64_t i = 0; add != 0 && i < n; i++)
        out[i] += add;
    return out;
}

weight_id bind_vector(struct binder *b, const char *name, int layer, const char *suffix, uint32_t n,
                      float add)
{
    const struct tensor *t = bind_tensor(b, at_layer(name, layer), suffix);
    const float *data = t ? bind_floats(b, t, n, add) : NULL;
    return data ? bind_table(b, t->name, data, n) : 0;
}

weight_id bind_optional(struct binder *b, const char *name, int layer, const char *suffix, uint32_t n)
{
    if (!lookup_find(&b->names, at_layer(name, layer), suffix))
        return 0;
    return bind_vector(b, name, layer, suffix, n, 0);
}

struct linear bind_linear(struct binder *b, const char *name, int layer, uint32_t rows, uint32_t cols)
{
    struct linear l = {.weight = bind_matrix(b, name, layer, (struct shape){rows, cols, 1})};
    l.bias = bind_optional(b, name, layer, ".bias", rows);
    return l;
}

/* The rows of a slice: a view where they lie together, else gathered. */
static struct weight take(struct binder *b, const struct weight *w, const struct slice *s)
{
    struct weight part = *w;
    part.rows = s->groups * s->len;
    part.data += s->first * w->row_bytes;
    if (s->groups == 1)
        return part;
    size_t run = s->len * w->row_bytes;
    uint8_t *bytes = bind_memory(b, s->groups * run);
    for (uint32_t g = 0; bytes && g < s->groups; g++)
        memcpy(bytes + g * run, part.data + (size_t)g * s->stride * w->row_bytes, run);
    part.data = bytes;
    part.each_bytes = s->groups * run;
    return part;
}

void bind_split(struct binder *b, const char *name, int layer, struct shape want, const struct slice *s,
                uint32_t n, struct linear *out)
{
    struct weight w = bind_find(b, at_layer(name, layer), want);
    const struct tensor *t = lookup_find(&b->names, at_layer(name, layer), ".bias");
    const float *bias = t && !b->e->code ? bind_floats(b, t, want.rows, 0) : NULL;
    if (t)
        bind_mark(b, t);
    struct weight vector = {
        .type = DTYPE_F32, .rows = want.rows, .cols = 1, .count = 1, .row_bytes = sizeof *bias};
    vector.data = (const uint8_t *)bias;
    for (uint32_t i = 0; i < n && !b->e->code; i++) {
        struct weight part = take(b, &w, &s[i]);
        out[i] = (struct linear){.weight = bind_add(b, &part)};
        if (bias) {
            struct weight v = take(b, &vector, &s[i]);
            if (v.data)
                out[i].bias = bind_table(b, t->name, (const float *)v.data, v.rows);
        }
    }
}

struct weight bind_transpose(struct binder *b, const struct weight *w)
{
    bool plain = w->type == DTYPE_F32 || w->type == DTYPE_BF16;
    struct weight out = *w;
    out.rows = w->cols;
    out.cols = w->rows;
    out.type = plain ? w->type : DTYPE_F16;
    size_t size = out.type == DTYPE_F32 ? 4 : 2;
    out.row_bytes = out.cols * size;
    out.each_bytes = out.row_bytes * out.rows;
    uint8_t *bytes = bind_memory(b, out.each_bytes * out.count);
    float *row = mem_alloc(w->cols, sizeof *row);
    if (!row)
        err_memory(b->e, "a row of weights", w->cols * sizeof *row);
    for (uint32_t m = 0; bytes && row && m < w->count; m++)
        for (uint32_t r = 0; r < w->rows; r++) {
            dtype_get(w->type)->decode(w->data + m * w->each_bytes + r * w->row_bytes, row, w->cols);
            uint8_t *to = bytes + m * out.each_bytes + r * size;
            for (uint32_t c = 0; c < w->cols; c++, to += out.row_bytes) {
                uint16_t half = out.type == DTYPE_F16 ? fp16_from_f32(row[c]) : bf16_from_f32(row[c]);
                memcpy(to, size == 4 ? (const void *)&row[c] : (const void *)&half, size);
            }
        }
    mem_free(row);
    out.data = b->e->code ? NULL : bytes;
    return out;
}
