/* Projectors: from the rows of a tower's last layer to rows of the text model. */
#include "model/vision/tower_build.h"

#include <math.h>

/* A product of all of a tensor whose layout is another: `swap` of its columns. */
static struct linear tower_swapped(struct tower_build *b, const char *name, struct shape want,
                                   struct matrix_swap swap)
{
    struct matrix m = bind_find(&b->bind, tower_at(name), want);
    m.col_swap = swap;
    struct linear l = {.weight = bind_add(&b->bind, name, LOOKUP_NO_LAYER, &m)};
    l.bias = bind_optional(&b->bind, name, LOOKUP_NO_LAYER, ".bias", want.rows);
    return l;
}

/* out = down(act(up(norm(in)))), without a residual. */
static struct op_ffn *tower_mlp(struct tower_build *b, struct operand in, struct norm norm, struct linear up,
                                struct linear down, struct operand out)
{
    struct op_ffn *o = &plan_add(b->p, OP_FFN, UINT32_MAX)->ffn;
    *o = (struct op_ffn){.in = in,
                         .norm = norm,
                         .up = up,
                         .down = down,
                         .act = b->v->projector_act,
                         .tail = {.scale = 1, .out = out}};
    return o;
}

static void tower_product(struct tower_build *b, struct operand in, struct norm norm, struct linear linear,
                          struct operand out)
{
    plan_add(b->p, OP_OUT, UINT32_MAX)->out =
        (struct op_out){.in = in, .norm = norm, .linear = linear, .tail = {.scale = 1, .out = out}};
}

static struct linear tower_linear(struct tower_build *b, const char *name, uint32_t rows, uint32_t cols)
{
    return bind_linear(&b->bind, name, LOOKUP_NO_LAYER, rows, cols);
}

/* The last layer's rows, normed, in a buffer of their own that can be folded. */
static struct operand tower_normed(struct tower_build *b, struct norm norm)
{
    if (!norm.kind)
        return b->x;
    struct operand to = plan_buffer(b->p, b->v->width);
    tower_map(b, UINT32_MAX, b->x, to, b->v->width)->norm = norm;
    return to;
}

/* The same with the norm behind the tower's last layer, where that is used. */
static struct operand tower_last(struct tower_build *b, struct norm norm)
{
    return b->v->last_norm ? tower_normed(b, norm) : b->x;
}

static struct operand tower_fold(struct tower_build *b, struct operand of)
{
    return b->t->folded > 1 ? plan_fold(b->p, of, b->t->folded) : of;
}

/* The mean of the rows that are merged. */
static struct operand tower_mean(struct tower_build *b, struct operand of)
{
    if (b->t->folded < 2)
        return of;
    struct operand to = plan_buffer(b->p, b->v->width), folded = tower_fold(b, of);
    plan_add(b->p, OP_MIX, UINT32_MAX)->mix = (struct op_mix){.in = folded,
                                                              .out = to,
                                                              .outs = 1,
                                                              .ins = b->t->folded,
                                                              .width = b->v->width,
                                                              .bias = 1.0f / (float)b->t->folded};
    return to;
}

static void project_llava(struct tower_build *b, struct operand out)
{
    const struct vision_params *v = b->v;
    const struct operand in = v->features > 1 ? b->features : b->x;
    tower_mlp(b, in, (struct norm){0}, tower_linear(b, "mm.0", v->out_width, v->features * v->width),
              tower_linear(b, "mm.2", v->out_width, v->out_width), out);
}

/* The matrix of a folder lies transposed; GGUF has it the same way. */
static void project_gemma3(struct tower_build *b, struct operand out)
{
    const struct vision_params *v = b->v;
    struct operand rows = tower_mean(b, tower_last(b, tower_norm(b, "v.post_ln", -1, v->width, v->eps)));
    struct matrix m =
        bind_find(&b->bind, tower_at("mm.input_projection"), (struct shape){v->width, v->out_width, 1});
    m = m.data ? matrix_turn(&m) : m;
    struct linear l = {.weight = bind_add(&b->bind, "mm.input_projection", LOOKUP_NO_LAYER, &m)};
    struct norm soft = {.kind = NORM_RMS, .eps = v->eps};
    soft.weight =
        bind_vector(&b->bind, "mm.soft_emb_norm", LOOKUP_NO_LAYER, ".weight", v->width, b->gguf ? 0 : 1);
    tower_product(b, rows, soft, l, out);
}

/* (x - bias) * scale, where the file has them. */
static void tower_standardise(struct tower_build *b, struct op_map *o)
{
    const uint32_t n = b->v->width;
    const struct tensor *bias = lookup_find(&b->bind.names, tower_at("v.std_bias"), ".weight");
    o->times = bind_optional(&b->bind, "v.std_scale", LOOKUP_NO_LAYER, ".weight", n);
    const float *less = bias && o->times ? bind_floats(&b->bind, bias, n, 0) : NULL;
    const float *times = less ? (const float *)(const void *)b->t->model.weights.all[o->times].data : NULL;
    float *plus = times ? bind_memory(&b->bind, n * sizeof *plus) : NULL;
    for (uint32_t i = 0; plus && i < n; i++)
        plus[i] = -less[i] * times[i];
    if (plus)
        o->plus = bind_table(&b->bind, "standard", NULL, plus, (struct shape){1, n, 1});
}

static void project_gemma4(struct tower_build *b, struct operand out)
{
    const struct vision_params *v = b->v;
    struct operand rows = tower_mean(b, b->x), to = plan_buffer(b->p, v->width);
    struct op_map *o = tower_map(b, UINT32_MAX, rows, to, v->width);
    o->factor = sqrtf((float)v->width);
    tower_standardise(b, o);
    tower_product(b, to, (struct norm){.kind = NORM_RMS, .eps = v->eps},
                  tower_linear(b, "mm.input_projection", v->out_width, v->width), out);
}

static void project_idefics3(struct tower_build *b, struct operand out)
{
    const struct vision_params *v = b->v;
    struct operand rows = tower_fold(b, tower_last(b, tower_norm(b, "v.post_ln", -1, v->width, v->eps)));
    tower_product(b, rows, (struct norm){0},
                  tower_linear(b, "mm.model.fc", v->out_width, v->width * b->t->folded), out);
}

/* The merging matrix (mistral3) has the values of a channel side by side. */
static void project_pixtral(struct tower_build *b, struct operand out)
{
    const struct vision_params *v = b->v;
    const uint32_t n = b->t->folded;
    struct operand rows = tower_normed(b, tower_norm(b, "mm.input_norm", -1, v->width, v->projector_eps));
    if (n > 1 || bind_has(&b->bind, "mm.patch_merger", LOOKUP_NO_LAYER)) {
        struct operand folded = tower_fold(b, rows), merged = plan_buffer(b->p, v->width);
        tower_product(b, folded, (struct norm){0},
                      tower_swapped(b, "mm.patch_merger", (struct shape){v->width, v->width * n, 1},
                                    (struct matrix_swap){0, v->width, n, 1}),
                      merged);
        rows = merged;
    }
    const char *first = bind_has(&b->bind, "mm.1", LOOKUP_NO_LAYER) ? "mm.1" : "mm.0";
    tower_mlp(b, rows, (struct norm){0}, tower_linear(b, first, v->out_width, v->width),
              tower_linear(b, "mm.2", v->out_width, v->out_width), out);
}

/* One of the mergers that take rows of an earlier layer: `at` its number in the file. */
static void project_deepstack(struct tower_build *b, struct operand folded, int at, struct operand out)
{
    const struct vision_params *v = b->v;
    const uint32_t n = v->width * b->t->folded, rows[2] = {n, v->out_width};
    static const char *const names[2] = {"v.deepstack.#.fc1", "v.deepstack.#.fc2"};
    const struct tensor_at norm_at = {"v.deepstack.#.norm", LOOKUP_NO_LAYER, at};
    struct norm norm = {.kind = NORM_LAYER, .eps = v->projector_eps};
    struct linear l[2] = {{0}};
    for (int i = 0; i < 4; i++) { /* weight and bias of the norm, then biases of the products */
        const struct tensor_at on = i < 2 ? norm_at : (struct tensor_at){names[i - 2], LOOKUP_NO_LAYER, at};
        const uint32_t len = i < 2 ? n : rows[i - 2];
        const struct tensor *t = bind_tensor(&b->bind, on, i ? ".bias" : ".weight");
        const float *x = t ? bind_floats(&b->bind, t, len, 0) : NULL;
        weight_id id = x ? bind_table(&b->bind, t->name, NULL, x, (struct shape){1, len, 1}) : 0;
        *(i == 0 ? &norm.weight : i == 1 ? &norm.bias : &l[i - 2].bias) = id;
    }
    for (int i = 0; i < 2; i++) {
        const struct tensor_at on = {names[i], LOOKUP_NO_LAYER, at};
        struct matrix m = bind_find(&b->bind, on, (struct shape){rows[i], n, 1});
        l[i].weight = bind_add(&b->bind, names[i], LOOKUP_NO_LAYER, &m);
    }
    tower_mlp(b, folded, norm, l[0], l[1], out);
}

/* saved: rows of the layers of deepstack, a buffer for each. */
static void project_qwen(struct tower_build *b, const struct operand *saved, struct operand out)
{
    const struct vision_params *v = b->v;
    const uint32_t n = v->width * b->t->folded;
    struct operand folded[VISION_DEEPSTACK_MOST];
    struct operand rows = tower_last(b, tower_norm(b, "v.post_ln", -1, v->width, v->projector_eps));
    rows = tower_fold(b, rows);
    for (uint32_t i = 0; i < v->deepstacks; i++)
        folded[i] = tower_fold(b, saved[i]);
    tower_mlp(b, rows, (struct norm){0}, tower_linear(b, "mm.0", n, n),
              tower_linear(b, "mm.2", v->out_width, n), out);
    for (uint32_t i = 0; i < v->deepstacks; i++) {
        out.col += v->out_width;
        project_deepstack(b, folded[i], (int)v->merger[i], out);
    }
}

static void project_internvl(struct tower_build *b, struct operand out)
{
    const struct vision_params *v = b->v;
    const uint32_t n = v->width * b->t->folded;
    struct operand rows = tower_fold(b, tower_last(b, tower_norm(b, "v.post_ln", -1, v->width, v->eps)));
    tower_mlp(b, rows, tower_norm(b, "mm.model.mlp.0", -1, n, 1e-5f),
              tower_linear(b, "mm.model.mlp.1", v->out_width, n),
              tower_linear(b, "mm.model.mlp.3", v->out_width, v->out_width), out);
}

void tower_project(struct tower_build *b, const struct operand *saved)
{
    const struct vision_params *v = b->v;
    struct operand out = plan_buffer(b->p, v->out_width * (1 + v->deepstacks));
    switch (v->family) {
    case VISION_LLAVA:
    case VISION_LLAVA_NEXT:
        project_llava(b, out);
        break;
    case VISION_GEMMA3:
        project_gemma3(b, out);
        break;
    case VISION_GEMMA4:
        project_gemma4(b, out);
        break;
    case VISION_IDEFICS3:
        project_idefics3(b, out);
        break;
    case VISION_PIXTRAL:
        project_pixtral(b, out);
        break;
    case VISION_QWEN2:
    case VISION_QWEN2_5:
    case VISION_QWEN3:
        project_qwen(b, saved, out);
        break;
    case VISION_INTERNVL:
        project_internvl(b, out);
        break;
    case VISION_NONE:
        break;
    }
    plan_add(b->p, OP_LOGITS, UINT32_MAX)->logits = (struct op_logits){.in = out, .scale = 1};
    b->p->out_width = v->out_width * (1 + v->deepstacks);
}
