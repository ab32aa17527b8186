#include "format/file_type.h"

#include "codec/dtype.h"
#include "format/gguf.h"

#include <stdbool.h>
#include <string.h>

enum { FILE_GUESSED = 1024, FILE_K_BLOCK = 256 };

/* NULL = the number is unknown. */
static const char *file_type_name(uint64_t number)
{
    static const char *const names[] = {
        [FILE_F32] = "F32",       [FILE_F16] = "F16",         [FILE_Q4_0] = "Q4_0",
        [FILE_Q4_1] = "Q4_1",     [FILE_Q8_0] = "Q8_0",       [FILE_Q5_0] = "Q5_0",
        [FILE_Q5_1] = "Q5_1",     [FILE_Q2_K] = "Q2_K",       [FILE_Q3_K_S] = "Q3_K_S",
        [FILE_Q3_K_M] = "Q3_K_M", [FILE_Q3_K_L] = "Q3_K_L",   [FILE_Q4_K_S] = "Q4_K_S",
        [FILE_Q4_K_M] = "Q4_K_M", [FILE_Q5_K_S] = "Q5_K_S",   [FILE_Q5_K_M] = "Q5_K_M",
        [FILE_Q6_K] = "Q6_K",     [FILE_IQ2_XXS] = "IQ2_XXS", [FILE_IQ2_XS] = "IQ2_XS",
        [FILE_Q2_K_S] = "Q2_K_S", [FILE_IQ3_XS] = "IQ3_XS",   [FILE_IQ3_XXS] = "IQ3_XXS",
        [FILE_IQ1_S] = "IQ1_S",   [FILE_IQ4_NL] = "IQ4_NL",   [FILE_IQ3_S] = "IQ3_S",
        [FILE_IQ3_M] = "IQ3_M",   [FILE_IQ2_S] = "IQ2_S",     [FILE_IQ2_M] = "IQ2_M",
        [FILE_IQ4_XS] = "IQ4_XS", [FILE_IQ1_M] = "IQ1_M",     [FILE_BF16] = "BF16",
        [FILE_TQ1_0] = "TQ1_0",   [FILE_TQ2_0] = "TQ2_0",     [FILE_MXFP4] = "MXFP4",
        [FILE_NVFP4] = "NVFP4",   [FILE_Q1_0] = "Q1_0",
    };
    number &= ~(uint64_t)FILE_GUESSED; /* the writer took it from the tensors */
    return number < sizeof names / sizeof *names ? names[number] : NULL;
}

/* Bytes of each type: in the layers, in the layers by tensors whose rows any type fits, and in all tensors. */
struct type_bytes {
    uint64_t layers[DTYPE_MOST], free[DTYPE_MOST], all[DTYPE_MOST];
};

static uint32_t most_of(const uint64_t *bytes)
{
    uint32_t best = 0;
    for (uint32_t t = 1; t < DTYPE_MOST; t++)
        best = bytes[t] > bytes[best] ? t : best;
    return best;
}

static bool is_k(uint32_t type)
{
    return type >= DTYPE_Q2_K && type <= DTYPE_Q6_K;
}

/* The name of a mix: _S, _M and _L differ in what some tensors of the layers have. */
static const char *mix_name(uint32_t type, const uint64_t *layers)
{
    switch (type) {
    case DTYPE_Q3_K:
        return layers[DTYPE_Q4_K] ? "Q3_K_M" : layers[DTYPE_Q5_K] ? "Q3_K_L" : "Q3_K_S";
    case DTYPE_Q4_K:
        return layers[DTYPE_Q6_K] ? "Q4_K_M" : "Q4_K_S";
    case DTYPE_Q5_K:
        return layers[DTYPE_Q6_K] ? "Q5_K_M" : "Q5_K_S";
    default:
        return dtype_get(type)->name;
    }
}

const char *store_file_type(const struct store *s)
{
    struct type_bytes n = {0};
    struct err ignored = {0};
    uint64_t number;
    if (s->gguf && gguf_get_u64(s->gguf, "general.file_type", 0, UINT32_MAX, &number, &ignored) > 0 &&
        file_type_name(number))
        return file_type_name(number);
    for (size_t i = 0; i < s->count; i++) {
        const struct tensor *t = &s->tensors[i];
        bool layer = t->dims > 1 && !strncmp(t->name, "blk.", 4);
        n.all[t->type] += t->bytes;
        n.layers[t->type] += layer ? t->bytes : 0;
        n.free[t->type] += layer && t->shape[0] % FILE_K_BLOCK == 0 ? t->bytes : 0;
    }
    /* a K mix has other types where rows are no multiple of 256: those do not name it */
    uint32_t type = most_of(n.free);
    if (!is_k(type))
        type = most_of(n.layers);
    if (!n.layers[type])
        type = most_of(n.all);
    return n.all[type] ? mix_name(type, n.layers) : "";
}
