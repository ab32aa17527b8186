/* Tensors into weights. */
#include "model/bind.h"

#include "codec/dtype.h"
#include "codec/half.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "format/jsonread.h"
#include "model/arch.h"

#include <math.h>
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
    b->arch = h->arch ? h->arch->name : "clip";
    lookup_open(&b->names, s, "");
    b->used = mem_zalloc(s->count + 1, 1);
    if (!b->used)
        return err_memory(e, "tensor flags", s->count);
    struct jsonread r = {s->config, "config.json", e};
    json_t *q = jsonread_get(&r, s->config, "quantization_config?", JSONREAD_IS_OBJECT),
           *block = jsonread_get(&r, q, "weight_block_size?", JSONREAD_IS_ARRAY);
    for (size_t i = 0; i < 2; i++) {
        json_int_t n =
            i < json_array_size(block) ? json_integer_value(jsonread_item(&r, block, i, JSONREAD_IS_INT)) : 0;
        b->fp8_block[i] = n > 0 && n < 65536 ? (uint32_t)n : 128;
    }
    const char *method = jsonread_str(&r, q, "quant_method?", NULL),
               *class = jsonread_str(&r, q, "linear_class?", NULL);
    b->packed = method && !strcmp(method, "bitnet");
    b->divided = !class || strcmp(class, "autobitlinear");
    return e->code ? -1 : 0;
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

void *owned_add(struct owned **list, size_t bytes, struct err *e)
{
    struct owned *o = mem_alloc(1, sizeof *o);
    void *p = o ? mem_aligned(64, bytes ? bytes : 1) : NULL;
    if (!p) {
        mem_free(o);
        err_memory(e, "converted weights", bytes);
        return NULL;
    }
    *o = (struct owned){*list, p};
    *list = o;
    return p;
}

void *bind_memory(struct binder *b, size_t bytes)
{
    void *p = b->e->code ? NULL : owned_add(&b->owned, bytes, b->e);
    b->owned_bytes += p ? bytes : 0;
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

uint64_t bind_cols(const struct binder *b, const char *name, int layer)
{
    const struct tensor *t = lookup_find(&b->names, at_layer(name, layer), ".weight");
    return !t ? 0 : b->conv1d ? t->shape[1] : t->shape[0];
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
                lookup_expected(&b->names, at, suffix, name), b->arch);
    else
        bind_mark(b, t);
    return t;
}

/* dbrx: the matrices of all experts in one, one below the other. */
static bool is_tall(const struct tensor *t, struct shape want)
{
    return want.count > 1 && t->dims == 2 && t->shape[0] == want.cols &&
           t->shape[1] == (uint64_t)want.rows * want.count;
}

int bind_check(struct binder *b, const struct tensor *t, struct shape want)
{
    if (is_tall(t, want))
        return 0;
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

static bool is_fp8(uint32_t type)
{
    return type == DTYPE_F8_E4M3 || type == DTYPE_F8_E5M2;
}

/* One scale, one a row, or one a block of rows and columns. */
int bind_scales(struct binder *b, struct tensor_at at, const struct tensor *t, struct matrix_scales *out)
{
    *out = (struct matrix_scales){.row_span = 1, .col_span = 1};
    const struct tensor *q = is_fp8(t->type) ? lookup_find(&b->names, at, ".weight_scale_inv") : NULL;
    if (!q && is_fp8(t->type))
        q = lookup_find(&b->names, at, ".weight_scale");
    if (!q)
        return 0;
    bind_mark(b, q);
    const struct dtype_info *info = dtype_get(q->type);
    uint64_t rows = t->shape[1], cols = t->shape[0], q_rows = q->shape[1];
    out->cols = q->shape[0];
    if (q->dims <= 1 && q->values == rows)
        out->cols = 1, q_rows = rows;
    out->row_span = q_rows == rows ? 1 : q_rows == 1 ? rows : b->fp8_block[0];
    out->col_span = out->cols == 1 ? cols : b->fp8_block[1];
    if (!info->decode || q_rows * out->row_span < rows || out->cols * out->col_span < cols ||
        q_rows * out->cols != q->values)
        return err_set(b->e, ERR_DATA, "tensor %s: its shape does not fit the scales of %s",
                       log_safe(q->name), log_safe(t->name));
    out->value = bind_floats(b, q, q->values, 0);
    return out->value ? 0 : -1;
}

int bind_number(struct binder *b, const struct tensor *t)
{
    const struct dtype_info *info = dtype_get(t->type);
    bool whole = t->type == DTYPE_I8 || t->type == DTYPE_I16 || t->type == DTYPE_I32 || t->type == DTYPE_I64;
    if (info->decode && !whole && t->type != DTYPE_F64 && t->type <= DTYPE_F8_E5M2)
        return 0;
    return err_set(b->e, ERR_DATA, "tensor %s is of type %s, which is not one for weights", log_safe(t->name),
                   info->name);
}

/* bitnet: four rows of ternary values in one of bytes, and a scale for all. */
static struct matrix unpack(struct binder *b, struct tensor_at at, const struct tensor *t, struct shape want)
{
    struct matrix none = {0}, m;
    const uint32_t quarter = (want.rows + 3) / 4;
    const struct tensor *s = bind_tensor(b, at, ".weight_scale");
    const float *scale = s ? bind_floats(b, s, 1, 0) : NULL;
    if (!scale || bind_check(b, t, (struct shape){quarter, want.cols, want.count}) < 0 || !matrix_of(&m, t))
        return none;
    if (!(fabsf(scale[0]) > 0 && isfinite(scale[0]))) {
        err_set(b->e, ERR_DATA, "tensor %s is %g; a number other than 0 is expected", log_safe(s->name),
                (double)scale[0]);
        return none;
    }
    m.type = DTYPE_I8;
    m.rows = m.run = want.rows;
    m.quarter = quarter;
    m.gain = b->divided ? 1 / scale[0] : scale[0];
    return m;
}

struct matrix bind_find(struct binder *b, struct tensor_at at, struct shape want)
{
    struct matrix none = {0}, m;
    const struct tensor *t = bind_tensor(b, at, ".weight");
    if (!t)
        return none;
    if (b->packed && t->type == DTYPE_U8)
        return unpack(b, at, t, want);
    bool turned = b->conv1d && at.layer >= 0;
    struct shape lies = turned ? (struct shape){want.cols, want.rows, want.count} : want;
    if (bind_check(b, t, lies) < 0 || bind_number(b, t) < 0)
        return none;
    if (!matrix_of(&m, t)) {
        err_set(b->e, ERR_DATA, "tensor %s: rows of %u values cannot be of type %s", log_safe(t->name),
                lies.cols, dtype_get(t->type)->name);
        return none;
    }
    if (is_tall(t, lies)) {
        m.rows = m.run = lies.rows;
        m.count = lies.count;
        m.each_bytes = m.row_bytes * lies.rows;
    }
    if (is_fp8(t->type)) {
        struct matrix_scales *s = bind_memory(b, sizeof *s);
        if (!s || bind_scales(b, at, t, s) < 0)
            return none;
        m.scales = s;
    }
    return turned ? matrix_turn(&m) : m;
}

/* Both tables grow together. */
static weight_id add_bound(struct binder *b, const struct weight *w, const struct bound *of)
{
    if (b->e->code || !w->data)
        return 0;
    weight_id id = weights_add(b->weights, w);
    if (id >= b->bound_room) {
        uint32_t room = id + 64 + id / 2;
        struct bound *more = mem_realloc(b->bound, room, sizeof *more);
        if (!more)
            id = 0;
        else
            b->bound = more, b->bound_room = room;
    }
    if (!id) {
        err_memory(b->e, "the table of weights", sizeof *w);
        return 0;
    }
    b->bound[id] = *of;
    return id;
}

static weight_id add_matrix(struct binder *b, const struct bound *of)
{
    struct bound one = *of;
    const struct matrix *m = &of->m;
    if (b->e->code || !m->data)
        return 0;
    struct weight w;
    one.lies = matrix_lies(m, &w);
    if (!one.lies) { /* until it is materialized, a non-NULL data only marks that the weight exists */
        w = (struct weight){.name = m->name, .type = matrix_type(m), .rows = m->rows, .cols = m->cols};
        w.count = m->count;
        w.data = m->data;
        if (!matrix_bytes(m, w.type, &w.row_bytes, &w.each_bytes))
            err_set(b->e, ERR_DATA, "tensor %s is too large", log_safe(m->name));
        w.each_bytes /= m->count;
    }
    return add_bound(b, &w, &one);
}

weight_id bind_add(struct binder *b, const char *name, int layer, const struct matrix *m)
{
    return add_matrix(b, &(struct bound){.name = name, .layer = layer, .suffix = ".weight", .m = *m});
}

weight_id bind_matrix(struct binder *b, const char *name, int layer, struct shape want)
{
    struct matrix m = bind_find(b, at_layer(name, layer), want);
    return bind_add(b, name, layer, &m);
}

weight_id bind_table(struct binder *b, const char *name, const struct bound *of, const float *data,
                     struct shape s)
{
    struct bound one = of ? *of : (struct bound){0};
    one.lies = true;
    one.m =
        (struct matrix){.name = name, .type = DTYPE_F32, .rows = s.rows, .cols = s.cols, .count = s.count};
    one.m.data = (const uint8_t *)data;
    one.m.run = s.rows;
    one.m.row_bytes = s.cols * sizeof *data;
    one.m.each_bytes = one.m.row_bytes * s.rows;
    struct weight w;
    return matrix_lies(&one.m, &w) ? add_bound(b, &w, &one) : 0;
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
    struct bound of = {.name = name, .layer = layer, .suffix = suffix};
    return data ? bind_table(b, t->name, &of, data, (struct shape){1, n, 1}) : 0;
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

/* The numbers of a slice of a vector, one after the other. */
static weight_id take_bias(struct binder *b, const struct tensor *t, const float *all, const struct slice *s,
                           const struct bound *of)
{
    uint32_t n = s->groups * s->len;
    float *part = bind_memory(b, n * sizeof *part);
    for (uint32_t g = 0; part && g < s->groups; g++)
        memcpy(part + g * s->len, all + (size_t)g * s->stride + s->first, s->len * sizeof *part);
    return part ? bind_table(b, t->name, of, part, (struct shape){1, n, 1}) : 0;
}

bool bind_differs(const struct binder *b, struct tensor_at at, struct tensor_at from)
{
    const struct tensor *t = lookup_find(&b->names, at, ".weight"),
                        *other = lookup_find(&b->names, from, ".weight");
    if (!t || !other || !t->data || !other->data)
        return false;
    if (t->type != other->type || t->bytes != other->bytes || t->shape[1] != other->shape[1])
        return true;
    const size_t row = t->bytes / t->shape[1], step = t->shape[1] / 64 + 1;
    for (size_t i = 0; i < t->shape[1]; i += step)
        if (memcmp(t->data + i * row, other->data + i * row, row))
            return true;
    return false;
}

/* A vector whose slices lie in turn in a tensor that GGUF has as it is: its first slice stands for all of it there. */
static void keep_whole(struct bound *of, const float *all, uint32_t n, bool first)
{
    of->whole = NULL;
    of->name = first ? of->name : NULL;
    of->m.data = (const uint8_t *)all;
    of->m.cols = n;
    of->m.row_bytes = of->m.each_bytes = n * sizeof *all;
}

void bind_split(struct binder *b, const char *name, int layer, struct shape want, const struct slice *s,
                uint32_t n, struct linear *out)
{
    struct matrix all = bind_find(b, at_layer(name, layer), want);
    const struct tensor *t = lookup_find(&b->names, at_layer(name, layer), ".bias");
    const float *bias = t && !b->e->code ? bind_floats(b, t, want.rows, 0) : NULL;
    if (t)
        bind_mark(b, t);
    for (uint32_t i = 0; i < n && !b->e->code; i++) {
        struct bound of = {.name = s[i].name, .layer = layer, .suffix = ".weight", .whole = name};
        of.m = matrix_take(&all, &s[i]);
        out[i] = (struct linear){.weight = add_matrix(b, &of)};
        of.suffix = ".bias";
        if (bias)
            out[i].bias = take_bias(b, t, bias, &s[i], &of);
        if (out[i].bias && s[i].groups > 1 && !strcmp(s[i].name, name))
            keep_whole(&b->bound[out[i].bias], bias, want.rows, i == 0);
    }
}
