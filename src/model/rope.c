/* The scalings of rotary positions. With theta the base and d the rotating dimensions, the plain
 * inverse frequency is f(i) = theta^(-2i/d); each scheme bends it. */
#include "model/rope.h"

#include <math.h>
#include <string.h>

float rope_mscale(float scale, float m)
{
    return scale <= 1 ? 1 : (float)(0.1 * m * log(scale) + 1);
}

float rope_stretch(const struct hparams *h, const struct rope_params *r)
{
    if (r->factor > 0)
        return r->factor;
    return r->original ? (float)((double)h->context / r->original) : 1;
}

/* YaRN: dimensions that turn more than beta_fast times within the original context keep their
 * frequency, those below beta_slow are interpolated, a ramp lies between. */
static void yarn(const struct rope_params *r, uint32_t dims, double factor, double original, float *freqs)
{
    double low = dims * log(original / (r->beta_fast * 2 * M_PI)) / (2 * log(r->theta));
    double high = dims * log(original / (r->beta_slow * 2 * M_PI)) / (2 * log(r->theta));
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dims - 1);
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < dims / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        freqs[i] = (float)(freqs[i] / factor * ramp + freqs[i] * (1 - ramp));
    }
}

/* llama 3.1: long waves are interpolated, short ones kept, those between blended. */
static void llama3(const struct rope_params *r, uint32_t dims, double original, float *freqs)
{
    for (uint32_t i = 0; i < dims / 2; i++) {
        double wave = 2 * M_PI / freqs[i];
        double smooth = (original / wave - r->low_freq) / (r->high_freq - r->low_freq);
        if (wave > original / r->low_freq)
            freqs[i] /= r->factor;
        else if (wave >= original / r->high_freq)
            freqs[i] = (float)((1 - smooth) * freqs[i] / r->factor + smooth * freqs[i]);
    }
}

/* cos and sin are multiplied by this. */
static float attention_factor(const struct hparams *h, const struct rope_params *r, uint32_t ctx,
                              double original)
{
    float own = ctx > original ? r->long_mscale : r->short_mscale;
    float stretch = rope_stretch(h, r);
    bool gguf = h->container == STORE_GGUF;
    if (r->scaling == SCALING_YARN && gguf) {
        float all = r->mscale_all_dim, some = r->mscale != 0 ? r->mscale : 1;
        float m = all != 0 ? rope_mscale(stretch, some) / rope_mscale(stretch, all) : rope_mscale(stretch, 1);
        return r->attention_factor != 0 ? m * r->attention_factor : m;
    }
    if (r->scaling == SCALING_LONGROPE && own != 0)
        return own;
    if (r->attention_factor != 0)
        return r->attention_factor;
    if (r->scaling == SCALING_YARN)
        return r->mscale != 0 && r->mscale_all_dim != 0
                   ? rope_mscale(stretch, r->mscale) / rope_mscale(stretch, r->mscale_all_dim)
                   : rope_mscale(stretch, 1);
    if (r->scaling == SCALING_LONGROPE && !gguf && stretch > 1)
        return (float)sqrt(1 + log(stretch) / log(original));
    return 1;
}

static int divide(float *freqs, const float *by, uint32_t n, uint32_t have, struct err *e)
{
    if (have != n)
        return err_set(e, ERR_DATA,
                       "longrope has %u factors; half of the %u rotating dimensions are expected", have,
                       2 * n);
    for (uint32_t i = 0; i < n; i++)
        freqs[i] /= by[i];
    return 0;
}

int rope_table(const struct hparams *h, const struct rope_params *r, uint32_t dims, uint32_t ctx,
               const struct rope_divisors *d, float *freqs, float *factor, struct err *e)
{
    uint32_t half = dims / 2;
    double original = r->original ? r->original : h->context, theta = r->theta;
    double stretch = rope_stretch(h, r);
    if (r->scaling == SCALING_DYNAMIC && ctx > h->context && dims > 2)
        theta *= pow(stretch * ctx / h->context - (stretch - 1), dims / (double)(dims - 2));
    for (uint32_t i = 0; i < half; i++)
        freqs[i] = (float)pow(theta, -2.0 * i / dims);
    if (r->scaling == SCALING_PROPORTIONAL)
        memset(freqs + (uint32_t)(half * r->partial), 0,
               (half - (uint32_t)(half * r->partial)) * sizeof *freqs);
    *factor = attention_factor(h, r, ctx, original);

    const float *table = d->always ? d->always : ctx > original ? d->extended : d->brief;
    if (table && divide(freqs, table, half, half, e) < 0)
        return -1;
    switch (r->scaling) {
    case SCALING_LINEAR:
        for (uint32_t i = 0; i < half; i++)
            freqs[i] = (float)(freqs[i] / stretch);
        return 0;
    case SCALING_YARN:
        yarn(r, dims, stretch, original, freqs);
        return 0;
    case SCALING_LLAMA3:
        if (!(r->factor > 0 && r->low_freq > 0 && r->high_freq > r->low_freq))
            return err_set(
                e, ERR_DATA,
                "rope scaling llama3 wants factor, low_freq_factor and high_freq_factor, in rising order");
        llama3(r, dims, original, freqs);
        return 0;
    case SCALING_LONGROPE:
        if (h->container == STORE_GGUF)
            return 0; /* given by the tensors */
        return divide(freqs, ctx > original ? r->long_factor : r->short_factor, half, r->factors, e);
    case SCALING_PROPORTIONAL:
        for (uint32_t i = 0; i < half && r->factor > 0; i++)
            freqs[i] /= r->factor;
        return 0;
    case SCALING_NONE:
    case SCALING_DYNAMIC:
        return 0;
    }
    return 0;
}
