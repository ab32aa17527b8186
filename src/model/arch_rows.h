/* What the rows of the table of architectures share. */
#pragma once

#include "model/arch.h"
#include "model/families.h"

#define RMS   NORM_RMS
#define LAYER NORM_LAYER
/* Halves of a head rotate, or adjacent pairs; PERMUTED: GGUF's rows of Q and K are ordered for pairs. */
#define HALVES     .gguf_rope = ROPE_HALVES, .hf_rope = ROPE_HALVES
#define PAIRS      .gguf_rope = ROPE_PAIRS, .hf_rope = ROPE_PAIRS
#define PERMUTED   .gguf_rope = ROPE_PAIRS, .hf_rope = ROPE_HALVES
#define LLAMA_LIKE .norm = RMS, .act = ACT_SILU, .build = llama_build
