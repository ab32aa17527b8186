/* The building blocks of a family's plan: norms, attention, feed-forward, each bound to its weights and
 * appended to the plan. A family file combines them and adjusts details through the returned pointers, which
 * are valid until the next operation is added.
 *
 * x is the residual stream; y a second one for families that compute attention and feed-forward side by side
 * (build_parallel makes it the stream). */
#pragma once

#include "device/plan.h"
#include "model/bind.h"
#include "model/hparams.h"
#include "model/model.h"

/* Buffers of a recurrent layer. */
enum { MIX_IN, MIX_CONV, MIX_OUT, MIX_LOW, MIX_STEP, MIX_COUNT };

struct build {
    const struct hparams *h;
    struct plan *p;
    struct binder bind;
    uint32_t ctx;
    struct model_images images;
    struct operand deep;           /* rows of deepstack, 0 for tokens; a part for each of the first layers */
    struct operand x, y, q, a;     /* (width), (width), (heads * k_dim), (heads * v_dim) */
    weight_id table;               /* the embedding: maybe the head too */
    struct rope rope[2];           /* of full and of sliding layers */
    weight_id alibi;               /* (heads, 2 ctx + 1): ALiBi by distance */
    struct operand mix[MIX_COUNT]; /* what passes between the operations of a recurrent layer */
    struct {
        struct linear linear; /* weight 0: none */
        struct norm norm;
        uint32_t heads; /* 0: a number for each column */
        bool made;      /* its rows are */
    } gate;             /* of the attention that build_out is to end */
    struct operand g;   /* its rows; made when first used */
};

/* Buffers and the tables of rope; then a family's build; errors are in b->bind.e. */
void build_begin(struct build *b);

struct norm build_norm(struct build *b, const char *name, int layer); /* of a row of `width` */
/* A norm of each head (heads > 0) or of a row of `dim` (heads = 0); NORM_NONE where the file has none. */
struct norm build_head_norm(struct build *b, const char *name, int layer, uint32_t heads, uint32_t dim);

/* The order of Q, K and V in a fused tensor: one after the other, or (safetensors of neox, falcon) group by
 * group. */
void build_qkv_slices(const struct hparams *h, enum store_kind container, const struct op_qkv *o,
                      struct slice s[3]);

struct op_embed *build_embed(struct build *b);
/* The same with learned positions and a norm, where the file has them. */
struct op_embed *build_embed_all(struct build *b);
/* What deepstack adds behind a layer, if it does. */
void build_deepstack(struct build *b, uint32_t layer);
struct op_qkv *build_qkv(struct build *b, uint32_t layer, struct norm in);
struct op_attn *build_attn(struct build *b, uint32_t layer);
/* Finds the gate of attention's output where it is a tensor of its own, for build_out. */
void build_gate(struct build *b, uint32_t layer);
/* Latent attention, up to the rows of heads that build_out takes. */
void build_latent(struct build *b, uint32_t layer, struct norm in);
struct tail *build_out(struct build *b, uint32_t layer);
/* Feed-forward: experts where the layer has a router, else dense. */
struct tail *build_ffn(struct build *b, uint32_t layer, struct norm in);
struct op_ffn *build_dense(struct build *b, uint32_t layer, struct norm in);
struct op_moe *build_moe(struct build *b, uint32_t layer, struct norm in);
/* out = scale * (residual + in), rows of `width`; the other parts are the caller's. */
struct op_map *build_map(struct build *b, uint32_t layer, struct operand in, struct operand out,
                         uint32_t width);
/* A norm's weight times a factor. The file's own numbers are what a GGUF gets. */
weight_id build_scaled(struct build *b, weight_id id, float factor);
/* GGUF has this tensor under its name alone, without ".weight". */
void build_bare(struct build *b, weight_id id);
struct op_logits *build_logits(struct build *b, struct norm in);

/* Attention and feed-forward of the same input: y = x + attn, y += ffn, and y is the stream. */
void build_parallel(struct build *b, uint32_t layer, struct norm attn, struct norm ffn);

/* ---- recurrent layers (mixers.c): each appends its operations up to the product that follows, and returns that ---- */

struct op_out *build_mamba(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_mamba2(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_mamba_heads(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_plamo2(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_delta(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_kda(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_shortconv(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_lru(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_mlstm(struct build *b, uint32_t layer, struct norm in);
struct op_out *build_lightning(struct build *b, uint32_t layer, struct norm in);
/* Buffer i of those, at least so wide. */
struct operand build_mix(struct build *b, uint32_t i, uint32_t width);
