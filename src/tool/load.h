/* Shared by the verbs that run a model: the common options, and loading with a progress bar. */
#pragma once

#include "run/engine.h"
#include "run/session.h"
#include "tool/args.h"

/* Rows for a verb's option table. */
#define LOAD_THREADS                                                                                         \
    {                                                                                                        \
        "threads", 't', ARG_INT, "N", "threads (default: all available cores)", 1, 1024                      \
    }
/* How much of a GPU is used. */
#define LOAD_GPU                                                                                             \
    {"gpu-layers", 0, ARG_TEXT, "N", "layers on the GPU: a number, all, or auto (as many as fit)", 0, 0},    \
        {"cpu-moe", 0, ARG_FLAG, NULL, "experts stay on the CPU, the rest goes to the GPU", 0, 0},           \
        {"gpu-memory", 0, ARG_TEXT, "SIZE", "limit of GPU memory, such as 8G", 0, 0},                        \
        {"gpu-copies",                                                                                       \
         0,                                                                                                  \
         ARG_BYTES,                                                                                          \
         "SIZE",                                                                                             \
         "for prompts: decoded weights, and as much for the CPU's (default: most)",                          \
         0,                                                                                                  \
         1e15},                                                                                              \
        {"no-pinned-weights",                                                                                \
         0,                                                                                                  \
         ARG_FLAG,                                                                                           \
         NULL,                                                                                               \
         "copy the CPU's weights for prompts on the GPU, pin none",                                          \
         0,                                                                                                  \
         0},                                                                                                 \
        {"prefill", 0, ARG_TEXT, "TYPE", "GPU: long prompts in f16 (default) or fp8: faster, less exact",    \
         0,         0},                                                                                      \
    {                                                                                                        \
        "no-parity", 0, ARG_FLAG, NULL, "GPU: do not check weights against the CPU at load", 0, 0            \
    }
/* Several ranks that run one model together. */
#define LOAD_RANKS                                                                                            \
    {"tensor-parallel",                                                                                       \
     0,                                                                                                       \
     ARG_INT,                                                                                                 \
     "N",                                                                                                     \
     "ranks that share every layer: cards, or parts of a CPU (default: 1)",                                   \
     1,                                                                                                       \
     64},                                                                                                     \
        {"pipeline", 0, ARG_INT, "N", "stages that have the layers one after the other (default: 1)", 1, 64}, \
    {                                                                                                         \
        "gpus", 0, ARG_TEXT, "LIST", "the card of each rank: 0,1,2,3", 0, 0                                   \
    }
#define LOAD_BUT_THREADS                                                                                      \
    {"ctx", 'c', ARG_INT, "N", "tokens of context (default: the model's, at most 8192)", 1, 1 << 24},         \
        {"device", 0, ARG_TEXT, "D", "cpu, cuda or cuda:N (default: a GPU if there is one)", 0, 0},           \
        {"pin", 0, ARG_FLAG, NULL, "CPU: pin each thread to a core (for a dedicated machine)", 0, 0},         \
        LOAD_GPU, LOAD_RANKS,                                                                                 \
        {"activations", 0, ARG_INT, "BITS", "CPU: 8 or 16 (default: 16 for models below 320 MiB)", 8, 16},    \
        {"kv", 0, ARG_TEXT, "TYPE", "keys and values as f16 (default), f32, bf16, q8_0 or, GPU, f8", 0, 0},   \
        {"kv-memory", 0,   ARG_BYTES, "SIZE", "memory for the KV cache (default: for all streams, if free)",  \
         1,           1e15},                                                                                  \
        {"state-memory", 0, ARG_BYTES, "SIZE", "memory for recurrent states and their snapshots", 1, 1e15},   \
        {"deterministic", 0, ARG_FLAG, NULL, "CPU: the same bits whatever other requests run; slower", 0, 0}, \
        {"exact", 0, ARG_FLAG, NULL, "float activations and F32 KV: slower, no rounding", 0, 0},              \
        {"tier", 0, ARG_TEXT, "T", "CPU kernels: scalar; avx2, avx512, amx; neon, dotprod, i8mm (the best)",  \
         0,      0},                                                                                          \
        {"quant", 0, ARG_TEXT, "TYPE", "quantise F32, F16, BF16, FP8 weights while loading: q4_k_m", 0, 0},   \
        {"no-repack", 0, ARG_FLAG, NULL, "CPU: use the file's layout, never repack; slower", 0, 0},           \
        {"no-mmap", 0, ARG_FLAG, NULL, "read the file into memory instead of mapping it", 0, 0},              \
    {                                                                                                         \
        "mlock", 0, ARG_FLAG, NULL, "keep the model in memory (never swapped out)", 0, 0                      \
    }

#define LOAD_LORA                                                                                            \
    {                                                                                                        \
        "lora", 0, ARG_TEXT, "A", "an adapter (LoRA), NAME=PATH[:SCALE]; may be repeated", 0, 0              \
    }

#define LOAD_REASONING                                                                                       \
    {                                                                                                        \
        "reasoning-budget", 0, ARG_INT, "N", "most tokens of reasoning (default, or -1: no limit)", -1,      \
            1 << 24                                                                                          \
    }

#define LOAD_CACHE                                                                                           \
    {"cache-dir", 0, ARG_TEXT, "DIR", "keep prompt prefixes on disk, across restarts", 0, 0},                \
        {"snapshot-every", 0, ARG_INT, "N", "tokens between two snapshots of recurrent state (1024)", 32,    \
         1 << 24},                                                                                           \
    {                                                                                                        \
        "cache-disk", 0, ARG_TEXT, "SIZE", "size limit of --cache-dir, such as 500M or 8G (default: 4G)", 0, \
            0                                                                                                \
    }

#define LOAD_OPTIONS LOAD_THREADS, LOAD_BUT_THREADS

/* Reads those rows into o and keeps its other fields; device, threads and exactness stay if already set. */
int load_options(const struct args *a, struct session_options *o, struct err *e);
/* LOAD_GPU's rows alone. */
int load_gpu(const struct args *a, struct runner_options *r, struct err *e);
/* LOAD_RANKS' rows alone, and the ranks that the environment names (comm/job.h). */
int load_ranks(const struct args *a, struct runner_options *r, struct err *e);
/* Meets the other processes, where the environment says that this is one of several ranks; before the sandbox closes. */
int load_join(struct err *e);
/* Whether the environment says that another rank has the server: before load_join, too. */
bool load_is_follower(void);
/* For verbs that are for this process alone: the environment is not asked. */
void load_alone(void);
/* The number of this process among the ranks; 0 also where there is no other. */
uint32_t load_rank(void);
/* Another rank than 0 has done its part when opening a model fails without a reason: ends the process then. */
void load_served(const struct err *e);
/* LOAD_CACHE's rows into o. */
int load_cache(const struct args *a, struct engine_options *o, struct err *e);
/* An error for encoders, which only embed: they predict no token. */
int load_predicts(const struct model *m, const char *path, struct err *e);
/* Every --lora of this call at once, each with its scale; and a sequence with them. */
int load_mix(const struct session *l, struct adapter_mix *out, struct err *e);
struct seq *load_seq(const struct session *l, struct err *e);
/* MODEL (NULL = the default one), with a progress bar where it takes long. */
int load_model(struct session **out, const char *model, struct session_options *o, const struct args *a,
               struct err *e);
