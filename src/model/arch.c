/* The table of architectures. */
#include "model/arch.h"

#include "base/edit_distance.h"
#include "base/log.h"
#include "model/arch_rows.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Defaults are those of Hugging Face's configuration classes, where files on the Hub omit them. */
static const struct arch table[] = {
    {.name = "llama",
     .hf = "llama|code_llama|yi|smollm",
     LLAMA_LIKE,
     PERMUTED,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 2048}"},
    {.name = "mistral",
     .written = "llama",
     .hf = "mistral|ministral",
     LLAMA_LIKE,
     PERMUTED,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"num_key_value_heads\": 8, \"sliding_window\": 4096, "
                 "\"max_position_embeddings\": 131072}"},
    {.name = "mixtral",
     .written = "llama",
     .hf = "mixtral",
     .expert_is_ffn = true,
     LLAMA_LIKE,
     PERMUTED,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .defaults = "{\"num_key_value_heads\": 8, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
                 "\"rope_theta\": 1e6}"},
    {.name = "qwen2",
     .hf = "qwen2",
     LLAMA_LIKE,
     HALVES,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"use_sliding_window\": false, \"sliding_window\": 4096, "
                 "\"max_window_layers\": 28, \"max_position_embeddings\": 32768}"},
    {.name = "qwen2moe",
     .hf = "qwen2_moe",
     LLAMA_LIKE,
     HALVES,
     .gating = GATING_SOFTMAX,
     .setup = qwen_moe_setup,
     .window_pattern = 2,
     .windows_first = true,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"use_sliding_window\": false, \"sliding_window\": 4096, "
                 "\"max_window_layers\": 28, \"num_experts\": 60, \"num_experts_per_tok\": 4, "
                 "\"moe_intermediate_size\": 1408, "
                 "\"shared_expert_intermediate_size\": 5632, \"max_position_embeddings\": 32768}"},
    {.name = "qwen3",
     .hf = "qwen3",
     LLAMA_LIKE,
     HALVES,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 128, \"use_sliding_window\": false, "
                 "\"sliding_window\": 4096, \"max_window_layers\": 28, \"max_position_embeddings\": 32768}"},
    {.name = "qwen3moe",
     .hf = "qwen3_moe",
     LLAMA_LIKE,
     HALVES,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .setup = qwen_moe_setup,
     .defaults =
         "{\"rms_norm_eps\": 1e-6, \"use_sliding_window\": false, \"sliding_window\": 4096, "
         "\"num_key_value_heads\": 4, \"num_experts\": 128, \"num_experts_per_tok\": 8, "
         "\"moe_intermediate_size\": 768, \"norm_topk_prob\": false, \"max_position_embeddings\": 32768}"},
    {.name = "qwen2vl",
     .hf = "qwen2_vl|qwen2_vl_text|qwen2_5_vl|qwen2_5_vl_text",
     LLAMA_LIKE,
     HALVES,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"use_sliding_window\": false, \"sliding_window\": 4096, "
                 "\"max_window_layers\": 80, \"max_position_embeddings\": 32768, \"rope_theta\": 1e6}"},
    {.name = "qwen3vl",
     .hf = "qwen3_vl|qwen3_vl_text",
     LLAMA_LIKE,
     HALVES,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 128, \"use_sliding_window\": false, "
                 "\"max_position_embeddings\": 128000, \"rope_theta\": 5e6}"},
    {.name = "qwen3vlmoe",
     .hf = "qwen3_vl_moe|qwen3_vl_moe_text",
     LLAMA_LIKE,
     HALVES,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .setup = qwen_moe_setup,
     .defaults =
         "{\"rms_norm_eps\": 1e-6, \"head_dim\": 128, \"num_key_value_heads\": 16, \"num_experts\": 60, "
         "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1408, \"norm_topk_prob\": true, "
         "\"max_position_embeddings\": 128000, \"rope_theta\": 5e6}"},
    {.name = "gemma",
     .hf = "gemma",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .norm_plus_one = true,
     .setup = gemma_setup,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"tie_word_embeddings\": true, "
                 "\"max_position_embeddings\": 8192}"},
    {.name = "gemma2",
     .hf = "gemma2",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .norm_plus_one = true,
     .window_pattern = 2,
     .sandwich = true,
     .setup = gemma_setup,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"num_attention_heads\": 8, "
                 "\"num_key_value_heads\": 4, \"query_pre_attn_scalar\": 256, \"sliding_window\": 4096, "
                 "\"final_logit_softcapping\": 30.0, \"attn_logit_softcapping\": 50.0, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 8192}"},
    {.name = "gemma3",
     .hf = "gemma3_text|gemma3",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .norm_plus_one = true,
     .window_pattern = 6,
     .sandwich = true,
     .setup = gemma_setup,
     .build = llama_build,
     .variant = {"use_bidirectional_attention", "true", "gemma-embedding"},
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"num_attention_heads\": 8, "
                 "\"num_key_value_heads\": 4, \"query_pre_attn_scalar\": 256, \"sliding_window\": 4096, "
                 "\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216, "
                 "\"num_hidden_layers\": 26, \"rope_theta\": 1e6, \"rope_local_base_freq\": 10000.0, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 131072}"},
    {.name = "gemma-embedding",
     .hf = "gemma-embedding",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .norm_plus_one = true,
     .window_pattern = 6,
     .encoder = true,
     .setup = gemma_setup,
     .sandwich = true,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"num_attention_heads\": 8, "
                 "\"num_key_value_heads\": 4, \"query_pre_attn_scalar\": 256, \"sliding_window\": 4096, "
                 "\"rope_theta\": 1e6, \"rope_local_base_freq\": 10000.0, "
                 "\"max_position_embeddings\": 131072}"},
    {.name = "phi2",
     .hf = "phi",
     .norm = LAYER,
     HALVES,
     .partial_rope = true,
     .act = ACT_GELU_TANH,
     .build = phi2_build,
     .defaults =
         "{\"layer_norm_eps\": 1e-5, \"partial_rotary_factor\": 0.5, \"max_position_embeddings\": 2048}"},
    {.name = "phi3",
     .hf = "phi3",
     LLAMA_LIKE,
     HALVES,
     .partial_rope = true,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"original_max_position_embeddings\": 4096}"},
    {.name = "olmo",
     .hf = "olmo",
     .norm = LAYER,
     PERMUTED,
     .act = ACT_SILU,
     .build = olmo_build,
     .defaults = "{\"max_position_embeddings\": 2048}"},
    {.name = "olmo2",
     .hf = "olmo2|olmo3",
     .norm = RMS,
     HALVES,
     .act = ACT_SILU,
     .qk_norm_row = true,
     .window_pattern = 4,
     .setup = olmo2_setup,
     .build = olmo2_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 2048}"},
    {.name = "olmoe",
     .hf = "olmoe",
     .expert_is_ffn = true,
     LLAMA_LIKE,
     HALVES,
     .qk_norm_row = true,
     .gating = GATING_SOFTMAX,
     .setup = olmoe_setup,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_experts\": 64, \"num_experts_per_tok\": 8, "
                 "\"max_position_embeddings\": 4096}"},
    {.name = "granite",
     .hf = "granite",
     LLAMA_LIKE,
     PERMUTED,
     .setup = granite_setup,
     .defaults =
         "{\"rms_norm_eps\": 1e-6, \"attention_multiplier\": 1.0, \"max_position_embeddings\": 2048}"},
    {.name = "granitemoe",
     .hf = "granitemoe|granitemoeshared",
     .expert_is_ffn = true,
     LLAMA_LIKE,
     PERMUTED,
     .gating = GATING_SOFTMAX_TOPK,
     .setup = granite_setup,
     .defaults = "{\"num_experts_per_tok\": 2, \"rms_norm_eps\": 1e-6, \"attention_multiplier\": 1.0, "
                 "\"max_position_embeddings\": 2048}"},
    {.name = "smollm3",
     .hf = "smollm3",
     LLAMA_LIKE,
     PERMUTED,
     .setup = smollm3_setup,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"num_key_value_heads\": 4, \"use_sliding_window\": false, "
                 "\"tie_word_embeddings\": true, \"rope_theta\": 2e6, \"max_position_embeddings\": 32768}"},
    {.name = "starcoder2",
     .hf = "starcoder2",
     .norm = LAYER,
     HALVES,
     .act = ACT_GELU_TANH,
     .build = llama_build,
     .defaults = "{\"norm_epsilon\": 1e-5, \"num_key_value_heads\": 2, \"tie_word_embeddings\": true, "
                 "\"max_position_embeddings\": 4096}"},
    {.name = "stablelm",
     .hf = "stablelm|stablelm_epoch",
     .plain_heads = true,
     .norm = LAYER,
     HALVES,
     .partial_rope = true,
     .act = ACT_SILU,
     .build = stablelm_build,
     .defaults =
         "{\"layer_norm_eps\": 1e-5, \"partial_rotary_factor\": 0.25, \"max_position_embeddings\": 4096}"},
    {.name = "gpt2",
     .hf = "gpt2",
     .hf_kv_heads = "",
     .plain_heads = true,
     .norm = LAYER,
     .act = ACT_GELU_TANH,
     .conv1d = true,
     .setup = gpt2_setup,
     .build = gpt2_build,
     .defaults = "{\"layer_norm_epsilon\": 1e-5, \"n_positions\": 1024, \"tie_word_embeddings\": true}"},
    {.name = "gptneox",
     .hf = "gpt_neox",
     .hf_kv_heads = "",
     .plain_heads = true,
     .norm = LAYER,
     HALVES,
     .partial_rope = true,
     .act = ACT_GELU,
     .grouped_qkv = true,
     .setup = neox_setup,
     .build = neox_build,
     .defaults =
         "{\"layer_norm_eps\": 1e-5, \"partial_rotary_factor\": 0.25, \"max_position_embeddings\": 2048}"},
    {.name = "falcon",
     .hf = "falcon|RefinedWeb|RefinedWebModel",
     .hf_kv_heads = "num_kv_heads|n_head_kv",
     .plain_heads = true,
     .norm = LAYER,
     HALVES,
     .act = ACT_GELU,
     .grouped_qkv = true,
     .setup = falcon_setup,
     .build = falcon_build,
     .defaults =
         "{\"layer_norm_epsilon\": 1e-5, \"tie_word_embeddings\": true, \"max_position_embeddings\": 2048}"},
    {.name = "command-r",
     .hf = "cohere",
     .norm = LAYER,
     PAIRS,
     .act = ACT_SILU,
     .build = cohere_build,
     .defaults = "{\"layer_norm_eps\": 1e-5, \"logit_scale\": 0.0625, \"tie_word_embeddings\": true, "
                 "\"max_position_embeddings\": 8192}"},
    {.name = "cohere2",
     .hf = "cohere2",
     .plain_heads = true,
     .norm = LAYER,
     PAIRS,
     .act = ACT_SILU,
     .window_pattern = 4,
     .rope_if_sliding = true,
     .build = cohere_build,
     .defaults = "{\"layer_norm_eps\": 1e-5, \"logit_scale\": 0.0625, \"sliding_window\": 4096, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 8192}"},
    {.name = "seed_oss",
     .hf = "seed_oss",
     LLAMA_LIKE,
     HALVES,
     .ffn_norm = "post_attention_norm",
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 128, \"num_key_value_heads\": 8, "
                 "\"max_position_embeddings\": 524288}"},
    {.name = "exaone4",
     .hf = "exaone4",
     .norm = RMS,
     HALVES,
     .act = ACT_SILU,
     .window_pattern = 4,
     .rope_if_sliding = true,
     .build = olmo2_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 32, \"sliding_window\": 4096, "
                 "\"max_position_embeddings\": 2048}"},
    {.name = "exaone-moe",
     .hf = "exaone_moe",
     LLAMA_LIKE,
     HALVES,
     .window_pattern = 4,
     .rope_if_sliding = true,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 32, \"sliding_window\": 4096, "
                 "\"num_experts\": 64, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 1024, "
                 "\"num_shared_experts\": 1, \"routed_scaling_factor\": 2.5, "
                 "\"max_position_embeddings\": 2048}"},
    {.name = "dots1",
     .hf = "dots1",
     LLAMA_LIKE,
     HALVES,
     .gating = GATING_SIGMOID,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"num_key_value_heads\": 32, \"max_position_embeddings\": 2048}"},
    {.name = "minimax-m2",
     .hf = "minimax_m2",
     .expert_is_ffn = true,
     LLAMA_LIKE,
     HALVES,
     .partial_rope = true,
     .qk_norm_row = true,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 128, \"num_key_value_heads\": 8, "
                 "\"num_local_experts\": 256, \"num_experts_per_tok\": 8, \"rope_theta\": 5e6, "
                 "\"max_position_embeddings\": 196608}"},
    {.name = "arcee",
     .hf = "arcee",
     .norm = RMS,
     PERMUTED,
     .act = ACT_RELU2,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 4096}"},
    {.name = "nemotron",
     .hf = "nemotron",
     .norm = LAYER,
     HALVES,
     .partial_rope = true,
     .act = ACT_RELU2,
     .norm_plus_one = true,
     .build = llama_build,
     .defaults = "{\"norm_eps\": 1e-5, \"partial_rotary_factor\": 0.5, \"max_position_embeddings\": 4096}"},
    {.name = "flex_olmo",
     .hf = "flex_olmo",
     .expert_is_ffn = true,
     .norm = RMS,
     HALVES,
     .act = ACT_SILU,
     .qk_norm_row = true,
     .gating = GATING_SOFTMAX,
     .build = olmo2_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"num_experts\": 7, \"num_experts_per_tok\": 5, "
                 "\"rope_theta\": 5e5, \"max_position_embeddings\": 4096}"},
    {.name = "granite_swa",
     .hf = "granite_swa|granitemoe_swa",
     .expert_is_ffn = true,
     LLAMA_LIKE,
     PERMUTED,
     .window_pattern = 4,
     .full_first = true,
     .gating = GATING_SOFTMAX_TOPK,
     .setup = granite_swa_setup,
     .defaults = "{\"num_experts_per_tok\": 2, \"rms_norm_eps\": 1e-5, \"attention_multiplier\": 1.0, "
                 "\"sliding_window\": 128, "
                 "\"max_position_embeddings\": 8192}"},
    {.name = "solar_open",
     .gguf = "glm4moe",
     .written = "glm4moe",
     .hf = "solar_open",
     LLAMA_LIKE,
     HALVES,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .ffn_norm = "post_attention_norm",
     .defaults = "{\"num_experts_per_tok\": 8, \"rms_norm_eps\": 1e-5, \"head_dim\": 128, "
                 "\"num_key_value_heads\": 8, "
                 "\"n_shared_experts\": 1, \"rope_theta\": 1e6, \"max_position_embeddings\": 131072}"},
    {.name = "hy_v3",
     .hf = "hy_v3",
     LLAMA_LIKE,
     HALVES,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .defaults =
         "{\"rms_norm_eps\": 1e-5, \"head_dim\": 128, \"num_key_value_heads\": 8, \"num_experts\": 192, "
         "\"num_experts_per_tok\": 8, \"num_shared_experts\": 1, \"moe_intermediate_size\": 1536, "
         "\"router_scaling_factor\": 2.826, \"rope_theta\": 11158840.0, "
         "\"max_position_embeddings\": 131072}"},
    {.name = "jais2",
     .hf = "jais2",
     .norm = LAYER,
     HALVES,
     .act = ACT_RELU2,
     .build = llama_build,
     .defaults = "{\"layer_norm_eps\": 1e-5, \"max_position_embeddings\": 8192}"},
    {.name = "cwm",
     .written = "llama",
     .hf = "cwm",
     LLAMA_LIKE,
     PERMUTED,
     .window_pattern = 4,
     .full_first = true,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"head_dim\": 128, \"num_key_value_heads\": 8, "
                 "\"sliding_window\": 8192, \"rope_theta\": 1e6, \"max_position_embeddings\": 131072}"},
    {.name = "gemma4",
     .hf = "gemma4_text|gemma4|gemma4_unified_text",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .v_is_k = true,
     .window_pattern = 6,
     .setup = gemma4_setup,
     .build = gemma4_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"num_attention_heads\": 8, "
                 "\"num_key_value_heads\": 4, \"global_head_dim\": 512, \"sliding_window\": 512, "
                 "\"hidden_size_per_layer_input\": 256, \"tie_word_embeddings\": true, "
                 "\"enable_moe_block\": false, "
                 "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
                 "\"partial_rotary_factor\": 0.25, \"rope_theta\": 1000000.0}, "
                 "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}, "
                 "\"max_position_embeddings\": 131072}"},
    {.name = "gemma3n",
     .hf = "gemma3n_text|gemma3n",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .window_pattern = 5,
     .setup = gemma3n_setup,
     .build = gemma3n_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"num_attention_heads\": 8, "
                 "\"num_key_value_heads\": 2, \"sliding_window\": 512, \"rope_theta\": 1e6, "
                 "\"rope_local_base_freq\": 10000.0, \"hidden_size_per_layer_input\": 256, "
                 "\"num_kv_shared_layers\": 15, \"final_logit_softcapping\": 30.0, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 32768}"},
    {.name = "vaultgemma",
     .hf = "vaultgemma",
     .norm = RMS,
     HALVES,
     .act = ACT_GELU_TANH,
     .norm_plus_one = true,
     .window_pattern = 2,
     .setup = gemma_setup,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 256, \"query_pre_attn_scalar\": 256, "
                 "\"sliding_window\": 4096, \"final_logit_softcapping\": 30.0, "
                 "\"attn_logit_softcapping\": 50.0, \"tie_word_embeddings\": true, "
                 "\"max_position_embeddings\": 8192}"},
    {.name = "chatglm",
     .hf = "glm",
     LLAMA_LIKE,
     PAIRS,
     .partial_rope = true,
     .defaults = "{\"rms_norm_eps\": 1.5625e-7, \"head_dim\": 128, \"num_key_value_heads\": 2, "
                 "\"partial_rotary_factor\": 0.5, \"max_position_embeddings\": 131072}"},
    {.name = "glm4",
     .hf = "glm4",
     LLAMA_LIKE,
     PAIRS,
     .partial_rope = true,
     .sandwich = true,
     .defaults = "{\"rms_norm_eps\": 1.5625e-7, \"head_dim\": 128, \"num_key_value_heads\": 2, "
                 "\"partial_rotary_factor\": 0.5, \"max_position_embeddings\": 131072}"},
    {.name = "glm4moe",
     .hf = "glm4_moe",
     LLAMA_LIKE,
     HALVES,
     .partial_rope = true,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .ffn_norm = "post_attention_norm",
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 8, "
                 "\"partial_rotary_factor\": 0.5, "
                 "\"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"max_position_embeddings\": 131072}"},
    {.name = "ernie4_5",
     .hf = "ernie4_5",
     LLAMA_LIKE,
     PAIRS,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"head_dim\": 128, \"num_key_value_heads\": 2, "
                 "\"rope_theta\": 500000.0, \"tie_word_embeddings\": true, "
                 "\"max_position_embeddings\": 131072}"},
    {.name = "ernie4_5-moe",
     .hf = "ernie4_5_moe",
     LLAMA_LIKE,
     PAIRS,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 4, \"moe_k\": 6, "
                 "\"moe_num_experts\": 64, \"moe_num_shared_experts\": 2, "
                 "\"moe_intermediate_size\": 1536, \"rope_theta\": 500000.0, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 131072}"},
    {.name = "helium",
     .hf = "helium",
     LLAMA_LIKE,
     PAIRS,
     .defaults = "{\"rms_norm_eps\": 1e-8, \"head_dim\": 128, \"num_key_value_heads\": 20, "
                 "\"rope_theta\": 100000.0, \"max_position_embeddings\": 4096}"},
    {.name = "mistral3",
     .hf = "ministral3",
     LLAMA_LIKE,
     PERMUTED,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"head_dim\": 128, \"num_key_value_heads\": 8, "
                 "\"max_position_embeddings\": 262144}"},
    {.name = "mellum",
     .hf = "mellum",
     LLAMA_LIKE,
     HALVES,
     .window_pattern = 4,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .setup = mellum_setup,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"head_dim\": 128, \"num_key_value_heads\": 4, "
                 "\"num_experts\": 64, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 896, "
                 "\"sliding_window\": 1024, \"max_position_embeddings\": 131072}"},
    {.name = "hyperclovax",
     .hf = "hyperclovax",
     LLAMA_LIKE,
     PERMUTED,
     .sandwich = true,
     .variant = {"use_post_norm", "false", "hyperclovax-plain"},
     .defaults = "{\"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 2048}"},
    {.name = "hyperclovax-plain",
     .hf = "",
     LLAMA_LIKE,
     PERMUTED,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 2048}"},
    {.name = "nanochat",
     .hf = "nanochat",
     .norm = RMS,
     HALVES,
     .rope_back = true,
     .norm_last = true,
     .act = ACT_RELU2,
     .build = nanochat_build,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"final_logit_softcapping\": 15.0, "
                 "\"max_position_embeddings\": 2048}"},
    {.name = "minicpm",
     .hf = "minicpm",
     LLAMA_LIKE,
     PERMUTED,
     .setup = minicpm_setup,
     .defaults = "{\"rms_norm_eps\": 1e-6, \"scale_emb\": 1, \"dim_model_base\": 1, \"scale_depth\": 1, "
                 "\"tie_word_embeddings\": true, \"max_position_embeddings\": 4096}"},
    {.name = "mimo2",
     .hf = "mimo_v2_flash",
     LLAMA_LIKE,
     HALVES,
     .partial_rope = true,
     .window_pattern = 6,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .setup = mimo_setup,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"head_dim\": 192, \"v_head_dim\": 128, "
                 "\"num_key_value_heads\": 4, \"num_experts_per_tok\": 8, \"sliding_window\": 129, "
                 "\"partial_rotary_factor\": 0.334, \"attention_value_scale\": 0.707, "
                 "\"rope_theta\": 5e6, \"swa_rope_theta\": 10000.0, \"max_position_embeddings\": 131072}"},
    {.name = "llama4",
     .hf = "llama4_text|llama4",
     .norm = RMS,
     PAIRS,
     .act = ACT_SILU,
     .gating = GATING_SIGMOID,
     .norm_last = true,
     .window_pattern = 4,
     .setup = llama4_setup,
     .build = llama4_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"head_dim\": 128, \"num_key_value_heads\": 8, "
                 "\"num_local_experts\": 16, \"num_experts_per_tok\": 1, \"rope_theta\": 500000.0, "
                 "\"attention_chunk_size\": 8192, \"max_position_embeddings\": 131072}"},
    {.name = "afmoe",
     .hf = "afmoe",
     LLAMA_LIKE,
     HALVES,
     .window_pattern = 4,
     .rope_if_sliding = true,
     .gating = GATING_SIGMOID,
     .normalise = true,
     .sandwich = true,
     .setup = afmoe_setup,
     .defaults =
         "{\"rms_norm_eps\": 1e-5, \"head_dim\": 128, \"num_experts\": 64, \"num_experts_per_tok\": 6, "
         "\"num_shared_experts\": 2, \"sliding_window\": 1024, \"route_scale\": 1.0, "
         "\"max_position_embeddings\": 16384}"},
    {.name = "hunyuan-dense",
     .hf = "hunyuan_v1_dense",
     LLAMA_LIKE,
     HALVES,
     .norm_last = true,
     .setup = hunyuan_setup,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 2048}"},
    {.name = "hunyuan-moe",
     .hf = "hunyuan_v1_moe",
     .expert_is_ffn = true,
     LLAMA_LIKE,
     HALVES,
     .norm_last = true,
     .gating = GATING_SOFTMAX,
     .normalise = true,
     .setup = hunyuan_setup,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_experts\": 1, \"moe_topk\": 1, \"num_shared_expert\": 1, "
                 "\"max_position_embeddings\": 2048}"},
    {.name = "apertus",
     .hf = "apertus",
     .norm = RMS,
     HALVES,
     .act = ACT_NONE,
     .setup = apertus_setup,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"rope_theta\": 12000000.0, \"max_position_embeddings\": 65536}"},
    /* Microsoft's own GGUF files have this name; llama.cpp's "bitnet" has SiLU where the definition squares ReLU. */
    {.name = "bitnet-b1.58",
     .hf = "bitnet",
     .norm = RMS,
     HALVES,
     .act = ACT_RELU2,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"rope_theta\": 5e5, \"max_position_embeddings\": 2048}"},
    {.name = "bitnet", .hf = "", LLAMA_LIKE, HALVES},
    {.name = "phimoe",
     .hf = "phimoe",
     .norm = LAYER,
     HALVES,
     .act = ACT_SILU,
     .expert_is_ffn = true,
     .setup = phimoe_setup,
     .build = llama_build,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"num_key_value_heads\": 8, \"num_local_experts\": 16, "
                 "\"num_experts_per_tok\": 2, \"max_position_embeddings\": 131072}"},
    {.name = "gpt-oss",
     .hf = "gpt_oss",
     .expert_is_ffn = true,
     .norm = RMS,
     HALVES,
     .act = ACT_SWIGLU_OAI,
     .window_pattern = 2,
     .gating = GATING_SOFTMAX_TOPK,
     .ffn_norm = "post_attention_norm",
     .build = llama_build,
     .defaults =
         "{\"num_experts_per_tok\": 4, \"rms_norm_eps\": 1e-5, \"head_dim\": 64, \"sliding_window\": 128, "
         "\"num_key_value_heads\": 8, \"rope_theta\": 150000.0, \"max_position_embeddings\": 131072}"},
    {.name = "bert",
     .hf = "bert|roberta|xlm-roberta|camembert",
     .hf_kv_heads = "",
     .plain_heads = true,
     .norm = LAYER,
     .act = ACT_GELU,
     .encoder = true,
     .setup = bert_setup,
     .build = bert_build,
     .variant = {"position_embedding_type", "rotary", "jina-bert-v3"},
     .defaults = "{\"layer_norm_eps\": 1e-12, \"type_vocab_size\": 2, \"max_position_embeddings\": 512}"},
    {.name = "distilbert",
     .written = "bert",
     .hf = "distilbert",
     .hf_kv_heads = "",
     .plain_heads = true,
     .norm = LAYER,
     .act = ACT_GELU,
     .encoder = true,
     .setup = bert_setup,
     .build = bert_build,
     .defaults = "{\"layer_norm_eps\": 1e-12, \"vocab_size\": 30522, \"max_position_embeddings\": 512, "
                 "\"dim\": 768, \"n_layers\": 6, \"n_heads\": 12, \"hidden_dim\": 3072}"},
    {.name = "mpnet",
     .hf = "mpnet",
     .hf_kv_heads = "",
     .plain_heads = true,
     .norm = LAYER,
     .act = ACT_GELU,
     .encoder = true,
     .setup = mpnet_setup,
     .build = bert_build,
     .defaults = "{\"layer_norm_eps\": 1e-12, \"relative_attention_num_buckets\": 32, "
                 "\"max_position_embeddings\": 512}"},
    {.name = "modern-bert",
     .hf = "modernbert",
     .hf_kv_heads = "",
     .plain_heads = true,
     .norm = LAYER,
     HALVES,
     .act = ACT_GELU,
     .window_pattern = 3,
     .full_first = true,
     .encoder = true,
     .build = modernbert_build,
     .defaults = "{\"norm_eps\": 1e-5, \"vocab_size\": 50368, \"hidden_size\": 768, "
                 "\"intermediate_size\": 1152, \"num_hidden_layers\": 22, \"num_attention_heads\": 12, "
                 "\"max_position_embeddings\": 8192, \"local_attention\": 128, "
                 "\"global_rope_theta\": 160000.0, \"local_rope_theta\": 10000.0}"},
    {.name = "eurobert",
     .hf = "eurobert",
     LLAMA_LIKE,
     HALVES,
     .encoder = true,
     .defaults = "{\"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 8192}"},
    {.name = "jina-bert-v3",
     .hf = "jina_embeddings_v3",
     .hf_kv_heads = "",
     .norm = LAYER,
     HALVES,
     .act = ACT_GELU,
     .encoder = true,
     .setup = bert_setup,
     .build = bert_build,
     .defaults = "{\"layer_norm_eps\": 1e-5, \"type_vocab_size\": 1, \"rope_theta\": 20000.0, "
                 "\"max_position_embeddings\": 8194}"},
    {.name = "nomic-bert",
     .hf = "nomic_bert",
     .hf_kv_heads = "",
     .norm = LAYER,
     HALVES,
     .partial_rope = true,
     .act = ACT_SILU,
     .encoder = true,
     .setup = bert_setup,
     .build = bert_build,
     .defaults = "{\"layer_norm_eps\": 1e-12, \"type_vocab_size\": 2, \"max_position_embeddings\": 2048}"},
};

/* All rows: those above, and those of the other files. */
static const struct arch *row(size_t i)
{
    const struct {
        const struct arch *rows;
        size_t count;
    } tables[] = {{table, sizeof table / sizeof *table},
                  {arch_latents, arch_latents_count},
                  {arch_hybrids, arch_hybrids_count},
                  {arch_older, arch_older_count}};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; i -= tables[t].count, t++)
        if (i < tables[t].count)
            return &tables[t].rows[i];
    return NULL;
}

/* Is `word` one of "a|b|c"? */
static bool one_of(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; at && *at; at += *at == '|') {
        size_t len = strcspn(at, "|");
        if (len == n && !strncmp(at, word, n))
            return true;
        at += len;
    }
    return false;
}

const struct arch *arch_by_gguf(const char *name)
{
    for (size_t i = 0; row(i); i++)
        if (!strcmp(row(i)->name, name) || one_of(row(i)->gguf, name))
            return row(i);
    return NULL;
}

/* "Qwen2MoeForCausalLM" is of the model type qwen2_moe. */
static bool class_is(const char *class_name, const char *type, size_t n)
{
    const char *c = class_name;
    for (size_t i = 0; i < n; i++) {
        if (type[i] == '_' || type[i] == '-')
            continue;
        if (tolower((unsigned char)*c++) != tolower((unsigned char)type[i]))
            return false;
    }
    return !strncmp(c, "For", 3) || !strcmp(c, "Model") || !strcmp(c, "LMHeadModel");
}

const struct arch *arch_by_config(const char *model_type, const char *class_name)
{
    for (size_t i = 0; model_type && row(i); i++)
        if (one_of(row(i)->hf, model_type))
            return row(i);
    for (size_t i = 0; class_name && !model_type && row(i); i++)
        for (const char *at = row(i)->hf; at && *at; at += *at == '|') {
            size_t len = strcspn(at, "|");
            if (class_is(class_name, at, len))
                return row(i);
            at += len;
        }
    return NULL;
}

const struct arch *arch_variant(const struct arch *a, const json_t *config)
{
    const json_t *said = a->variant.member ? json_object_get(config, a->variant.member) : NULL;
    const char *text = json_is_true(said) ? "true" : json_is_false(said) ? "false" : json_string_value(said);
    return text && !strcmp(text, a->variant.value) ? arch_by_gguf(a->variant.name) : a;
}

/* The known name that is spelled most like this one, or begins most like it; "" = none. */
static void find_nearest(const char *name, enum store_kind kind, char best[64])
{
    char one[64], near[64] = "", start[64] = "";
    struct nearest n = {.word = name};
    size_t longest = 3; /* fewer letters say nothing */
    for (size_t i = 0; row(i); i++)
        for (const char *at = kind == STORE_GGUF ? row(i)->name : row(i)->hf; at && *at; at += *at == '|') {
            size_t len = strcspn(at, "|"), same = 0;
            snprintf(one, sizeof one, "%.*s", (int)len, at);
            nearest_offer(&n, one);
            if (n.best == one)
                n.best = memcpy(near, one, sizeof near);
            while (one[same] && one[same] == name[same])
                same++;
            if (same > longest) {
                longest = same;
                memcpy(start, one, sizeof start);
            }
            at += len;
        }
    memcpy(best, n.best ? near : start, 64);
}

int arch_unknown(const char *name, enum store_kind kind, struct err *e)
{
    char best[64];
    size_t known = 0;
    find_nearest(name, kind, best);
    while (row(known))
        known++;
    if (best[0])
        return err_set(e, ERR_DATA,
                       "the architecture \"%s\" is not known; the nearest of the %zu that are is %s",
                       log_safe(name), known, best);
    return err_set(e, ERR_DATA,
                   "the architecture \"%s\" is not known, nor one with a similar name (%zu are known)",
                   log_safe(name), known);
}
