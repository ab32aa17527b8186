/* What the kernels of recurrences share: their decays, and which keys a head has. */
#pragma once

#include "device/cuda/common.cuh"

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The state is multiplied by e^power; with DECAY_GIVEN by power itself. */
struct scan_decay {
    float dt, power;
};

/* x: what the row adds to the bias. */
static __device__ __forceinline__ struct scan_decay scan_decay_of(const struct scan_args &p, float a, float x)
{
    struct scan_decay d = {1.0f, a};
    if (p.decay_kind == DECAY_SOFTPLUS) {
        d.dt = fminf(fmaxf(softplus(x), p.dt_least), p.dt_most);
        d.power = a * d.dt;
    } else if (p.decay_kind == DECAY_SIGMOID) {
        d.power = p.bound * sigmoid(a * x);
    } else if (p.decay_kind == DECAY_EXP) {
        d.power = a * expf(x);
    } else if (p.decay_kind == DECAY_GIVEN) {
        d.power = x;
    }
    return d;
}

static __device__ __forceinline__ float scan_factor(const struct scan_args &p, struct scan_decay d)
{
    return p.decay_kind == DECAY_GIVEN ? d.power : expf(d.power);
}

static __device__ __forceinline__ uint32_t scan_own(const struct scan_args &p, uint32_t head)
{
    return p.tiled ? head % p.k_heads : head / (p.heads / p.k_heads);
}
