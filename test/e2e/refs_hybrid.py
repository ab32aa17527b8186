"""The cases of make_refs.py with recurrent layers."""
T = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
A = dict(T, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
         tie_word_embeddings=False)
THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
MAMBA2 = dict(mamba_d_conv=4, mamba_d_state=8, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_expand=2,
              mamba_chunk_size=8)
DELTA = dict(num_hidden_layers=2, head_dim=16, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=12,
             linear_num_key_heads=2, linear_num_value_heads=4, layer_types=["linear_attention", "full_attention"],
             rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25})
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8)
NEMOTRON = dict(A, head_dim=8, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=2, conv_kernel=4, expand=2,
                chunk_size=8)
FALCON = dict(A, **THETA, **MAMBA2, head_dim=8, mamba_d_ssm=64, attention_in_multiplier=0.9, attention_out_multiplier=1.3,
              embedding_multiplier=0.7, key_multiplier=0.7, lm_head_multiplier=0.5, mlp_multipliers=[0.8, 0.6],
              ssm_in_multiplier=1.2, ssm_out_multiplier=0.6, ssm_multipliers=[0.9, 1.1, 0.8, 1.2, 0.7])
LATENT = dict(num_key_value_heads=4, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)

ZAMBA = dict(T, hidden_size=16, num_hidden_layers=4, intermediate_size=12, num_attention_heads=4, max_position_embeddings=128, adapter_rank=3,
             layers_block_type=["linear_attention", "hybrid", "hybrid", "hybrid"], mamba_d_state=8, n_mamba_heads=4,
             num_mem_blocks=2, chunk_size=8)

# name: (model type, configuration, kept in the repository)
CASES = {
    "mamba": ("mamba", dict(T, state_size=8, conv_kernel=4, expand=2, time_step_rank=3), 1),
    "falcon-mamba": ("falcon_mamba", dict(T, state_size=8, conv_kernel=4, expand=2, time_step_rank=3), 1),
    "mamba2": ("mamba2", dict(T, num_heads=4, head_dim=16, state_size=8, n_groups=1, expand=2, chunk_size=8), 1),
    "mamba2-groups": ("mamba2", dict(T, num_heads=4, head_dim=16, state_size=8, n_groups=2, expand=2, chunk_size=8), 0),
    "jamba": ("jamba", dict(A, num_hidden_layers=3, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2,
                            expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=8, mamba_d_conv=4,
                            mamba_expand=2, mamba_dt_rank=3), 1),
    "granite-hybrid": ("granitemoehybrid", dict(A, **THETA, **MAMBA2, layer_types=["linear_attention", "full_attention"],
                                                num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12,
                                                embedding_multiplier=0.6, residual_multiplier=0.8, attention_multiplier=0.2,
                                                logits_scaling=2.0, position_embedding_type="rope"), 1),
    "granite-hybrid-dense": ("granitemoehybrid", dict(A, **MAMBA2, layer_types=["linear_attention", "full_attention"],
                                                      num_local_experts=0, num_experts_per_tok=0,
                                                      shared_intermediate_size=24, attention_multiplier=0.2), 1),
    "bamba": ("bamba", dict(A, **MAMBA2, rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                           "partial_rotary_factor": 0.5}, attn_layer_indices=[1]), 1),
    "zamba2": ("zamba2", dict(ZAMBA, mamba_ngroups=2, use_mem_rope=True,
                              use_shared_attention_adapter=True), 1),
    "zamba2-plain": ("zamba2", dict(ZAMBA, num_mem_blocks=1, num_key_value_heads=2, add_bias_linear=True,
                                    time_step_min=0.2), 0),
    "nemotron-h": ("nemotron_h", dict(NEMOTRON, layers_block_type=["linear_attention", "mlp", "full_attention"],
                                      num_hidden_layers=3), 1),
    "nemotron-h-moe": ("nemotron_h", dict(NEMOTRON, layers_block_type=["linear_attention", "moe", "full_attention"],
                                          num_hidden_layers=3, n_routed_experts=4, num_experts_per_tok=2,
                                          moe_intermediate_size=8, moe_shared_expert_intermediate_size=12,
                                          routed_scaling_factor=2.5), 1),
    "nemotron-h-latent": ("nemotron_h", dict(NEMOTRON, layers_block_type=["linear_attention", "moe", "full_attention"],
                                             num_hidden_layers=3, n_routed_experts=4, num_experts_per_tok=2,
                                             moe_intermediate_size=8, moe_shared_expert_intermediate_size=12,
                                             moe_latent_size=16, routed_scaling_factor=2.5), 1),
    "falcon-h1": ("falcon_h1", dict(FALCON, mamba_rms_norm=False), 1),
    "falcon-h1-norm": ("falcon_h1", dict(FALCON, mamba_rms_norm=True, mamba_norm_before_gate=False), 1),
    "falcon-h1-before": ("falcon_h1", dict(FALCON, mamba_rms_norm=True, mamba_norm_before_gate=True,
                                           attention_bias=True), 0),
    "qwen3-next": ("qwen3_next", dict(A, **DELTA, **MOE), 1),
    "qwen3.5": ("qwen3_5_text", dict(A, **DELTA), 1),
    "qwen3.5-moe": ("qwen3_5_moe_text", dict(A, **DELTA, **MOE), 1),
    "olmo-hybrid": ("olmo_hybrid", dict(A, **{**DELTA, **THETA, "head_dim": 8}, linear_allow_neg_eigval=True), 1),
    "lfm2": ("lfm2", dict(A, **THETA, conv_L_cache=3, block_auto_adjust_ff_dim=False,
                          layer_types=["conv", "full_attention"]), 1),
    "lfm2-moe": ("lfm2_moe", dict(A, **THETA, conv_L_cache=3, layer_types=["conv", "full_attention"], num_experts=4,
                                  num_experts_per_tok=2, moe_intermediate_size=8, num_dense_layers=1), 1),
    "kimi-linear": ("kimi_linear", dict(A, **LATENT, q_lora_rank=None, head_dim=8, linear_head_dim=8, linear_num_heads=4,
                                        layer_types=["linear_attention", "full_attention"], num_local_experts=4,
                                        num_experts_per_tok=2, moe_intermediate_size=8, n_group=1, topk_group=1,
                                        n_shared_experts=1, routed_scaling_factor=2.4,
                                        mlp_layer_types=["dense", "sparse"]), 1),
    "bailing-hybrid": ("bailing_hybrid", dict(A, **LATENT, **THETA, head_dim=8, layer_group_size=2, num_local_experts=4,
                                              num_experts_per_tok=2, moe_intermediate_size=8, n_group=2, topk_group=1,
                                              n_shared_experts=1, first_k_dense_replace=1, num_mtp_layers=0), 1),
    "minimax": ("minimax", dict(A, **THETA, head_dim=8, layer_types=["linear_attention", "full_attention"],
                                num_local_experts=4, num_experts_per_tok=2, block_size=8, linear_attn_alpha_factor=0.5,
                                full_attn_alpha_factor=0.7, mlp_alpha_factor=0.6, mlp_beta_factor=0.9), 1),
    "recurrent-gemma": ("recurrent_gemma", dict(T, num_hidden_layers=3, intermediate_size=48, num_attention_heads=4,
                                                num_key_value_heads=1, lru_width=40, attention_window_size=32,
                                                block_types=["recurrent", "attention"]), 1),
    "zamba": ("zamba", dict(T, hidden_size=16, num_hidden_layers=4, intermediate_size=12, num_attention_heads=4,
                            num_key_value_heads=4, max_position_embeddings=128, mamba_d_state=8, n_mamba_heads=2,
                            mamba_dt_rank=3, layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"]), 1),
}
