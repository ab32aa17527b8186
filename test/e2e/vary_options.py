"""What a configuration of a family that only attends may say, and the values that vary_attention.py draws for it."""
from vary import FULL

SLIDING = "sliding_attention"
ACTS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2")
EPS = (1e-6, 1e-5, 1e-3)


def flip(r, c):
    return r.flip()


def of(*values):
    return lambda r, c: r.choice(values)


def factor(r, c):
    return r.factor()


def experts(r, c):
    return r.choice((2, 3, 4, 6))


def layers_of(*kinds):
    return lambda r, c: r.layers(c["num_hidden_layers"], kinds)


# What a configuration may say. Lists of layers come last: they follow their number.
OPTIONS = {
    "attention_bias": flip, "mlp_bias": flip, "use_bias": flip, "qkv_bias": flip, "bias": flip, "attention_out_bias": flip,
    "use_qkv_bias": flip, "lm_head_bias": flip, "norm_bias": flip, "enable_bias": flip, "no_bias": of(True),
    "hidden_act": of(*ACTS), "hidden_activation": of(*ACTS), "activation_function": of(*ACTS), "activation": of(*ACTS),
    "rms_norm_eps": of(*EPS), "layer_norm_eps": of(*EPS), "layer_norm_epsilon": of(*EPS), "norm_eps": of(*EPS),
    "norm_epsilon": of(*EPS), "qk_layernorm": flip, "use_qk_norm": flip, "use_post_norm": flip, "tie_word_embeddings": flip,
    "use_parallel_residual": flip, "parallel_attn": flip, "new_decoder_architecture": flip, "multi_query": flip,
    "num_ln_in_parallel_attn": of(None, 1, 2), "alibi": flip, "scale_attn_weights": flip, "scale_attn_by_inverse_layer_idx": flip,
    "apply_residual_connection_post_layernorm": flip, "do_layer_norm_before": flip, "layer_norm_elementwise_affine": of(True),
    "scale_embedding": flip, "clip_qkv": of(None, 0.5, 1.5), "logit_scale": factor, "logits_scaling": factor,
    "embedding_multiplier": factor, "residual_multiplier": factor, "attention_multiplier": of(0.2, 0.35),
    "query_pre_attn_scalar": of(8, 12, 20), "final_logit_softcapping": of(None, 3.0, 30.0),
    "attn_logit_softcapping": of(None, 2.0, 50.0), "scale_emb": factor, "scale_depth": factor, "dim_model_base": of(8, 16, 64),
    "attention_value_scale": factor, "swiglu_limit": of(7.0, 1.0), "swiglu_alpha": of(1.702, 1.0),
    "sliding_window": lambda r, c: r.choice((1, 2, 5, 8, 31) + (None,) * (c["model_type"] in NO_WINDOW)), "use_sliding_window": flip, "max_window_layers": of(0, 1, 2, 28),
    "attention_chunk_size": of(3, 8, 32), "local_attention": of(2, 7, 8, 32), "window_size": of(1, 5, 8),
    "num_local_experts": experts, "num_experts": experts, "n_routed_experts": experts, "moe_num_experts": experts,
    "n_shared_experts": of(1, 2, 3), "num_shared_experts": of(1, 2), "moe_num_shared_experts": of(0, 1, 2),
    "moe_intermediate_size": of(8, 12), "shared_expert_intermediate_size": of(8, 20), "shared_intermediate_size": of(0, 20),
    "norm_topk_prob": flip, "routed_scaling_factor": factor, "route_scale": factor, "router_scaling_factor": factor,
    "first_k_dense_replace": of(0, 1, 2, 9), "num_dense_layers": of(0, 1, 2), "decoder_sparse_step": of(1, 2, 3),
    "interleave_moe_layer_step": of(1, 2, 3), "moe_layer_interval": of(1, 2), "moe_layer_start_index": of(0, 1),
    "moe_layer_end_index": of(-1, 1, 2, 3), "moe_norm_min": of(1e-12, 0.9), "mup_enabled": flip, "zero_expert_num": of(1, 2, 3),
    "q_lora_rank": of(None, 16, 24), "kv_lora_rank": of(8, 16), "qk_nope_head_dim": of(8, 12), "qk_rope_head_dim": of(4, 8),
    "v_head_dim": of(8, 10, 16), "rope_interleave": flip, "topk_method": of("greedy", "group_limited_greedy"),
    "index_n_heads": of(16, 24), "index_topk": of(4, 6, 24), "kv_channels": of(8, 12), "attention_k_eq_v": flip,
    "use_double_wide_mlp": flip, "floor_scale": of(3, 8), "attn_scale": factor, "attn_temperature_tuning": flip,
    "no_rope_layer_interval": of(2, 3, 4), "global_attn_every_n_layers": of(1, 2, 3), "ffn_hidden_size": of(20, 40),
    "type_vocab_size": of(1, 2), "sinusoidal_pos_embds": flip, "relative_attention_num_buckets": of(8, 32),
    "altup_num_inputs": of(2, 3, 4), "altup_correct_scale": flip, "laurel_rank": of(3, 4), "expansion_ratio": of(2, 3),
    "use_bidirectional_attention": of(None), "hidden_size_per_layer_input": of(0, 4),
    "layer_types": layers_of(SLIDING, FULL), "mlp_layer_types": layers_of("dense", "sparse"),
    "no_rope_layers": layers_of(0, 1), "mlp_only_layers": lambda r, c: [i for i in range(c["num_hidden_layers"]) if r.random() < 0.3],
    "layer_rope_theta": layers_of(1e4, 1e6),
}
NO_WINDOW = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral3", "exaone4", "dots1", "qwen2", "qwen3")
