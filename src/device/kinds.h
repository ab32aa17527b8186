/* The kinds of norms, rotations, activations, gatings and decays. Plans name them, kernels compute them: kernels
 * include this alone, so that they need not be compiled again when a plan changes. */
#pragma once

enum norm_kind { NORM_NONE, NORM_RMS, NORM_LAYER };

enum rope_kind {
    ROPE_NONE,
    ROPE_PAIRS, /* rotates (x[2i], x[2i+1]): GGUF's llama, GPT-J, cohere */
    ROPE_HALVES /* rotates (x[i], x[i+dims/2]): NEOX, Hugging Face */
};

enum act_kind {
    ACT_NONE,
    ACT_SILU,
    ACT_GELU,       /* exact, erf */
    ACT_GELU_TANH,  /* the tanh approximation (gelu_new, gelu_pytorch_tanh) */
    ACT_GELU_QUICK, /* x * sigmoid(1.702 x) */
    ACT_RELU,
    ACT_RELU2,      /* relu(x)^2 */
    ACT_SWIGLU_OAI, /* gpt-oss: g = min(gate, limit), u = clamp(up, +-limit): g * sigmoid(alpha g) * (u + 1) */
    ACT_SIGMOID,    /* of gates */
    ACT_TANH
};

enum gating_kind {
    GATING_SOFTMAX,      /* softmax over all, then the best k */
    GATING_SOFTMAX_TOPK, /* the best k, then softmax over them (gpt-oss, mixtral) */
    GATING_SIGMOID       /* sigmoid each (deepseek v3) */
};

enum decay_kind {
    DECAY_FIXED,    /* e^a */
    DECAY_SOFTPLUS, /* e^(a dt), dt = softplus(decay + bias), then within dt_range */
    DECAY_SIGMOID,  /* e^(bound * sigmoid(a (decay + bias))) */
    DECAY_EXP,      /* e^(a e^(decay + bias)) */
    DECAY_GIVEN     /* decay + bias */
};

/* Recurrences of channels (struct op_cell of device/plan.h). */
enum cell_kind { CELL_LRU, CELL_AVERAGE, CELL_GATES };

/* What the spans of a step (step.span) mean to attention. */
enum span_kind {
    SPAN_NONE,
    SPAN_ALSO,  /* a row also sees all keys of its span */
    SPAN_AHEAD, /* ... those that are ahead of it; the window bounds those behind */
    SPAN_ONLY   /* it sees those alone */
};
