/* Recurrent layers: what stands in the place of attention. Each is a projection of the input, a causal convolution, a
 * recurrence, and a product of its gated and normed output. */
#include "model/build.h"

#include "base/mem.h"
#include "model/arch.h"

#include <math.h>
#include <string.h>

/* Buffer i of a recurrent layer, at least so wide. */
static struct operand mix(struct build *b, uint32_t i, uint32_t width)
{
    if (!b->mix[i].buffer)
        b->mix[i] = plan_buffer(b->p, width);
    else if (b->p->width[b->mix[i].buffer] < width)
        b->p->width[b->mix[i].buffer] = width;
    return b->mix[i];
}

static struct operand column(struct operand o, uint32_t col)
{
    o.col += col;
    return o;
}

/* A weight of n numbers, each f(x); suffix "" is that of parameters without one. */
static weight_id bind_mapped(struct build *b, const char *name, uint32_t layer, const char *suffix,
                             struct shape s, float (*f)(float))
{
    struct tensor_at at = {name, (int)layer, LOOKUP_NO_EXPERT};
    const struct tensor *t = bind_tensor(&b->bind, at, suffix);
    size_t n = (size_t)s.rows * s.cols;
    const float *data = t ? bind_floats(&b->bind, t, n, 0) : NULL;
    float *mapped = data && f ? bind_memory(&b->bind, n * sizeof *mapped) : NULL;
    for (size_t i = 0; mapped && i < n; i++)
        mapped[i] = f(data[i]);
    struct bound of = {.name = name, .layer = (int)layer, .suffix = suffix};
    return data ? bind_table(&b->bind, t->name, &of, mapped ? mapped : data, s) : 0;
}

static float minus_exp(float x)
{
    return -expf(x);
}

/* Files of Hugging Face hold the logarithm of -A. */
static weight_id bind_decay(struct build *b, uint32_t layer, struct shape s)
{
    return bind_mapped(b, "ssm_a", layer, "", s, b->h->container == STORE_GGUF ? NULL : minus_exp);
}

static void build_conv(struct build *b, uint32_t layer, const char *name, struct op_conv conv)
{
    struct op_conv *o = &plan_add(b->p, OP_CONV, layer)->conv;
    *o = conv;
    o->cols = b->h->ssm.conv;
    o->weight = bind_mapped(b, name, layer, ".weight", (struct shape){o->channels, o->cols, 1}, NULL);
    o->bias = bind_optional(&b->bind, name, (int)layer, ".bias", o->channels);
    o->state = plan_keep(b->p, layer, 1, o->cols > 1 ? o->cols - 1 : 1, o->channels);
}

static struct op_proj *build_proj(struct build *b, uint32_t layer, struct norm in, struct operand out)
{
    struct op_proj *o = &plan_add(b->p, OP_PROJ, layer)->proj;
    *o = (struct op_proj){.in = b->x, .norm = in, .out = out};
    for (uint32_t i = 0; i < PROJ_MOST; i++)
        o->scale[i] = 1;
    return o;
}

static struct op_scan *build_scan(struct build *b, uint32_t layer)
{
    const struct ssm_params *s = &b->h->ssm;
    struct op_scan *o = &plan_add(b->p, OP_SCAN, layer)->scan;
    *o = (struct op_scan){.heads = s->heads, .k_heads = s->groups, .k_dim = s->state};
    o->v_dim = s->heads ? s->inner / s->heads : 0;
    o->q_scale = o->k_scale = o->write_scale = 1;
    o->dt_range[0] = s->dt_range[0], o->dt_range[1] = s->dt_range[1];
    o->decay_kind = DECAY_SOFTPLUS;
    o->state = plan_keep(b->p, layer, o->heads, o->k_dim, o->v_dim);
    return o;
}

static struct op_out *build_back(struct build *b, uint32_t layer, const char *name, struct operand in)
{
    struct op_out *o = &plan_add(b->p, OP_OUT, layer)->out;
    uint32_t width = b->p->width ? b->p->width[in.buffer] : 0;
    *o = (struct op_out){.in = in};
    o->linear = bind_linear(&b->bind, name, (int)layer, b->h->width, width);
    o->tail = (struct tail){.scale = b->h->residual_scale, .residual = b->x, .out = b->x};
    return o;
}

struct op_out *build_mamba2(struct build *b, uint32_t layer, struct norm in)
{
    const struct ssm_params *s = &b->h->ssm;
    uint32_t inner = s->inner, bc = s->groups * s->state, channels = inner + 2 * bc;
    struct operand p = mix(b, 0, inner + channels + s->heads), c = mix(b, 1, channels), y = mix(b, 2, inner);
    struct op_proj *proj = build_proj(b, layer, in, p); /* z, x, B, C, dt */
    proj->count = 1;
    proj->linear[0] = bind_linear(&b->bind, "ssm_in", (int)layer, inner + channels + s->heads, b->h->width);
    build_conv(b, layer, "ssm_conv1d",
               (struct op_conv){.in = column(p, inner), .out = c, .channels = channels, .act = ACT_SILU});
    struct op_scan *scan = build_scan(b, layer);
    scan->v = c, scan->k = column(c, inner), scan->q = column(c, inner + bc), scan->out = y;
    scan->decay = column(p, inner + channels);
    scan->a = bind_decay(b, layer, (struct shape){1, s->heads, 1});
    scan->bias = bind_vector(&b->bind, "ssm_dt", (int)layer, ".bias", s->heads, 0);
    scan->skip = bind_mapped(b, "ssm_d", layer, "", (struct shape){1, s->heads, 1}, NULL);
    struct op_out *o = build_back(b, layer, "ssm_out", y);
    o->gate = (struct gate){.in = p, .act = ACT_SILU, .first = true};
    if (bind_has(&b->bind, "ssm_norm", (int)layer)) {
        o->norm = (struct norm){.kind = NORM_RMS, .eps = b->h->eps, .heads = s->groups};
        o->norm.weight = bind_vector(&b->bind, "ssm_norm", (int)layer, ".weight", inner, 0);
    }
    return o;
}
