#include "quant/recipe.h"

#include "base/buf.h"
#include "codec/dtype.h"
#include "base/log.h"
#include "format/file_type.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct recipe recipes[] = {
    {"F32", FILE_F32, DTYPE_F32},          {"F16", FILE_F16, DTYPE_F16},
    {"BF16", FILE_BF16, DTYPE_BF16},       {"Q8_0", FILE_Q8_0, DTYPE_Q8_0},
    {"Q6_K", FILE_Q6_K, DTYPE_Q6_K},       {"Q5_K_M", FILE_Q5_K_M, DTYPE_Q5_K},
    {"Q5_K_S", FILE_Q5_K_S, DTYPE_Q5_K},   {"Q4_K_M", FILE_Q4_K_M, DTYPE_Q4_K},
    {"Q4_K_S", FILE_Q4_K_S, DTYPE_Q4_K},   {"Q3_K_L", FILE_Q3_K_L, DTYPE_Q3_K},
    {"Q3_K_M", FILE_Q3_K_M, DTYPE_Q3_K},   {"Q3_K_S", FILE_Q3_K_S, DTYPE_Q3_K},
    {"Q2_K", FILE_Q2_K, DTYPE_Q2_K},       {"Q2_K_S", FILE_Q2_K_S, DTYPE_Q2_K},
    {"Q5_1", FILE_Q5_1, DTYPE_Q5_1},       {"Q5_0", FILE_Q5_0, DTYPE_Q5_0},
    {"Q4_1", FILE_Q4_1, DTYPE_Q4_1},       {"Q4_0", FILE_Q4_0, DTYPE_Q4_0},
    {"IQ4_NL", FILE_IQ4_NL, DTYPE_IQ4_NL}, {"IQ4_XS", FILE_IQ4_XS, DTYPE_IQ4_XS},
    {"MXFP4", FILE_MXFP4, DTYPE_MXFP4},    {"TQ2_0", FILE_TQ2_0, DTYPE_TQ2_0},
    {"TQ1_0", FILE_TQ1_0, DTYPE_TQ1_0},
};
enum { RECIPES = sizeof recipes / sizeof *recipes };

const struct recipe *recipe_find(const char *name, struct err *e)
{
    static const char *const other[][2] = {
        {"Q5_K", "Q5_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q3_K", "Q3_K_M"}, {"MXFP4_MOE", "MXFP4"}};
    const char *want = name;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (!strcasecmp(name, other[i][0]))
            want = other[i][1];
    struct buf list = {.max = 1024};
    for (size_t i = 0; i < RECIPES; i++) {
        if (!strcasecmp(want, recipes[i].name)) {
            buf_free(&list);
            return &recipes[i];
        }
        buf_printf(&list, "%s%s", i ? ", " : "", recipes[i].name);
    }
    err_set(e, ERR_USAGE, "there is no type '%s'; these are: %s", log_safe(name), list.data ? list.data : "");
    buf_free(&list);
    return NULL;
}

/* ---- what a tensor is ---- */

enum part { PART_OTHER, PART_OUTPUT, PART_EMBED, PART_V, PART_K, PART_OUT, PART_DOWN };

static bool has(const char *name, const char *piece)
{
    return strstr(name, piece) != NULL;
}

static enum part part_of(const char *name)
{
    if (!strcmp(name, "output.weight"))
        return PART_OUTPUT;
    if (!strcmp(name, "token_embd.weight") || !strcmp(name, "per_layer_token_embd.weight"))
        return PART_EMBED;
    if (has(name, "attn_qkv.weight") || has(name, "attn_kv_b.weight") || has(name, "attn_v.weight"))
        return PART_V;
    if (has(name, "attn_k.weight"))
        return PART_K;
    if (has(name, "attn_output.weight"))
        return PART_OUT;
    return has(name, "ffn_down") ? PART_DOWN : PART_OTHER;
}

bool recipe_takes(const struct recipe_tensor *t)
{
    /* norms, routers, positions, and small matrices of families that mix over time */
    static const char *const kept[] = {
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_tid2eid.weight",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "position_embd",
        "token_types.weight",
        "ssm_conv1d",
        "shortconv.conv",
        "indexer.k_proj",
        "indexer.q_proj",
        "time_mix_first",
        "time_mix_w0",
        "time_mix_w1",
        "time_mix_w2",
        "time_mix_v0",
        "time_mix_v1",
        "time_mix_v2",
        "time_mix_a0",
        "time_mix_a1",
        "time_mix_a2",
        "time_mix_g1",
        "time_mix_g2",
        "time_mix_decay_w1",
        "time_mix_decay_w2",
        "time_mix_lerp_fused",
        "attn_rel_b",
        ".rel_pos",
        ".patch_embd",
        ".patch_merger",
    };
    size_t n = strlen(t->name);
    bool yes = t->dims >= 2 && n >= 6 && !strcmp(t->name + n - 6, "weight");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        yes = yes && !has(t->name, kept[i]);
    return yes;
}

static int layer_of(const char *name)
{
    return strncmp(name, "blk.", 4) ? -1 : (int)strtol(name + 4, NULL, 10);
}

int recipe_before(const char *a, const char *b)
{
    int la = layer_of(a), lb = layer_of(b);
    return la != lb ? (la < lb ? -1 : 1) : strcmp(a, b);
}

/* ---- the rules ---- */

/* When a rule applies: all of its flags hold. */
enum {
    MORE_BITS = 1, /* the first and the last eighth of the layers, and every third between */
    EIGHTH = 2,    /* the first eighth */
    SIXTEENTH = 4, /* the first sixteenth */
    FIRST_TWO = 8,
    FIRST_FOUR = 16,
    SHARED_KV = 32, /* four or more query heads to one of keys and values */
    FALCON = 64,
    NOT_FALCON = 128,
    IMPORTANCE = 256,
    NO_IMPORTANCE = 512,
    EIGHT_EXPERTS = 1024,
    NOT_EIGHT_EXPERTS = 2048
};

/* The first that holds counts; where none does, the recipe's base type does. */
static const struct rule {
    uint8_t file, part;
    uint16_t when;
    uint8_t type;
} rules[] = {
    {FILE_Q2_K, PART_V, SHARED_KV, DTYPE_Q4_K},
    {FILE_Q2_K, PART_V, 0, DTYPE_Q3_K},
    {FILE_Q2_K, PART_DOWN, 0, DTYPE_Q3_K},
    {FILE_Q2_K, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_Q2_K, PART_OUT, NOT_FALCON, DTYPE_Q3_K},
    {FILE_Q2_K_S, PART_V, SHARED_KV, DTYPE_Q4_K},
    {FILE_Q2_K_S, PART_DOWN, EIGHTH, DTYPE_Q4_K},
    {FILE_Q3_K_S, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_Q3_K_M, PART_V, FIRST_TWO, DTYPE_Q5_K},
    {FILE_Q3_K_M, PART_V, 0, DTYPE_Q4_K},
    {FILE_Q3_K_M, PART_DOWN, SIXTEENTH, DTYPE_Q5_K},
    {FILE_Q3_K_M, PART_DOWN, NOT_FALCON, DTYPE_Q4_K},
    {FILE_Q3_K_M, PART_DOWN, MORE_BITS, DTYPE_Q4_K},
    {FILE_Q3_K_M, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_Q3_K_M, PART_OUT, NOT_FALCON, DTYPE_Q4_K},
    {FILE_Q3_K_L, PART_V, 0, DTYPE_Q5_K},
    {FILE_Q3_K_L, PART_DOWN, FALCON, DTYPE_Q4_K},
    {FILE_Q3_K_L, PART_DOWN, 0, DTYPE_Q5_K},
    {FILE_Q3_K_L, PART_OUT, FALCON, DTYPE_Q4_K},
    {FILE_Q3_K_L, PART_OUT, NOT_EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_Q4_K_S, PART_V, FIRST_FOUR, DTYPE_Q5_K},
    {FILE_Q4_K_S, PART_DOWN, NOT_FALCON | EIGHTH, DTYPE_Q5_K},
    {FILE_Q4_K_S, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_Q4_K_M, PART_V, MORE_BITS, DTYPE_Q6_K},
    {FILE_Q4_K_M, PART_DOWN, FALCON | SIXTEENTH, DTYPE_Q6_K},
    {FILE_Q4_K_M, PART_DOWN, FALCON | MORE_BITS, DTYPE_Q5_K},
    {FILE_Q4_K_M, PART_DOWN, NOT_FALCON | MORE_BITS, DTYPE_Q6_K},
    {FILE_Q4_K_M, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_Q5_K_M, PART_V, MORE_BITS, DTYPE_Q6_K},
    {FILE_Q5_K_M, PART_DOWN, MORE_BITS, DTYPE_Q6_K},
    {FILE_Q4_0, PART_DOWN, IMPORTANCE | EIGHTH, DTYPE_Q4_1},
    {FILE_Q5_0, PART_DOWN, IMPORTANCE | EIGHTH, DTYPE_Q5_1},
    {FILE_IQ4_NL, PART_V, SHARED_KV, DTYPE_Q5_K},
    {FILE_IQ4_NL, PART_DOWN, NO_IMPORTANCE | EIGHTH, DTYPE_Q5_K},
    {FILE_IQ4_NL, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_IQ4_XS, PART_V, SHARED_KV, DTYPE_Q5_K},
    {FILE_IQ4_XS, PART_DOWN, NO_IMPORTANCE | EIGHTH, DTYPE_Q5_K},
    {FILE_IQ4_XS, PART_OUT, NOT_FALCON | EIGHT_EXPERTS, DTYPE_Q5_K},
    {FILE_TQ1_0, PART_EMBED, 0, DTYPE_Q4_K},
    {FILE_TQ2_0, PART_EMBED, 0, DTYPE_Q4_K},
};

/* What holds for the i-th of n tensors of a kind. */
static unsigned holds(const struct recipe_model *m, int i, int n)
{
    bool more = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2, falcon = !strcmp(m->arch, "falcon");
    unsigned w = more ? MORE_BITS : 0;
    w |= i < n / 8 ? EIGHTH : 0;
    w |= i < n / 16 ? SIXTEENTH : 0;
    w |= i < 2 ? FIRST_TWO : 0;
    w |= i < 4 ? FIRST_FOUR : 0;
    w |= m->kv_heads && m->heads / m->kv_heads >= 4 ? SHARED_KV : 0;
    w |= falcon ? FALCON : NOT_FALCON;
    w |= m->importance ? IMPORTANCE : NO_IMPORTANCE;
    return w | (m->experts == 8 ? EIGHT_EXPERTS : NOT_EIGHT_EXPERTS);
}

/* Models of 70 billion weights have few keys and values for their size. */
static bool largest(const struct recipe_model *m)
{
    bool llama = !strcmp(m->arch, "llama") && m->heads != m->kv_heads;
    return m->layers == 80 && (llama || !strcmp(m->arch, "qwen2") || !strcmp(m->arch, "olmo"));
}

static uint32_t by_rule(const struct recipe *r, const struct recipe_model *m, enum part part, int i, int n)
{
    uint32_t type = r->base;
    unsigned now = holds(m, i, n);
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++)
        if (rules[k].file == r->file_type && rules[k].part == part &&
            (rules[k].when & now) == rules[k].when) {
            type = rules[k].type;
            break;
        }
    if (part == PART_V && largest(m) && (type == DTYPE_Q3_K || type == DTYPE_Q4_K))
        type = DTYPE_Q5_K;
    if ((part == PART_V || part == PART_K) && m->experts == 8)
        type = DTYPE_Q8_0;
    return type;
}

/* The head, or the embedding that is the head as well. */
static uint32_t of_head(const struct recipe *r, const struct recipe_model *m)
{
    bool eight = r->base == DTYPE_MXFP4 || r->base == DTYPE_Q8_0 || !strcmp(m->arch, "falcon");
    return eight ? DTYPE_Q8_0 : DTYPE_Q6_K;
}

uint32_t recipe_fits(uint32_t type, uint64_t cols)
{
    static const struct {
        uint8_t from, to;
    } instead[] = {{DTYPE_IQ4_XS, DTYPE_IQ4_NL}, {DTYPE_Q2_K, DTYPE_Q4_0}, {DTYPE_Q3_K, DTYPE_Q4_0},
                   {DTYPE_Q4_K, DTYPE_Q5_0},     {DTYPE_Q5_K, DTYPE_Q5_1}, {DTYPE_Q6_K, DTYPE_Q8_0},
                   {DTYPE_TQ1_0, DTYPE_Q4_0},    {DTYPE_TQ2_0, DTYPE_Q4_0}};
    if (cols % dtype_get(type)->block_values == 0)
        return type;
    for (size_t i = 0; i < sizeof instead / sizeof *instead; i++)
        if (instead[i].from == type && cols % dtype_get(instead[i].to)->block_values == 0)
            return instead[i].to;
    return DTYPE_F16;
}

void recipe_choose(const struct recipe *r, const struct recipe_model *m, struct recipe_tensor *t, size_t n,
                   bool pure)
{
    int v_all = 0, v = 0, down = 0;
    bool tied = true, plain = dtype_get(r->base)->block_values == 1;
    for (size_t i = 0; i < n; i++) {
        v_all += part_of(t[i].name) == PART_V;
        tied = tied && part_of(t[i].name) != PART_OUTPUT;
    }
    for (size_t i = 0; i < n; i++) {
        enum part part = part_of(t[i].name);
        bool head = part == PART_OUTPUT || (tied && part == PART_EMBED);
        t[i].type = t[i].wanted = t[i].kept;
        if (!recipe_takes(&t[i]))
            continue;
        if (plain || pure)
            t[i].type = r->base;
        else if (head)
            t[i].type = of_head(r, m);
        else if (r->base == DTYPE_MXFP4)
            t[i].type = t[i].dims > 2 ? DTYPE_MXFP4 : DTYPE_Q8_0;
        else if (part == PART_V)
            t[i].type = by_rule(r, m, part, v, v_all);
        else /* experts are counted by their layer */
            t[i].type = by_rule(r, m, part, m->experts > 1 ? layer_of(t[i].name) : down, (int)m->layers);
        t[i].wanted = t[i].type;
        if (!plain && !pure && head && t[i].cols % dtype_get(r->base)->block_values)
            t[i].type = DTYPE_Q8_0; /* where rows do not fit the base type, the head does not try another */
        t[i].type = recipe_fits(t[i].type, t[i].cols);
        v += part == PART_V;
        down += part == PART_DOWN;
    }
}

void recipe_add_instead(struct recipe_instead *to, uint32_t wanted, uint32_t type, uint64_t cols)
{
    size_t i = 0;
    if (wanted == type)
        return;
    while (i < to->count && (to->all[i].wanted != wanted || to->all[i].type != type))
        i++;
    if (i == RECIPE_INSTEAD)
        return;
    if (i == to->count)
        to->all[to->count++] = (struct recipe_swap){wanted, type, cols, 0};
    to->all[i].tensors++;
}

void recipe_write_instead(const struct recipe_instead *from, struct buf *out)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct recipe_swap *s = &from->all[i];
        buf_printf(out, "%s%u %s %s instead of %s (rows of %llu values, blocks of %u)", i ? ", " : "",
                   s->tensors, s->tensors == 1 ? "tensor is" : "tensors are", dtype_get(s->type)->name,
                   dtype_get(s->wanted)->name, (unsigned long long)s->cols,
                   (unsigned)dtype_get(s->wanted)->block_values);
    }
}
