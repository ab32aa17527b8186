/* The arguments of the kernels: one struct each, passed by value, written by C and read by CUDA. All pointers
 * are device memory. Activations are float rows (m, ld); in front of a product they are packed as fp16 in the
 * order in which the tensor cores want their B operand:
 *
 *   pack  [G groups of 8 streams][column of 256][group][8 subs of 32: 512 bytes][sums of the subs, as
 *         fp16 hi + lo: 256 bytes][stream] float scale, padded to a multiple of 128
 *   of each sub, word w of lane (stream, t) has values 8t + {0,2} {1,3} {4,6} {5,7}
 *     PACK_LANES  [stream][t][w], sums [stream][t][subs 2t, 2t+1: hi, hi, lo, lo]: 16 bytes a lane, for mma
 *     PACK_CORES  [w][stream][t], sums [hi, lo][stream][8 subs]: core matrices of 8 x 16 bytes, for wgmma
 *   the values of a stream in a column were multiplied by a power of two (so that fp16 holds them), whose
 *   inverse is `scale`, times the factor of a norm of squares.
 *
 * For many rows (gemm_many) the pack has another shape, PACK_ROWS: [chunk of 64 columns][row] 128 bytes, whose 16 bytes c
 * of row r lie in place c ^ r % 8 (what the hardware calls a swizzle of 128 bytes): of each sub [w][t]. Columns are padded
 * with zeros to a multiple of 256. There are neither sums nor scales of columns, but a scale of the whole row. */
#pragma once

#include "device/cuda/layout.h"
#include "device/kinds.h"

#include <stdint.h>

enum { PACK_SUMS = 4096, PACK_SCALE = 4352, PACK_BYTES = 4480, PACK_STREAMS = 8 };
enum pack_order { PACK_LANES, PACK_CORES, PACK_ROWS };
/* A column of one row, as gemm_tile_1 has it in shared memory. */
enum { ROW_COLUMN = 592 };
/* Shared memory that a kernel may declare itself, where a launch may ask for the rest. */
enum { SHARED_OWN = 12 << 10 };
enum { GEMM_SEGS = 4, GEMM_WARPS = 8, GEMM_DEEP = 16, GEMM_ROWS_MOST = 64 };
/* gemm_staged: columns of x that a block has at once for each part of them; gemm_staged_few: warps of a block, and parts, at
 * most. */
enum { GEMM_STAGES = 3, GEMM_FEW = 12, GEMM_PARTS = 6 };
/* gemm_wide: warps of a block at most, and bytes of a warp's ring of tiles. */
enum { WIDE_WARPS = 16, WIDE_RING = 2 * TILE_Q8_0 };
/* gemm_one: threads of a block, and columns of a row and bytes of a weight at most; of one with short rows. */
enum {
    ONE_THREADS = 256,
    ONE_COLUMNS = 12288,
    ONE_BYTES_MOST = 3 << 20,
    ONE_SHORT = 1024,
    ONE_SHORT_MOST = 20 << 20
};
/* gemm_many: warps of a block and bytes of a warp's ring of tiles, chunks of x in shared memory, rows and outputs of a
 * block, all at most. */
enum { MANY_WARPS = 16, MANY_RING = 2 * TILE_Q8_0, MANY_STAGES = 4, MANY_ROWS = 128, MANY_OUTPUTS = 256 };
/* A warpgroup's outputs; kernels, by rows; rows of a block at most where blocks have equal shares of all columns. */
enum { MANY_UNIT = 64, MANY_KERNELS = 4, MANY_STREAM_K = 96 };

/* Rows of one expert that are multiplied together. */
struct moe_tile {
    int32_t expert; /* -1: there are none */
    uint32_t rows;
};

struct gemm_seg {
    struct mat w;
    float *y; /* (m, ldy) */
    uint64_t ldy;
    const float *bias; /* (n) or NULL; (count, n) with experts */
    uint32_t first;    /* its first strip in the launch */
    uint32_t pad;
};

struct norm_args {
    uint32_t kind, heads; /* enum norm_kind */
    const float *w, *b;
    uint32_t w_len; /* of w: a slice, or the row */
    float eps;
};
/* Whether all that the norm does to a row, but for its weights, is to multiply it with one number. */
LAYOUT_FN bool norm_is_factor(const struct norm_args *n)
{
    return n->kind == NORM_NONE || (n->kind == NORM_RMS && !n->b);
}

enum { ACT_THREADS = 1024 }; /* of a block of act_rows */

/* Where rows go in front of a product; NULL: not there. */
struct pack_out {
    uint8_t *pack;
    uint32_t groups;   /* G of pack; PACK_ROWS: of eight rows, in all */
    uint32_t order;    /* enum pack_order */
    uint16_t *half;    /* (m, kp), or with PACK_ROWS the pack */
    float *half_scale; /* (m): multiply the product of `half` with it */
    float *rows;       /* (m, ldr) floats */
    uint64_t ldr;
    uint32_t kp, pad;
};

/* h = act(gate) * up, or act(up) where gate is NULL. */
struct act_args {
    const float *gate, *up; /* (m, ld) */
    uint64_t ld;
    const float *row_scale; /* (m) or NULL */
    uint32_t m, k;
    uint32_t act;
    float alpha, limit;
    uint32_t pad;
    const float *gate_bias, *up_bias; /* or NULL */
    const float *xielu;               /* or NULL: p, n, b, eps of struct op_ffn, instead of act */
    const int32_t *slot;              /* or NULL: row i is slot[i] of both sides, if that is not negative */
    struct pack_out out;
};

/* One row as attention's blocks have left it, each with some of the keys (part and part_ml of struct attn_args). */
struct gemm_parts {
    const float *part; /* NULL: the row is whole */
    const float *ml;
    const float *sinks;
    const int32_t *length;   /* of the sequence */
    uint32_t splits, window; /* as attention has them */
    uint32_t queries, group, dim, pad;
};
enum { GEMM_PARTS_MOST = 8 };

/* The gate of a product's input, as struct gate_args has it. slice: numbers that are normed together; 0: no norm. */
struct gemm_gate {
    const float *gate; /* NULL: there is none */
    uint32_t act, heads, first, slice;
};
enum { GATE_SLICE_LEAST = 8, GATE_SLICE_MOST = 256 }; /* powers of two */

/* What a product of one row makes of its input itself; x NULL: it takes the pack. */
struct gemm_in {
    const float *x; /* (k) */
    struct norm_args norm;
    struct gemm_parts parts;
    struct gemm_gate gate;
};

/* A convolution of the results of one segment, of a sequence's only row (struct conv_args): y, and its state. */
struct gemm_conv {
    const float *w, *bias; /* w NULL: there is none */
    float *y, *state;
    uint64_t ldw, stride;
    const int32_t *in, *out; /* slots */
    uint32_t seg, act, channels, cols;
};
enum { GEMM_CONV_COLS = 4 };

/* y = scale * (W x + bias) + residual, for up to three weights that share x. */
struct gemm_args {
    struct gemm_seg seg[GEMM_SEGS];
    uint32_t segs, strips; /* strips of 16 outputs in all (gemm_wide, gemm_many: units of 64) */
    uint32_t m, k;
    uint32_t split;  /* warps that share a strip's columns: 1, 2, 4, 8 or 16 (gemm_many: blocks) */
    uint32_t groups; /* of eight streams, side by side in x */
    float scale;
    uint32_t paired, act;  /* seg[0] is gate, seg[1] up: y of seg[0] = act(gate) * up */
    float alpha, limit;    /* ACT_SWIGLU_OAI */
    uint32_t stages;       /* of x in shared memory; gemm_many: log2 of its chunks, 2 or 3 */
    const uint8_t *x;      /* pack */
    const float *residual; /* (m, ldr) or NULL */
    uint64_t ldr;
    const struct moe_tile *tile; /* or NULL: blockIdx.y is one of these, of 8 * groups rows, in x and y */
    struct gemm_in in;           /* of gemm_tile_1, which has no pack */
    struct gemm_conv conv;       /* the same */
    float *part;            /* of gemm_many: what blocks that share columns leave, (blocks, rows, outputs) */
    uint32_t *count;        /* and how many have; 0 before and after */
    const float *row_scale; /* (m), of gemm_many: the products of a row are multiplied with it */
    uint32_t tile_there;    /* `tile` is written before the kernel starts: it is read without waiting */
    uint32_t pad;
};

/* The same with float rows: x (m, ldx). experts: rows 8*blockIdx.y.. belong to group blockIdx.y. */
struct float_args {
    struct mat w;
    const float *x;
    uint64_t ldx;
    float *y;
    uint64_t ldy;
    const float *bias, *residual;
    uint64_t ldr;
    uint32_t m;
    float scale;
    const int32_t *expert;
    uint32_t heads; /* > 0: matrix h takes columns h*k of x and gives columns h*n of y (x_step, y_step) */
    uint32_t x_step, y_step;
    uint32_t pad;
};

struct repack_args {
    const uint8_t *src;
    uint8_t *dst;
    uint64_t row_bytes, bytes;   /* bytes: of dst */
    uint64_t src_each, dst_each; /* from matrix to matrix (blockIdx.y) */
    uint32_t fmt, n, k, pad;
};

/* Bytes, in words of four, from memory of this card or pinned memory of the host. */
struct fetch_args {
    const uint32_t *from;
    uint32_t *to;
    uint64_t words;
};

/* Rows [first, first + rows) as fp16, k padded to kp with zeros. */
struct dequant_args {
    struct mat w;
    uint16_t *dst; /* (rows, kp) */
    uint32_t first, rows, kp, pad;
};

/* Rows of k halves, a multiple of 32, as e4m3, each with its largest value at the type's. */
struct fp8_args {
    const uint16_t *from; /* (rows, k) */
    uint8_t *to;          /* the same */
    float *scale;         /* (rows) */
    uint32_t k, pad;
};

/* The row is made first: x = residual + scale * (y * row_scale + bias). */
struct pack_sum {
    const float *y; /* (m, ldy); NULL: the row is there */
    uint64_t ldy;
    const float *row_scale, *bias, *residual; /* or NULL */
    uint64_t ldr;
    float scale;
    uint32_t pad;
};

struct pack_args {
    const float *x; /* (m, ldx) */
    uint64_t ldx;
    uint32_t m, k;
    struct norm_args norm;
    struct pack_out out;
    const int32_t *x_row;     /* or NULL: row i is x's row x_row[i] */
    const int32_t *slot;      /* or NULL: x's row i / used becomes row slot[i], if that is not negative */
    const float *slot_weight; /* or NULL: row slot[i] times slot_weight[slot[i]] */
    struct pack_sum sum;
    uint32_t used; /* experts of a row */
    /* With `slot`: x is complete when the kernel starts, so it is read before the wait; and the successor starts only after
     * the wait, so it finds complete what the predecessor wrote. */
    uint32_t x_there;
};

struct tail_args {
    const float *y; /* (m, ldy) */
    uint64_t ldy;
    const float *row_scale, *bias;
    uint32_t m, n;
    struct norm_args post, after;
    float scale;
    uint32_t pad;
    const float *residual;
    uint64_t ldr;
    float *out;
    uint64_t ldo;
};

/* The step on the device. */
struct meta {
    const int32_t *ids, *pos, *row_seq, *out;
    const int32_t *seq_first, *seq_rows, *seq_len;
    const int32_t *tables; /* (groups, seqs, width) */
    const int32_t *tiles;  /* (tiles, 2): sequence, first query of a tile of prefill attention */
    const int32_t *state_in, *state_out; /* (seqs), (rows): slots of state; NULL: the plan keeps none */
    const int32_t *axes; /* (rows, 3): positions of rotations with axes; NULL: the plan has none */
    const int32_t *span; /* (rows, 2): spans of keys; NULL: the step has none */
    uint32_t rows, seqs, outs, width;
};

enum kv_type { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_F8 };

/* One layer's KV: a page is [head][K: slot rows][...] then [head][V]; V of fp16 is transposed,
 * (v_dim, tokens), which is what the second product of attention wants. */
struct kv_view {
    uint8_t *base;
    uint64_t page_bytes;
    uint32_t type, tokens, token_bits; /* tokens of a page: 1 << token_bits */
    uint32_t heads, k_dim, v_dim;
    uint32_t k_row, v_row; /* bytes of a token's K and V of one head */
    const int32_t *table;  /* (seqs, width) of its group */
};

/* q *= 1 + beta * ln(1 + floor((position + offset) / length)); beta 0: not at all. */
struct query_args {
    float beta;
    uint32_t length, offset, pad;
};

struct qkv_args {
    const float *y; /* (m, ldy): q | k | v */
    uint64_t ldy;
    const float *row_scale;
    const float *q_bias, *k_bias, *v_bias;
    float clamp;
    uint32_t m, heads;
    struct norm_args q_norm, k_norm, v_norm;
    uint32_t norm_last;  /* norms of q and k after the rotation */
    uint32_t clamp_last; /* after the norms, before the rotation */
    uint32_t k_heads;    /* that are stored: those of kv, or 0 */
    uint32_t v_is_k;     /* V is K before its norm and rotation */
    struct query_args q_scale;
    uint32_t rope, rope_dims, rope_first;
    float rope_factor;
    uint32_t rope_axes; /* frequencies have a row for each axis of meta.axes */
    uint32_t pad;
    const float *freqs;
    float *out; /* q */
    uint64_t ldo;
    struct kv_view kv;
    struct meta meta;
};

enum { ATTN_AHEAD_ALL = 1 << 30 };

struct attn_args {
    const float *q;
    uint64_t ldq;
    float *out; /* (m, heads * v_dim) */
    uint64_t ldo;
    uint32_t heads, m;
    float scale, softcap;
    uint32_t chunked;       /* the window is a chunk; only attn_any */
    uint32_t window, ahead; /* a query at p sees keys in (p - window, p + ahead]; window 0: all before it */
    uint32_t v_in_k;
    uint32_t span;         /* enum span_kind; attn_any alone knows it */
    uint32_t splits;       /* blocks for the keys of a sequence, at most; 1: there are no parts */
    uint32_t part_queries; /* 8 or 16 */
    uint32_t stages;       /* 1 to 3: units of 16 keys that a warp of decode has in shared memory */
    uint32_t tiles;
    uint32_t distance_cols;
    const float *sinks;
    const float
        *distance;  /* (heads, distance_cols), as op_attn has it; NULL: none. attn_any alone knows it */
    float *part;    /* (seqs, kv heads, splits, part_queries, v_dim) */
    float *part_ml; /* (seqs, kv heads, splits, part_queries, 2) */
    struct pack_out pack;
    struct kv_view kv;
    struct meta meta;
};

/* Attention of a row a sequence that finishes its heads itself: those of a group, K and V, a warp each. */
enum { ATTN_ROW_WARPS = 10 };
struct attn_row_args {
    struct attn_args attn;
    struct qkv_args qkv;
};

/* Latent attention: q (m, heads, nope + R) and c (m, L + R) after their products. */
struct latent_args {
    float *q;
    uint64_t ldq;
    float *c;
    uint64_t ldc;
    struct norm_args norm;
    uint32_t m, heads, nope, latent;
    uint32_t rope, rope_dims;
    float rope_factor;
    uint32_t pad;
    struct query_args q_scale;
    const float *freqs;
    float *out; /* (m, heads, L + R): the rotated part is written here */
    uint64_t ldo;
    struct kv_view kv;
    struct meta meta;
};

/* An adapter's pair for one product; a.base NULL: it leaves that product alone. B is (rank, n) in F32. */
struct lora_entry {
    struct mat a, b;
    float scale;
    uint32_t pad;
};

struct adapter_mix;

struct lora_args {
    const struct lora_entry *entry; /* (adapters + 1) */
    const struct adapter_mix *mix;  /* (sequences) */
    const int32_t *row_seq;
    const float *x; /* (m, ldx), or where x_row is not NULL row i is x's row x_row[i] */
    uint64_t ldx;
    const int32_t *x_row;
    const int32_t *row;    /* row i is row first + row[i] of the step (-1: none); NULL: first + i */
    const int32_t *expert; /* (m / 8): which matrices eight rows need; or NULL */
    uint32_t first, m, rank;
    uint32_t heads, x_step, y_step; /* as in struct float_args */
    float *low;                     /* (m, heads, ADAPTERS_MIXED, rank) */
    float *y;                       /* (m, ldy) */
    uint64_t ldy;
    const float *row_scale; /* (m) that y still lacks; or NULL */
    float scale;
    uint32_t pad;
};

struct embed_args {
    struct mat table, positions, types;
    uint32_t position_offset;
    float scale;
    struct norm_args norm;
    float *out;
    uint64_t ldo;
    uint32_t width;
    uint32_t type_bit; /* of ids: from there on the token's type */
    struct meta meta;
    const struct lora_entry *lora; /* (adapters + 1) of the table; NULL: no row has one */
    const struct adapter_mix *mix; /* (sequences) */
    const float *given; /* (m, ldg): rows with negative ids; NULL: none. Without a table others are 0 */
    uint64_t ldg;
};

/* struct op_map of device/plan.h. */
struct map_args {
    const float *x, *times, *like, *by, *residual, *plus; /* all but x: or NULL */
    uint64_t ldx, ldl, ldb, ldr;
    struct norm_args norm;
    float factor, cap, deviations, scale, least, most;
    uint32_t act, m, n, clips;
    float *out;
    uint64_t ldo;
};

/* struct op_mix of device/plan.h. */
struct mix_args {
    const float *base, *in, *coef, *fixed; /* all but in: or NULL */
    uint64_t ldb, ldi, ldc, ldf;
    uint32_t outs, ins, n, m;
    float bias;
    uint32_t pad;
    float *out;
    uint64_t ldo;
};

struct finish_args { /* logits = softcap(scale * y + bias) */
    float *y;
    uint64_t ldy;
    const float *bias;
    uint32_t n, m;
    float scale, softcap;
};

/* logits = norm(x) W^T + bias, in float; behind the experts' that of the shared expert where there is one, of the same
 * form. */
/* The router of few rows: outputs and warps of a block. */
enum { ROUTER_OUTPUTS = 4, ROUTER_WARPS = 16 };
struct router_args {
    const float *x; /* (m, ldx) */
    uint64_t ldx;
    uint32_t m, k, outputs;
    struct norm_args norm; /* none, or NORM_RMS without bias */
    struct mat w, shared;
    const float *bias;
    float *logits; /* (m, outputs) */
};

enum { MOE_USED_MOST = 32, MOE_WARPS = 24, EXPERTS_MOST = 1024, EXPERT_GROUPS_MOST = 64 };
struct route_args {      /* experts: with identities */
    const float *logits; /* (m, ld) */
    const float *select_bias, *expert_scale;
    uint64_t ld;
    uint32_t m, experts, used, gating, groups, groups_used, normalise;
    float weight_scale, nearness, least_sum;
    uint32_t group_pair;  /* a group's score is the sum of its two best */
    uint32_t scale_input; /* weights multiply the experts' inputs */
    int32_t *expert;      /* (m, used) */
    float *weight;        /* (m, used) */
};

/* The experts of one row, or a few (moe_row.cu). */
struct moe_part { /* the chosen ones, or the shared one; up.base NULL: there is none */
    struct mat gate, up, down;
    const float *gate_bias, *up_bias, *down_bias;
    uint32_t act, pad;
};

struct moe_row_args {
    struct route_args route; /* of one row; with the shared expert's logit behind the others */
    struct moe_part part[2];
    const float *x; /* (rows, ldx) */
    uint64_t ldx;
    struct norm_args norm;
    float *h; /* (rows, ldh): (used, inputs of down), then the shared expert's */
    uint64_t ldh;
    const float *residual;
    uint64_t ldr;
    float *out;
    uint64_t ldo;
    uint32_t k, n;
    uint32_t strips, pairs_all;    /* of 16 outputs of gate and up: of an expert, of all */
    uint32_t pairs, split;         /* of a block of moe_row_up; warps of a strip */
    uint32_t columns, columns_all; /* of 256 inputs of down: of an expert, of all */
    uint32_t shared_gate;          /* the shared expert has a weight */
    float scale, alpha, limit;
};

/* Pairs without a slot: what they give is the row itself; or another device adds it. */
enum { SLOT_IDENTITY = -1, SLOT_ELSEWHERE = -2 };
struct group_args {
    const int32_t *expert; /* (m, used) */
    uint32_t m, used, experts;
    uint32_t rows, most_tiles; /* rows of a tile, a multiple of eight; tiles there may be */
    uint32_t first, end;       /* experts whose pairs have slots */
    uint32_t identities;       /* choices from this number on are identities */
    /* The successor starts only after this kernel's wait, so it finds complete what the predecessor wrote. */
    uint32_t late, pad;
    int32_t *slot;         /* (m, used): where the pair lies, or SLOT_* */
    int32_t *slot_row;     /* (most_tiles * rows): its row, -1 = padding */
    const float *weight;   /* (m, used), or NULL: */
    float *slot_weight;    /* (most_tiles * rows): the pair's */
    int32_t *group_expert; /* of each eight slots, -1 = none */
    struct moe_tile *tile; /* (most_tiles) */
};

/* Choice and grouping of up to SORT_ROWS rows by one cluster of blocks; `expert` is not written. */
enum { SORT_BLOCKS = 8, SORT_THREADS = 512, SORT_ROWS = SORT_BLOCKS * SORT_THREADS / 32, SORT_EXPERTS = 256 };
struct sort_args {
    struct group_args group;
    struct route_args route;
};

struct combine_args {
    const float *y; /* (slots, n) */
    uint64_t ldy;
    const int32_t *slot;
    const float *weight;      /* or NULL: 1 */
    const float *identity;    /* (m, n): what identities give */
    const float *shared;      /* (m, n) or NULL */
    const float *shared_gate; /* (m, shared_ld) logits or NULL */
    uint64_t shared_ld;
    const float *residual; /* (m, ldr) or NULL */
    uint64_t ldr;
    float *out; /* (m, ldo) = scale * sum + residual */
    uint64_t ldo;
    uint32_t m, n, used;
    float scale;
};

/* Rows that are such sums, made where they are normed for what follows: x of `pack` is `out` of `from`. */
struct pack_combine_args {
    struct pack_args pack;
    struct combine_args from;
};

/* ---- layers that keep a state ---- */

/* One operation's part of the slots of state: slot i begins at base + i * stride. */
struct state_view {
    float *base;
    uint64_t stride;
};

enum { CONV_THREADS = 128, CONV_ROWS = 16, CONV_COLS_MOST = 8 }; /* CONV_ROWS: rows of a block */

/* y = act(bias + sum of w times the last `cols` x), x times mul. The state: (cols - 1, channels). */
struct conv_args {
    const float *x, *mul; /* mul: or NULL */
    uint64_t ldx, ldm;
    float *y;
    uint64_t ldy;
    const float *w, *bias; /* (channels, cols), rows ldw apart; (channels) or NULL */
    uint64_t ldw;
    uint32_t m, act, channels, cols;
    uint32_t keep, pad; /* each sequence has one row: the states are written, too */
    struct state_view state;
    struct meta meta;
};

/* scan: SCAN_EACH keys of a column in each of 1 to 32 lanes. */
enum { SCAN_THREADS = 128, SCAN_EACH = 16, SCAN_KEYS_MOST = 32 * SCAN_EACH };

/* struct op_scan of plan.h. The state: (heads, v_dim, keys), keys is k_dim rounded up to four. */
struct scan_args {
    const float *q, *k, *v, *decay, *write, *erase, *rate, *size, *least; /* from decay on: or NULL */
    uint64_t ldq, ldk, ldv, ldd, ldw, lde, ldr, lds, ldl;
    float *out;
    uint64_t ldo;
    struct norm_args q_norm, k_norm;
    float q_scale, k_scale;
    uint32_t heads, k_heads, k_dim, v_dim, keys;
    uint32_t sharing; /* heads of a k and v, at least 1 */
    uint32_t tiled, delta, decay_each, by_channel, before, rest, decay_kind;
    float size_eps;
    const float *a, *bias, *skip; /* bias, skip: or NULL */
    uint64_t lda;                 /* of a, where states are vectors */
    float dt_least, dt_most, bound, write_scale;
    uint32_t rows_least, rows_most; /* of sequences: those with fewer or more are left alone */
    uint8_t *chunks;                /* of recurrences in chunks (scan_chunk_bytes); NULL: there are none */
    struct state_view state;
    struct meta meta;
};

/* Recurrences in chunks of CHUNK_ROWS rows of a sequence, as products of matrices (scan_chunk.cu). Sequences of CHUNK_LEAST
 * rows and more have them: chunk i of one whose first row is f has number f / CHUNK_LEAST + i, which no other chunk has. */
enum {
    CHUNK_ROWS = 64,
    CHUNK_LEAST = 32,
    CHUNK_COLUMNS = 32, /* of the state, a block */
    CHUNK_KEYS_MOST = 128,
    READY_THREADS = 128,
    FOLLOW_THREADS = 2 * CHUNK_COLUMNS
};

/* What rows of a chunk bring to a head, beside keys and queries. Matrices are fp16, in rows of 128 bytes of which 16 bytes c
 * of row r lie in place c ^ r % 8. */
struct scan_chunk {
    uint16_t solve[CHUNK_ROWS * CHUNK_ROWS]; /* what rows write, from what each would write as the first */
    uint16_t seen[CHUNK_ROWS * CHUNK_ROWS];  /* q k of rows up to its own, decayed */
    float power[CHUNK_ROWS]; /* what the state has decayed by since the chunk began is e^power */
    float left[CHUNK_ROWS];  /* e^power */
    float write[CHUNK_ROWS];
    float k_scale, q_scale, pad[2]; /* powers of two: of keys and queries as they are stored */
};

/* Keys of a chunk, for kernels: k_dim is padded with zeros. */
static inline uint32_t scan_chunk_keys(uint32_t k_dim)
{
    return k_dim <= 64 ? 64 : CHUNK_KEYS_MOST;
}

/* Bytes of a chunk: for each key head its keys and then its queries, in rows like those of matrices, but as long as a key;
 * then the struct scan_chunk of heads. */
static inline uint64_t scan_chunk_bytes(uint32_t heads, uint32_t k_heads, uint32_t k_dim)
{
    return 4ull * CHUNK_ROWS * k_heads * scan_chunk_keys(k_dim) + (uint64_t)heads * sizeof(struct scan_chunk);
}

/* Shared memory of their kernels. */
#define READY_SHARED(keys)  (CHUNK_ROWS * (4 * (keys) + 4 * (CHUNK_ROWS + 4) + 12) + 128)
#define FOLLOW_SHARED(keys) (2 * (4 * CHUNK_ROWS * (keys) + (int)sizeof(struct scan_chunk) + 128) + 128)

enum { CELL_THREADS = 64, CELL_ROWS = 8 }; /* CELL_ROWS: rows in flight */

/* struct op_cell of plan.h. The state: (cell_kept, channels). */
struct cell_args {
    const float *x, *gate, *decay; /* NULL where the kind has none */
    uint64_t ldx, ldg, ldd;
    float *y;
    uint64_t ldy;
    const float *a, *gate_bias, *decay_bias; /* or NULL */
    uint32_t channels, pad;
    struct state_view state;
    struct meta meta;
};

/* out = norm(x * act(gate)) where `first`, else norm(x) * act(gate). */
struct gate_args {
    const float *x, *gate; /* gate: or NULL */
    uint64_t ldx, ldg;
    float *out;
    uint64_t ldo;
    struct norm_args norm;
    uint32_t m, k, gate_heads, act, first, pad;
};

enum { ROWS_ADD = 100, ROWS_BIAS, ROWS_SWIGLU }; /* beside enum act_kind */

/* Small operations on rows, for callers of the public header. */
struct rows_args {
    const float *x, *w, *b;
    float *y;
    uint64_t n;
    uint32_t m, kind; /* kind: enum act_kind, or which operation */
    const int32_t *pos;
    float factor;
    uint32_t heads, dim, rope_dims, rope_first, pad;
};

struct q8_args {
    const float *x; /* (m, k) */
    uint8_t *y;     /* (m, k/32) blocks of 36 bytes */
    uint64_t blocks;
};

struct gemv_args {
    struct mat w;
    const float *x;
    const uint8_t *x8; /* Q8_1 */
    float *y;
    uint32_t per_block, chunk; /* outputs a block, floats staged at a time */
};

struct sample_args {
    const float *logits; /* (m, n) */
    uint64_t ld;
    uint32_t n, m, top_k;
    float temperature, top_p, min_p;
    const float *noise; /* (m) in [0, 1) */
    int32_t *ids;       /* (m), top-k: (m, top_k) */
    float *values;      /* (m, top_k) */
};

enum { PICK_BLOCKS = 8 }; /* that share a row, where there are clusters; a power of two */

/* How a row's token is chosen: struct step_pick of device.h, for the card. */
struct pick_row {
    uint64_t seed, position;
    double temperature, top_p, repeat, presence, frequency;
    float min_shift; /* ln(min_p); -inf: off */
    uint32_t top_k;
    uint32_t seen, seen_count; /* its entries of pick_args.seen */
    uint32_t on, pad;
};

struct pick_args {
    float *logits; /* (m, ld); penalties are applied in place */
    uint64_t ld;
    uint32_t n, m;
    const struct pick_row *row;   /* (m) */
    const struct pick_seen *seen; /* pick_row says which */
    int32_t *ids;                 /* (m): -1 where a row has numbers that are not finite */
};

struct probe_args {
    const uint8_t *src;
    uint64_t bytes;
    uint32_t *sink;
};
