/* quern's GPU executor, operation by operation, on the caller's buffers. Weights are loaded once, by name,
 * and used by handle. Operations are queued on one stream and return at once; quern_gpu_sync waits for all of
 * them, so a chain costs one synchronisation. A handle belongs to one thread.
 *
 * Every call checks its arguments before it launches anything. It returns 0, or -1 and then quern_gpu_error
 * returns the error message; a call that failed has changed nothing. After a fault of the card every later
 * call fails with "device lost".
 *
 * Device memory is a struct quern_gpu_buf: where it is and how many floats it has. Rows are contiguous: x of
 * M rows and K columns has M*K floats. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct quern_gpu;

struct quern_gpu_buf {
    uint64_t at; /* a device address */
    uint64_t floats;
};

/* How a product is computed. AUTO: the row of the variant table. */
enum quern_gpu_variant {
    QUERN_GPU_AUTO,
    QUERN_GPU_TILED,   /* one row; x staged once in shared memory, shared by the block's outputs */
    QUERN_GPU_CHUNKED, /* the same for any K, 32 KiB of x at a time */
    QUERN_GPU_INTEGER, /* Q4_K loaded with QUERN_GPU_NATIVE; x rounded to Q8_1, products four at a time */
    QUERN_GPU_FLOAT    /* any number of rows, float activations: the oracle's arithmetic */
};

struct quern_gpu_options {
    enum quern_gpu_variant variant;
    int per_block; /* TILED and CHUNKED: outputs a block, 1, 2, 4 or 8; 0 = 4 */
};

enum { QUERN_GPU_NATIVE = 1 }; /* keep Q4_K in the file's layout */
enum quern_gpu_act { QUERN_GPU_SILU = 1, QUERN_GPU_GELU = 2, QUERN_GPU_GELU_TANH = 3 };
enum quern_gpu_rope { QUERN_GPU_ROPE_PAIRS = 1, QUERN_GPU_ROPE_HALVES = 2 };

struct quern_gpu_facts {
    char name[96];
    int major, minor, sms, driver;
    int shared_bytes, l2_bytes, clock_khz;
    uint64_t memory, free, weights, scratch; /* bytes; the last two are ours */
    double read_gbs;                         /* measured by quern_gpu_measure; 0 = not yet */
};

/* most_rows and most_width bound M and the width of rows: scratch is taken here and never grows. NULL and the reason in
 * why (NULL is allowed) on failure. */
struct quern_gpu *quern_gpu_open(int card, int most_rows, int most_width, char *why, size_t why_bytes);
void quern_gpu_close(struct quern_gpu *g);
/* The library's compiled kernels, fat binaries by number from 0 on; NULL beyond the last, or where it was built without.
 * For the program of the same version. */
const void *quern_gpu_kernels(unsigned number);
const char *quern_gpu_error(const struct quern_gpu *g);
int quern_gpu_sync(struct quern_gpu *g);
int quern_gpu_measure(struct quern_gpu *g);
void quern_gpu_get_facts(struct quern_gpu *g, struct quern_gpu_facts *f);

int quern_gpu_new(struct quern_gpu *g, uint64_t floats, struct quern_gpu_buf *out);
void quern_gpu_delete(struct quern_gpu *g, struct quern_gpu_buf *b);
int quern_gpu_write(struct quern_gpu *g, struct quern_gpu_buf to, const void *from, uint64_t floats);
int quern_gpu_read(struct quern_gpu *g, struct quern_gpu_buf from, void *to, uint64_t floats); /* waits */

/* A weight (n outputs, k inputs) of a GGUF type ("Q4_K"), row by row in the file's layout. The handle is at
 * least 1. */
int quern_gpu_load(struct quern_gpu *g, const char *name, const char *type, uint32_t n, uint32_t k,
                   const void *bytes, size_t byte_count, int flags);
int quern_gpu_find(struct quern_gpu *g, const char *name); /* its handle, or -1 */

/* y (m, n) = x (m, k) W^T; o may be NULL. */
int quern_gpu_gemm(struct quern_gpu *g, int weight, struct quern_gpu_buf x, int m, struct quern_gpu_buf y,
                   const struct quern_gpu_options *o);
/* x (m, k) as blocks of 32 int8, an fp16 scale and an fp16 sum: 9 floats' room a block. to->at 0: makes a new buffer. */
int quern_gpu_quantise(struct quern_gpu *g, struct quern_gpu_buf x, int m, int k, struct quern_gpu_buf *to);

/* Rows (m, n); y may be x. b (LayerNorm's bias) may be {0}.
 * heads > 0: each of that many slices by itself, w a slice long. */
int quern_gpu_rms_norm(struct quern_gpu *g, struct quern_gpu_buf x, int m, int n, struct quern_gpu_buf w,
                       float eps, int heads, struct quern_gpu_buf y);
int quern_gpu_layer_norm(struct quern_gpu *g, struct quern_gpu_buf x, int m, int n, struct quern_gpu_buf w,
                         struct quern_gpu_buf b, float eps, struct quern_gpu_buf y);
int quern_gpu_act(struct quern_gpu *g, enum quern_gpu_act act, struct quern_gpu_buf x,
                  struct quern_gpu_buf y);
int quern_gpu_swiglu(struct quern_gpu *g, struct quern_gpu_buf gate, struct quern_gpu_buf up,
                     struct quern_gpu_buf y);
int quern_gpu_add(struct quern_gpu *g, struct quern_gpu_buf a, struct quern_gpu_buf b,
                  struct quern_gpu_buf y);
int quern_gpu_bias(struct quern_gpu *g, struct quern_gpu_buf x, int m, struct quern_gpu_buf bias,
                   struct quern_gpu_buf y);
int quern_gpu_softmax(struct quern_gpu *g, struct quern_gpu_buf x, int m, struct quern_gpu_buf y);

/* x (m, heads, dim): the `dims` dimensions from `first` on turn by position * freqs[i]; positions (m) are int32 on the
 * device; freqs has dims/2 floats, any scaling already in them; factor multiplies sine and cosine. */
struct quern_gpu_rope_options {
    enum quern_gpu_rope kind;
    int heads, dim, dims, first;
    float factor;
};
int quern_gpu_rope(struct quern_gpu *g, struct quern_gpu_buf x, int m, const struct quern_gpu_rope_options *o,
                   struct quern_gpu_buf freqs, struct quern_gpu_buf positions, struct quern_gpu_buf y);

/* The k best of each row (m, n), in order: ids (m, k) int32, values (m, k) floats or {0}. k = 1 is argmax. */
int quern_gpu_top(struct quern_gpu *g, struct quern_gpu_buf x, int m, int k, struct quern_gpu_buf ids,
                  struct quern_gpu_buf values);
struct quern_gpu_sampling {
    float temperature, top_p, min_p;
    int top_k;
};
/* One token a row: noise (m) in [0, 1) decides. ids (m) int32. */
int quern_gpu_sample(struct quern_gpu *g, struct quern_gpu_buf logits, int m,
                     const struct quern_gpu_sampling *s, struct quern_gpu_buf noise,
                     struct quern_gpu_buf ids);

/* y = down(act(gate x) * (up x)), chained, no synchronisation; gate 0: down(act(up x)). integer: Q8_1
 * activations (m = 1, native Q4_K). The _host variant takes and returns host memory and waits. */
struct quern_gpu_ffn {
    int gate, up, down; /* handles */
    enum quern_gpu_act act;
    int integer;
};
int quern_gpu_ffn(struct quern_gpu *g, const struct quern_gpu_ffn *f, struct quern_gpu_buf x, int m,
                  struct quern_gpu_buf y);
int quern_gpu_ffn_host(struct quern_gpu *g, const struct quern_gpu_ffn *f, const float *x, int m, float *y);

/* A sequence's KV: pages on the device. Q8_0 needs heads of a multiple of 32 values. */
enum quern_gpu_kv_type {
    QUERN_GPU_KV_F16,
    QUERN_GPU_KV_F32,
    QUERN_GPU_KV_BF16,
    QUERN_GPU_KV_Q8_0,
    QUERN_GPU_KV_F8 /* E4M3 */
};
struct quern_gpu_kv;
struct quern_gpu_heads {
    int heads, kv_heads, dim, window; /* window 0: all keys */
    float scale, softcap;
    struct quern_gpu_buf sinks; /* (heads): one more logit in the softmax's sum; {0}: none */
};
int quern_gpu_kv_new(struct quern_gpu *g, int kv_heads, int dim, int tokens, enum quern_gpu_kv_type type,
                     struct quern_gpu_kv **out);
void quern_gpu_kv_delete(struct quern_gpu *g, struct quern_gpu_kv *kv);

/* norm (w), Q/K/V, bias, RMS norm of each head of Q and K (dim), rotation, K and V into the pages at positions
 * [at, at + m): q (m, heads * dim). */
struct quern_gpu_qkv {
    int q, k, v;
    struct quern_gpu_buf norm, q_bias, k_bias, v_bias, q_norm, k_norm, freqs; /* {0}: none */
    float eps;
    enum quern_gpu_rope rope;
};
int quern_gpu_qkv(struct quern_gpu *g, const struct quern_gpu_qkv *p, const struct quern_gpu_heads *h,
                  struct quern_gpu_kv *kv, struct quern_gpu_buf x, int m, int at, struct quern_gpu_buf q);
/* y (m, heads * dim): causal attention of q at positions [at, at + m) over all that is in kv up to there. */
int quern_gpu_attention(struct quern_gpu *g, const struct quern_gpu_heads *h, struct quern_gpu_kv *kv,
                        struct quern_gpu_buf q, int m, int at, struct quern_gpu_buf y);
/* A whole transformer layer on x (m, width), in place: x += out(attention(qkv)); x += ffn(norm(x)). */
struct quern_gpu_layer {
    struct quern_gpu_qkv qkv;
    struct quern_gpu_heads heads;
    int out;
    struct quern_gpu_buf ffn_norm;
    float eps;
    struct quern_gpu_ffn ffn;
};
int quern_gpu_layer(struct quern_gpu *g, const struct quern_gpu_layer *l, struct quern_gpu_kv *kv,
                    struct quern_gpu_buf x, int m, int at);

/* Between quern_gpu_record and quern_gpu_record_end operations are recorded instead of run; a failure to build
 * a graph records nothing and sets the error. */
struct quern_gpu_graph;
int quern_gpu_record(struct quern_gpu *g);
int quern_gpu_record_end(struct quern_gpu *g, struct quern_gpu_graph **out);
int quern_gpu_replay(struct quern_gpu *g, struct quern_gpu_graph *graph);
void quern_gpu_graph_delete(struct quern_gpu *g, struct quern_gpu_graph *graph);

/* While on, every operation is timed with events: macro (products, FFN), midi (attention), micro (norms and the rest). The
 * table, or JSON, is written to `to`; launch overhead is wall time less the sum of the kernels. */
enum quern_gpu_profile { QUERN_GPU_PROFILE_OFF, QUERN_GPU_PROFILE_ON };
int quern_gpu_profile(struct quern_gpu *g, enum quern_gpu_profile on);
size_t quern_gpu_profile_table(struct quern_gpu *g, char *to, size_t bytes);
size_t quern_gpu_profile_json(struct quern_gpu *g, char *to, size_t bytes);

#ifdef __cplusplus
}
#endif
