/* The rows of families with latent attention: one KV head that is both K and V. */
#include "model/arch_rows.h"

const struct arch arch_latents[] = {
    {.name = "deepseek2",
     .hf = "deepseek_v2",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .gating = GATING_SOFTMAX,
     .setup = deepseek_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
                 "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"topk_method\": \"greedy\", "
                 "\"max_position_embeddings\": 2048}"},
    {.name = "deepseek3",
     .written = "deepseek2",
     .hf = "deepseek_v3|kimi_k2",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .setup = deepseek_setup,
     .build = deepseek_build,
     .defaults = "{\"num_experts_per_tok\": 8, \"rms_norm_eps\": 1e-6, \"kv_lora_rank\": 512, "
                 "\"qk_nope_head_dim\": 128, "
                 "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"n_group\": 8, \"topk_group\": 4, "
                 "\"routed_scaling_factor\": 2.5, \"max_position_embeddings\": 4096}"},
    {.name = "mistral4",
     .hf = "mistral4",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .setup = mistral4_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"kv_lora_rank\": 256, \"q_lora_rank\": 1024, "
                 "\"qk_nope_head_dim\": 64, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
                 "\"n_shared_experts\": 1, \"num_experts_per_tok\": 4, "
                 "\"max_position_embeddings\": 1048576}"},
    {.name = "glm4_moe_lite",
     .written = "deepseek2",
     .hf = "glm4_moe_lite",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .setup = deepseek_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"kv_lora_rank\": 512, \"q_lora_rank\": 768, "
                 "\"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, \"v_head_dim\": 256, "
                 "\"n_shared_experts\": 1, \"num_experts_per_tok\": 4, \"routed_scaling_factor\": 1.8, "
                 "\"max_position_embeddings\": 202752}"},
    {.name = "deepseek32",
     .hf = "deepseek_v32",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .index_rope = ROPE_HALVES,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .setup = deepseek_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"kv_lora_rank\": 512, \"q_lora_rank\": 1536, "
                 "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"n_group\": 8, "
                 "\"topk_group\": 4, \"routed_scaling_factor\": 2.5, \"n_shared_experts\": 1, "
                 "\"num_experts_per_tok\": 8, \"index_n_heads\": 64, \"index_head_dim\": 128, "
                 "\"index_topk\": 2048, \"max_position_embeddings\": 163840}"},
    {.name = "glm-dsa",
     .hf = "glm_moe_dsa",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .index_rope = ROPE_PAIRS,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .setup = deepseek_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"kv_lora_rank\": 512, \"q_lora_rank\": 2048, "
                 "\"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, \"v_head_dim\": 256, "
                 "\"routed_scaling_factor\": 2.5, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, "
                 "\"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, "
                 "\"max_position_embeddings\": 202752}"},
    {.name = "longcat_flash",
     .hf = "longcat_flash",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .paired = true,
     .gating = GATING_SOFTMAX,
     .setup = longcat_setup,
     .build = longcat_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"kv_lora_rank\": 512, \"q_lora_rank\": 1536, "
                 "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
                 "\"routed_scaling_factor\": 6.0, \"moe_topk\": 12, \"zero_expert_num\": 256, "
                 "\"rope_theta\": 1e7, \"max_position_embeddings\": 131072}"},
    {.name = "youtu",
     .written = "deepseek2",
     .hf = "youtu",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .setup = deepseek_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"kv_lora_rank\": 512, \"q_lora_rank\": 1536, "
                 "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 131072}"},
    {.name = "minicpm3",
     .hf = "minicpm3",
     .norm = RMS,
     HALVES,
     .act = ACT_SILU,
     .setup = minicpm_setup,
     .build = deepseek_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"kv_lora_rank\": 256, \"q_lora_rank\": 768, "
                 "\"qk_nope_head_dim\": 64, \"qk_rope_head_dim\": 32, \"scale_emb\": 12, "
                 "\"dim_model_base\": 256, \"scale_depth\": 1.4, \"tie_word_embeddings\": true, "
                 "\"max_position_embeddings\": 32768}"},
};

const size_t arch_latents_count = sizeof arch_latents / sizeof *arch_latents;
