#include "quant/gguf_tower.h"

#include "base/log.h"
#include "codec/dtype.h"
#include "lang/token/tokenizer.h"
#include "model/lookup.h"
#include "quant/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct tower_out {
    struct gguf_tensors *o;
    const struct store *s;
    const struct vision_params *v;
    const struct recipe *recipe;
    struct lookup names;
    struct err *e;
};

/* ---- tensors ---- */

enum { OF_LLAVA = 1 << VISION_LLAVA, OF_GEMMA3 = 1 << VISION_GEMMA3, OF_GEMMA4 = 1 << VISION_GEMMA4 };
enum { OF_IDEFICS3 = 1 << VISION_IDEFICS3, OF_PIXTRAL = 1 << VISION_PIXTRAL };
enum { OF_INTERNVL = 1 << VISION_INTERNVL };
enum { OF_QWEN = 1 << VISION_QWEN2 | 1 << VISION_QWEN2_5 | 1 << VISION_QWEN3 };
enum { OF_ALL = ~0, OF_NORMED = ~(OF_LLAVA | OF_PIXTRAL | OF_GEMMA4) };

/* What a file may have, by canonical name; a tensor that the folder does not have is left out. */
static const struct tower_row {
    const char *name;
    bool layer;
    int families;
} rows[] = {
    {"v.position_embd", false, OF_ALL},
    {"v.class_embd", false, OF_ALL},
    {"v.pre_ln", false, OF_ALL},
    {"v.post_ln", false, OF_NORMED},
    {"v.std_bias", false, OF_GEMMA4},
    {"v.std_scale", false, OF_GEMMA4},
    {"ln1", true, OF_ALL},
    {"ln2", true, OF_ALL},
    {"attn_q", true, OF_ALL},
    {"attn_k", true, OF_ALL},
    {"attn_v", true, OF_ALL},
    {"attn_qkv", true, OF_ALL},
    {"attn_q_norm", true, OF_ALL},
    {"attn_k_norm", true, OF_ALL},
    {"attn_out", true, OF_ALL},
    {"attn_post_norm", true, OF_GEMMA4},
    {"ffn_post_norm", true, OF_GEMMA4},
    {"ls1", true, OF_ALL},
    {"ls2", true, OF_ALL},
    {"ffn_gate", true, OF_ALL},
    {"ffn_up", true, OF_ALL},
    {"ffn_down", true, OF_ALL},
    {"mm.0", false, OF_LLAVA | OF_QWEN},
    {"mm.1", false, OF_PIXTRAL},
    {"mm.2", false, OF_LLAVA | OF_QWEN | OF_PIXTRAL},
    {"mm.input_projection", false, OF_GEMMA3 | OF_GEMMA4},
    {"mm.soft_emb_norm", false, OF_GEMMA3},
    {"mm.model.fc", false, OF_IDEFICS3},
    {"mm.input_norm", false, OF_PIXTRAL},
    {"mm.patch_merger", false, OF_PIXTRAL},
    {"mm.model.mlp.0", false, OF_INTERNVL},
    {"mm.model.mlp.1", false, OF_INTERNVL},
    {"mm.model.mlp.3", false, OF_INTERNVL},
};

/* A vector as a column, so that its values can be taken in another order. */
static struct matrix column_of(const struct tensor *t)
{
    const size_t one = dtype_get(t->type)->block_bytes;
    const uint32_t n = (uint32_t)t->values;
    return (struct matrix){.name = t->name,
                           .type = t->type,
                           .rows = n,
                           .cols = 1,
                           .count = 1,
                           .data = t->data,
                           .row_bytes = one,
                           .each_bytes = t->bytes,
                           .run = n};
}

static int take_matrix(const struct tower_out *x, const struct tensor *t, struct matrix *m)
{
    const struct dtype_info *type = dtype_get(t->type);
    if (!type || t->values > UINT32_MAX || (t->dims < 2 && type->block_values != 1))
        return err_set(x->e, ERR_DATA, "tensor %s cannot be written", log_safe(t->name));
    if (t->dims < 2)
        *m = column_of(t);
    else if (!matrix_of(m, t))
        return err_set(x->e, ERR_DATA, "tensor %s is too large, or its rows are no whole blocks",
                       log_safe(t->name));
    return 0;
}

/* Matrices that stay as they are in files of blocks: halves, or floats where the other program wants them. */
static uint32_t kept_type(const struct tower_out *x, const char *name)
{
    const bool floats = x->v->family == VISION_GEMMA3 || x->v->family == VISION_IDEFICS3;
    if (!strcmp(name, "mm.input_projection.weight") && x->v->family == VISION_GEMMA3)
        return DTYPE_F16;
    if (strncmp(name, "v.patch_embd.weight", 19) != 0 && strcmp(name, "mm.patch_merger.weight") != 0)
        return DTYPE_F32;
    return x->recipe->base == DTYPE_F16 && !(floats && name[0] == 'v') ? DTYPE_F16 : DTYPE_F32;
}

static struct out *put_matrix(const struct tower_out *x, const char *name, const struct matrix *m,
                              const uint64_t shape[4])
{
    struct out *t = gguf_tensors_add(x->o, name, x->e);
    if (!t)
        return NULL;
    memcpy(t->shape, shape, sizeof t->shape);
    gguf_tensors_count_dims(t);
    t->kept = kept_type(x, name);
    t->fixed = t->kept == DTYPE_F16;
    t->parts = 1;
    t->part[0] = *m;
    return t;
}

/* Q, K and V of one tensor, each under its own name (qwen2). */
static int put_split(const struct tower_out *x, const struct tensor *t, uint32_t layer, const char *suffix)
{
    struct matrix all;
    if (take_matrix(x, t, &all))
        return -1;
    for (uint32_t i = 0; i < 3; i++) {
        char name[128];
        const uint32_t n = all.rows / 3;
        const struct slice part = {NULL, 1, all.rows, i * n, n};
        const struct matrix m = matrix_take(&all, &part);
        const uint64_t matrix[4] = {t->shape[0], n, 1, 1}, vector[4] = {n, 1, 1, 1};
        snprintf(name, sizeof name, "v.blk.%u.attn_%c%s", layer, "qkv"[i], suffix);
        if (!put_matrix(x, name, &m, t->dims < 2 ? vector : matrix))
            return -1;
    }
    return 0;
}

/* Floats plus one: norms of gemma are written as what they multiply with. */
static int put_above_one(const struct tower_out *x, const struct tensor *t, const char *name)
{
    float *to = arena_alloc(&x->o->arena, t->values ? t->values : 1, sizeof *to);
    const struct dtype_info *type = dtype_get(t->type);
    if (!to)
        return err_memory(x->e, "a norm", t->values * sizeof *to);
    if (!type->decode || t->values > UINT32_MAX)
        return err_set(x->e, ERR_DATA, "tensor %s cannot be written", log_safe(t->name));
    type->decode(t->data, to, t->values);
    for (uint64_t i = 0; i < t->values; i++)
        to[i] += 1;
    return gguf_tensors_add_vector(x->o, name, to, (uint32_t)t->values, x->e);
}

static int put_tensor(const struct tower_out *x, const struct tensor *t, struct tensor_at at,
                      const char *suffix)
{
    char name[128], layer[24] = "";
    struct matrix m;
    const enum vision_family family = x->v->family;
    const bool bare = !strncmp(at.name, "v.std_", 6) || !strcmp(at.name, "v.class_embd");
    const bool heads = !strcmp(at.name, "attn_q") || !strcmp(at.name, "attn_k");
    if (at.layer >= 0)
        snprintf(layer, sizeof layer, "v.blk.%d.", at.layer);
    snprintf(name, sizeof name, "%s%s%s", layer, at.name, bare ? "" : suffix);
    if (!strcmp(at.name, "attn_qkv") && family != VISION_QWEN3)
        return put_split(x, t, (uint32_t)at.layer, suffix);
    if (!strcmp(at.name, "mm.soft_emb_norm"))
        return put_above_one(x, t, name);
    if (take_matrix(x, t, &m))
        return -1;
    if (heads && family == VISION_PIXTRAL) /* GGUF rotates pairs */
        m.pairs = x->v->head_dim;
    return put_matrix(x, name, &m, t->shape) ? 0 : -1;
}

/* The kernel of each frame by itself, as (width, 3, patch, patch). */
static int put_kernel(const struct tower_out *x)
{
    const struct vision_params *v = x->v;
    const uint32_t area = v->patch * v->patch;
    const struct tensor_at at = {"v.patch_embd", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT};
    const struct tensor *t = lookup_find(&x->names, at, ".weight"),
                        *bias = lookup_find(&x->names, at, ".bias");
    const struct dtype_info *type = t ? dtype_get(t->type) : NULL;
    if (!type || type->block_values != 1 || v->frames > 2 ||
        t->values != (uint64_t)3 * v->width * v->frames * area)
        return err_set(x->e, ERR_DATA, "an mmproj file cannot have this tower's patches");
    for (uint32_t f = 0; f < v->frames; f++) {
        const uint64_t shape[4] = {v->patch, v->patch, 3, v->width};
        struct matrix m = {.name = t->name,
                           .type = t->type,
                           .rows = 3 * v->width,
                           .cols = area,
                           .count = 1,
                           .data = t->data,
                           .row_bytes = (size_t)area * type->block_bytes,
                           .each_bytes = t->bytes,
                           .first = f,
                           .run = 1,
                           .stride = v->frames};
        if (v->family == VISION_GEMMA4) { /* colours lie side by side */
            m.rows = m.run = v->width;
            m.cols = 3 * area;
            m.row_bytes *= 3;
            m.col_swap = (struct matrix_swap){0, area, 3, 1};
        }
        if (!put_matrix(x, f ? "v.patch_embd.weight.1" : "v.patch_embd.weight", &m, shape))
            return -1;
    }
    return bias ? put_tensor(x, bias, at, ".bias") : 0;
}

/* Mergers of earlier layers are numbered by layer there, one after the other here. */
static int put_deepstack(const struct tower_out *x)
{
    static const char *const parts[] = {"norm", "fc1", "fc2"}, *const suffixes[] = {".weight", ".bias"};
    for (uint32_t i = 0; i < x->v->deepstacks; i++)
        for (int k = 0; k < 6; k++) {
            char from[32], to[64];
            snprintf(from, sizeof from, "v.deepstack.#.%s", parts[k / 2]);
            snprintf(to, sizeof to, "v.deepstack.%u.%s%s", x->v->deepstack[i], parts[k / 2], suffixes[k % 2]);
            const struct tensor *t = lookup_find(
                &x->names, (struct tensor_at){from, LOOKUP_NO_LAYER, (int)x->v->merger[i]}, suffixes[k % 2]);
            struct matrix m;
            if (t && (take_matrix(x, t, &m) || !put_matrix(x, to, &m, t->shape)))
                return -1;
        }
    return 0;
}

/* pixtral: what stands behind each line of an image, a row of the text model's table. */
static int put_break(const struct tower_out *x)
{
    static const char want[] = "[IMG_BREAK]";
    struct tokenizer *tokens = NULL;
    struct lookup text;
    struct err none = {0};
    if (x->v->family != VISION_PIXTRAL)
        return 0;
    const int32_t id = tokenizer_open(&tokens, x->s, &none) ? -1 : tokenizer_find(tokens, want, strlen(want));
    tokenizer_close(tokens);
    lookup_open(&text, x->s, "");
    const struct tensor *t =
        lookup_find(&text, (struct tensor_at){"token_embd", LOOKUP_NO_LAYER, LOOKUP_NO_EXPERT}, ".weight");
    struct matrix m;
    if (id < 0 || !t || !matrix_of(&m, t) || (uint32_t)id >= m.rows) {
        log_warn("there is no token %s: other programs will not take the mmproj file", want);
        return 0;
    }
    const uint64_t shape[4] = {t->shape[0], 1, 1, 1};
    m.skip = (uint32_t)id;
    m.rows = m.run = 1;
    return put_matrix(x, "v.token_embd.img_break", &m, shape) ? 0 : -1;
}

static int put_row(const struct tower_out *x, const struct tower_row *row, int layer)
{
    static const char *const suffixes[] = {".weight",    ".bias",       ".input_min",
                                           ".input_max", ".output_min", ".output_max"};
    const struct tensor_at at = {row->name, layer, LOOKUP_NO_EXPERT};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const struct tensor *t = lookup_find(&x->names, at, suffixes[i]);
        if (t && put_tensor(x, t, at, suffixes[i]))
            return -1;
    }
    return 0;
}

int gguf_tower_tensors(struct gguf_tensors *o, const struct store *s, const struct vision_params *v,
                       const struct recipe *recipe, struct err *e)
{
    struct tower_out x = {.o = o, .s = s, .v = v, .recipe = recipe, .e = e};
    lookup_open_tower(&x.names, s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool unused =
            !(rows[i].families & 1 << v->family) || (!strcmp(rows[i].name, "v.post_ln") && !v->last_norm);
        for (uint32_t n = 0; !unused && n < (rows[i].layer ? v->used_layers : 1); n++)
            if (put_row(&x, &rows[i], rows[i].layer ? (int)n : LOOKUP_NO_LAYER))
                return -1;
    }
    if (put_kernel(&x) || put_deepstack(&x) || put_break(&x))
        return -1;
    gguf_tensors_sort(o);
    return 0;
}

/* ---- keys ---- */

#define VISION "clip.vision."

static void put_shape(struct gguf_writer *w, const struct vision_params *v)
{
    const uint32_t side = (uint32_t)(sqrt((double)v->positions) + 0.5) * v->patch;
    const uint32_t image = v->image_size                 ? v->image_size
                           : v->family == VISION_QWEN3   ? side
                           : v->family == VISION_QWEN2   ? 560
                           : v->family == VISION_QWEN2_5 ? 560
                                                         : 224;
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{VISION "projection_dim", v->out_width},  {VISION "image_size", image},
                   {VISION "patch_size", v->patch},          {VISION "embedding_length", v->width},
                   {VISION "feed_forward_length", v->ffn},   {VISION "block_count", v->used_layers},
                   {VISION "attention.head_count", v->heads}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        gguf_put_u32(w, numbers[i].name, numbers[i].value);
    if (v->kv_heads != v->heads)
        gguf_put_u32(w, VISION "attention.head_count_kv", v->kv_heads);
    if (v->head_dim * v->heads != v->width)
        gguf_put_u32(w, VISION "attention.head_dim", v->head_dim);
    gguf_put_f32(w, VISION "attention.layer_norm_epsilon", v->eps);
    if (v->act == ACT_SILU)
        gguf_put_bool(w, "clip.use_silu", true);
    else if (v->act != ACT_GELU_QUICK)
        gguf_put_bool(w, "clip.use_gelu", true);
    if (v->act == (v->family == VISION_INTERNVL ? ACT_GELU_TANH : ACT_GELU)) /* not what the key means */
        gguf_put_bool(w, VISION VISION_GELU_ERF, v->act == ACT_GELU);
}

/* How many patches are merged is a key of its own in each family, or the family's usual number. */
static void put_merge(struct gguf_writer *w, const struct vision_params *v)
{
    const enum vision_family f = v->family;
    if (f == VISION_IDEFICS3 || f == VISION_INTERNVL || (f == VISION_GEMMA3 && v->merge != 4) ||
        (f == VISION_GEMMA4 && v->merge != 3))
        gguf_put_u32(w, VISION "projector.scale_factor", v->merge);
    if (f == VISION_QWEN3 || (f == VISION_PIXTRAL && !strcmp(v->model_type, "mistral3")) ||
        ((f == VISION_QWEN2 || f == VISION_QWEN2_5) && v->merge != 2))
        gguf_put_u32(w, VISION "spatial_merge_size", v->merge);
}

static void put_layers(struct gguf_writer *w, const struct vision_params *v)
{
    uint8_t deep[VISION_LAYERS_MOST] = {0};
    int32_t features[VISION_FEATURES_MOST];
    for (uint32_t i = 0; i < v->deepstacks; i++)
        deep[v->deepstack[i]] = 1;
    if (v->family == VISION_QWEN3)
        gguf_put_items(w, VISION "is_deepstack_layers", GGUF_BOOL, deep, v->layers);
    for (uint32_t i = 0; i < v->features; i++)
        features[i] = (int32_t)v->feature[i];
    if (v->family == VISION_LLAVA) /* without it the other program leaves the last layer out */
        gguf_put_items(w, VISION "feature_layer", GGUF_I32, features, v->features);
    for (uint32_t i = 0; v->family == VISION_QWEN2_5 && i < v->layers; i++)
        if (v->full[i]) {
            gguf_put_u32(w, VISION "n_wa_pattern", i + 1);
            break;
        }
    if (v->family == VISION_QWEN2_5 && v->window != 112)
        gguf_put_u32(w, VISION "window_size", v->window);
}

static void put_pixels(struct gguf_writer *w, const struct vision_params *v)
{
    const struct vision_pixels *p = &v->pixels;
    static const float none[3] = {0, 0, 0}, one[3] = {1, 1, 1};
    gguf_put_items(w, VISION "image_mean", GGUF_F32, p->normalise ? p->mean : none, 3);
    gguf_put_items(w, VISION "image_std", GGUF_F32, p->normalise ? p->std : one, 3);
    if (p->sizing == SIZING_SPLIT)
        gguf_put_u32(w, VISION "preproc_image_size", p->longest);
    if (p->sizing == SIZING_GRID) {
        gguf_put_u32(w, VISION "preproc_min_tiles", p->min_tiles);
        gguf_put_u32(w, VISION "preproc_max_tiles", p->max_tiles);
    }
    if (p->sizing == SIZING_TOKENS && p->max_tokens != 280) /* a key that other programs do not read */
        gguf_put_u32(w, VISION "image_max_pixels", p->max_tokens * v->patch * v->merge * v->patch * v->merge);
    if (p->sizing == SIZING_PIXELS && p->max_pixels < 1u << 24) {
        gguf_put_u32(w, VISION "image_min_pixels", (uint32_t)p->min_pixels);
        gguf_put_u32(w, VISION "image_max_pixels", (uint32_t)p->max_pixels);
    }
}

int gguf_tower_keys(struct gguf_writer *w, const struct store *s, const struct vision_params *v,
                    struct err *e)
{
    if (!v->projector[0])
        return err_set(e, ERR_DATA, "there is no mmproj file for images of %s", v->model_type);
    gguf_put_str(w, "general.architecture", "clip", 4);
    gguf_put_str(w, "general.type", "mmproj", 6);
    gguf_keys_name(w, s);
    gguf_put_bool(w, "clip.has_vision_encoder", true);
    gguf_put_str(w, v->family == VISION_GEMMA4 ? VISION "projector_type" : "clip.projector_type",
                 v->projector, strlen(v->projector));
    put_shape(w, v);
    put_merge(w, v);
    put_layers(w, v);
    put_pixels(w, v);
    if (v->family == VISION_GEMMA4)
        gguf_put_bool(w, VISION VISION_TWO_SIDED, v->two_sided);
    return 0;
}

/* ---- what is read again ---- */

#define SIZINGS(x) (1 << SIZING_##x)
#define ANY        (~0)

/* Fields that have to be the folder's; of pixels only those that this way of sizing uses. */
static const struct tower_field {
    const char *name;
    size_t at, size;
    int sizings; /* of pixels; 0: the tower's */
} fields[] = {
#define TOWER(f)                                                                                             \
    {                                                                                                        \
#f, offsetof(struct vision_params, f), sizeof((struct vision_params *)0)->f, 0                       \
    }
#define PIXELS(f, s)                                                                                         \
    {                                                                                                        \
#f, offsetof(struct vision_params, pixels.f), sizeof((struct vision_params *)0)->pixels.f, s         \
    }
    TOWER(patch),
    TOWER(merge),
    TOWER(width),
    TOWER(heads),
    TOWER(kv_heads),
    TOWER(head_dim),
    TOWER(ffn),
    TOWER(out_width),
    TOWER(used_layers),
    TOWER(features),
    TOWER(feature),
    TOWER(class_row),
    TOWER(keep_class),
    TOWER(drop_first),
    TOWER(projector_act),
    TOWER(eps),
    TOWER(theta),
    TOWER(window),
    TOWER(full),
    TOWER(deepstacks),
    TOWER(deepstack),
    TOWER(two_sided),
    PIXELS(sizing, ANY),
    PIXELS(filter, ANY),
    PIXELS(resize, ANY),
    PIXELS(rescale, ANY),
    PIXELS(width, SIZINGS(EXACT) | SIZINGS(CROP)),
    PIXELS(height, SIZINGS(EXACT) | SIZINGS(CROP)),
    PIXELS(pan, SIZINGS(EXACT)),
    PIXELS(crop, SIZINGS(CROP)),
    PIXELS(square, SIZINGS(CROP)),
    PIXELS(shortest, SIZINGS(CROP)),
    PIXELS(longest, SIZINGS(LONGEST) | SIZINGS(SPLIT)),
    PIXELS(split, SIZINGS(SPLIT)),
    PIXELS(tile, SIZINGS(SPLIT) | SIZINGS(GRID)),
    PIXELS(thumbnail, SIZINGS(GRID)),
    PIXELS(min_tiles, SIZINGS(GRID)),
    PIXELS(max_tiles, SIZINGS(GRID)),
    PIXELS(min_pixels, SIZINGS(PIXELS)),
    PIXELS(max_pixels, SIZINGS(PIXELS)),
    PIXELS(max_tokens, SIZINGS(TOKENS)),
#undef TOWER
#undef PIXELS
};

int gguf_tower_check(const char *path, const struct vision_params *v, struct err *e)
{
    struct store file = {.kind = STORE_GGUF, .path = path};
    struct vision_params again;
    struct buf others = {0};
    const char *wrong = NULL;
    if (gguf_open(&file.gguf, path, e) < 0)
        return -1;
    int failed = vision_read(&again, &file, e);
    gguf_close(file.gguf);
    for (size_t i = 0; !failed && i < sizeof fields / sizeof *fields; i++) {
        const struct tower_field *f = &fields[i];
        const bool same = !memcmp((const char *)v + f->at, (const char *)&again + f->at, f->size);
        if (!f->sizings)
            wrong = same ? wrong : f->name;
        else if (!same && f->sizings & 1 << v->pixels.sizing)
            buf_printf(&others, "%s%s", others.len ? ", " : "", f->name);
    }
    wrong = !failed && v->act != again.act ? "act" : wrong;
    if (wrong)
        failed = err_set(e, ERR_DATA, "no mmproj file can have this tower: its '%s' has no key there", wrong);
    else if (!failed && others.len && !others.failed)
        log_warn("an mmproj file does not say all of how images are prepared; here it differs in: %s",
                 others.data);
    buf_free(&others);
    return failed ? -1 : 0;
}
