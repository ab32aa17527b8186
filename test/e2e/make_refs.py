#!/usr/bin/env python3
"""Tiny models with random weights, one folder a case, with reference results from transformers.

    make_refs.py OUT            every case, for a thorough run of test_arch.py --refs OUT
    make_refs.py OUT --small    the cases that the repository keeps under test/data/arch
    make_refs.py OUT NAME...    these cases

A folder holds config.json, model.safetensors and ref.json: {"cases": [{"tokens", "last", "argmax", "greedy"}]},
computed in float32 with eager attention. An encoder's "last" is the hidden state of the last token.
"""
import json
import os
import sys
import traceback

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import refs_hybrid

VOCAB = 96
D = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
         num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
         tie_word_embeddings=False)


def rope(theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.1, 1.3, 2.0], long_factor=[1.2, 2.0, 4.0, 9.0])
MLA = dict(num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8,
           v_head_dim=10)
MOE = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16)
ROUTED = dict(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1)
GEMMA4 = dict(head_dim=8, global_head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"],
              final_logit_softcapping=30.0, tie_word_embeddings=True, rope_parameters={
                  "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
NO_HEADS = {k: v for k, v in D.items() if k != "num_key_value_heads"}

# name: (model type, configuration, kept in the repository)
CASES = {
    "llama": ("llama", {**D, **rope()}, 1),
    "llama-bias": ("llama", {**D, **rope(), "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, 0),
    "llama-headdim": ("llama", {**D, **rope(), "head_dim": 12, "num_key_value_heads": 1}, 0),
    "llama-odd": ("llama", {**D, **rope(), "head_dim": 6, "hidden_size": 36, "num_attention_heads": 6,
                            "num_key_value_heads": 3, "intermediate_size": 52, "vocab_size": 97}, 0),
    "llama-linear": ("llama", {**D, **rope(rope_type="linear", factor=4.0)}, 0),
    "llama-dynamic": ("llama", {**D, **rope(rope_type="dynamic", factor=2.0), "max_position_embeddings": 32}, 1),
    "llama-yarn": ("llama", {**D, **rope(**YARN)}, 1),
    "llama-yarn-more": ("llama", {**D, **rope(**YARN, beta_fast=16.0, beta_slow=2.0, attention_factor=1.3)}, 0),
    "llama-yarn-mscale": ("llama", {**D, **rope(**YARN, mscale=0.7, mscale_all_dim=0.4, truncate=False)}, 0),
    "llama-llama3": ("llama", {**D, **rope(500000.0, **LLAMA3)}, 1),
    "llama-longrope": ("llama", {**D, **rope(**LONG, original_max_position_embeddings=32)}, 0),
    "mistral": ("mistral", {**D, **rope(), "sliding_window": 8}, 1),
    "mistral-full": ("mistral", {**D, **rope(1e6), "sliding_window": None, "head_dim": 12}, 0),
    "mixtral": ("mixtral", {**D, **rope(1e6), "num_local_experts": 4, "num_experts_per_tok": 2,
                            "intermediate_size": 24}, 1),
    "mixtral-window": ("mixtral", {**D, **rope(1e6), "num_local_experts": 3, "num_experts_per_tok": 1,
                                   "intermediate_size": 24, "sliding_window": 6}, 0),
    "qwen2": ("qwen2", {**D, **rope(1e6)}, 1),
    "qwen2-window": ("qwen2", {**D, **rope(1e6), "use_sliding_window": True, "sliding_window": 8,
                               "max_window_layers": 1, "num_hidden_layers": 3, "tie_word_embeddings": True}, 0),
    "qwen2-yarn": ("qwen2", {**D, **rope(1e6, **YARN)}, 0),
    "qwen2-moe": ("qwen2_moe", {**D, **rope(1e6), **MOE, "shared_expert_intermediate_size": 24,
                                "norm_topk_prob": False}, 1),
    "qwen2-moe-mixed": ("qwen2_moe", {**D, **rope(1e6), **MOE, "shared_expert_intermediate_size": 24,
                                      "norm_topk_prob": True, "decoder_sparse_step": 2, "num_hidden_layers": 4,
                                      "mlp_only_layers": [3]}, 0),
    "qwen3": ("qwen3", {**D, **rope(1e6), "head_dim": 12}, 1),
    "qwen3-bias": ("qwen3", {**D, **rope(1e6), "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}, 0),
    "qwen3-moe": ("qwen3_moe", {**D, **rope(1e6), **MOE, "head_dim": 12, "norm_topk_prob": True}, 1),
    "qwen3-moe-mixed": ("qwen3_moe", {**D, **rope(1e6), **MOE, "head_dim": 12, "norm_topk_prob": False,
                                      "mlp_only_layers": [0], "num_experts_per_tok": 5}, 0),
    "gemma": ("gemma", {**D, **rope(), "head_dim": 12, "tie_word_embeddings": True}, 1),
    "gemma2": ("gemma2", {**D, **rope(), "head_dim": 12, "sliding_window": 8, "query_pre_attn_scalar": 20,
                          "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
                          "tie_word_embeddings": True}, 1),
    "gemma2-even": ("gemma2", {**D, **rope(), "head_dim": 12, "sliding_window": 8, "num_hidden_layers": 3,
                               "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
                               "query_pre_attn_scalar": 12, "tie_word_embeddings": True}, 0),
    "gemma2-plain": ("gemma2", {**D, **rope(), "head_dim": 12, "sliding_window": 8, "num_hidden_layers": 3,
                                "attn_logit_softcapping": None, "final_logit_softcapping": None,
                                "query_pre_attn_scalar": 12,
                                "tie_word_embeddings": True}, 1),
    "gemma3": ("gemma3_text", {**D, "head_dim": 12, "tie_word_embeddings": True, "sliding_window": 8,
                               "query_pre_attn_scalar": 20, "num_hidden_layers": 3,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                               "rope_parameters": {
                                   "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}}}, 1),
    "gemma3-deep": ("gemma3_text", {**D, "head_dim": 8, "tie_word_embeddings": True, "sliding_window": 8,
                                    "num_hidden_layers": 7, "final_logit_softcapping": 4.0, "query_pre_attn_scalar": 8,
                                    "rope_parameters": {
                                        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, 0),
    "phi2": ("phi", {**D, **rope(partial_rotary_factor=0.5), "num_key_value_heads": 4}, 1),
    "phi2-norm": ("phi", {**D, **rope(partial_rotary_factor=0.25), "qk_layernorm": True,
                          "hidden_size": 64, "hidden_act": "gelu"}, 0),
    "phi3": ("phi3", {**D, **rope(partial_rotary_factor=1.0), "original_max_position_embeddings": 128}, 1),
    "phi3-long": ("phi3", {**D, **rope(**LONG, partial_rotary_factor=1.0, original_max_position_embeddings=32),
                           "sliding_window": 12, "original_max_position_embeddings": 32}, 1),
    "phi3-partial": ("phi3", {**D, **rope(**{**LONG, "short_factor": [1.0, 1.5], "long_factor": [2.0, 8.0]},
                                          partial_rotary_factor=0.5, original_max_position_embeddings=32),
                              "original_max_position_embeddings": 32}, 0),
    "olmo": ("olmo", {**D, **rope(), "clip_qkv": 0.8}, 1),
    "olmo2": ("olmo2", {**D, **rope(500000.0)}, 1),
    "olmo3": ("olmo3", {**D, **rope(500000.0), "sliding_window": 8, "num_hidden_layers": 4}, 0),
    "olmo3-yarn": ("olmo3", {**D, "sliding_window": 8, "num_hidden_layers": 4, "rope_parameters": {
        "full_attention": {"rope_theta": 500000.0, **YARN, "beta_fast": 16.0},
        "sliding_attention": {"rope_theta": 500000.0, "rope_type": "default"}}}, 0),
    "olmoe": ("olmoe", {**D, **rope(), "num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 16}, 1),
    "granite": ("granite", {**D, **rope(), "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                            "residual_multiplier": 0.4, "logits_scaling": 2.5}, 1),
    "llama-partial": ("llama", {**D, **rope(partial_rotary_factor=0.5)}, 0),
    "granite-bias": ("granite", {**D, **rope(), "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                                 "residual_multiplier": 0.4, "logits_scaling": 2.5, "attention_bias": True,
                                 "mlp_bias": True, "tie_word_embeddings": True}, 0),
    "granite-moe": ("granitemoe", {**D, **rope(), "num_local_experts": 6, "num_experts_per_tok": 2,
                                   "intermediate_size": 16, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                                   "residual_multiplier": 0.4, "logits_scaling": 2.5}, 1),
    "granite-moe-shared": ("granitemoeshared", {**D, **rope(), "num_local_experts": 6, "num_experts_per_tok": 2,
                                                "intermediate_size": 16, "shared_intermediate_size": 24,
                                                "attention_multiplier": 0.2}, 0),
    "smollm3": ("smollm3", {**D, **rope(2e6), "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]}, 1),
    "smollm3-deep": ("smollm3", {**D, **rope(2e6), "num_hidden_layers": 5, "tie_word_embeddings": True}, 0),
    "starcoder2": ("starcoder2", {**D, **rope(), "tie_word_embeddings": True}, 1),
    "starcoder2-window": ("starcoder2", {**D, **rope(), "use_bias": False, "sliding_window": 8}, 0),
    "stablelm": ("stablelm", {**D, **rope(partial_rotary_factor=0.25), "use_qkv_bias": True}, 1),
    "stablelm-parallel": ("stablelm", {**D, **rope(partial_rotary_factor=0.5), "qk_layernorm": True,
                                       "use_parallel_residual": True}, 1),
    "stablelm-norm": ("stablelm", {**D, **rope(partial_rotary_factor=1.0), "qk_layernorm": True}, 0),
    "gpt2": ("gpt2", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=48,
                          bos_token_id=1, eos_token_id=2), 1),
    "gpt2-gelu": ("gpt2", dict(vocab_size=VOCAB, n_embd=24, n_layer=3, n_head=3, n_positions=128,
                               activation_function="gelu", bos_token_id=1, eos_token_id=2,
                               scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False), 1),
    "neox": ("gpt_neox", {**NO_HEADS, **rope(partial_rotary_factor=0.25)}, 1),
    "neox-serial": ("gpt_neox", {**NO_HEADS, **rope(partial_rotary_factor=0.5), "use_parallel_residual": False,
                                 "hidden_act": "gelu_new"}, 0),
    "neox-nobias": ("gpt_neox", {**NO_HEADS, **rope(partial_rotary_factor=1.0), "attention_bias": False,
                                 "tie_word_embeddings": True}, 0),
    "falcon-7b": ("falcon", {**NO_HEADS, **rope(), "multi_query": True, "parallel_attn": True,
                             "tie_word_embeddings": True}, 1),
    "falcon-40b": ("falcon", {**NO_HEADS, **rope(), "new_decoder_architecture": True, "num_kv_heads": 2,
                              "tie_word_embeddings": True}, 1),
    "falcon-11b": ("falcon", {**NO_HEADS, **rope(), "new_decoder_architecture": True, "num_kv_heads": 2,
                              "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 40}, 0),
    "falcon-serial": ("falcon", {**NO_HEADS, **rope(), "multi_query": False, "parallel_attn": False, "bias": True}, 0),
    "cohere": ("cohere", {**D, **rope(), "logit_scale": 0.25, "tie_word_embeddings": True}, 1),
    "cohere-norm": ("cohere", {**D, **rope(), "logit_scale": 0.25, "use_qk_norm": True, "attention_bias": True,
                               "tie_word_embeddings": True}, 0),
    "cohere2": ("cohere2", {**D, **rope(), "logit_scale": 0.25, "sliding_window": 8, "num_hidden_layers": 3,
                            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                            "tie_word_embeddings": True}, 1),
    "cohere2-deep": ("cohere2", {**D, **rope(), "sliding_window": 8, "num_hidden_layers": 5,
                                 "tie_word_embeddings": True}, 0),
    "deepseek-v2": ("deepseek_v2", {**D, **rope(**YARN, mscale=0.707, mscale_all_dim=0.707), **MLA,
                                    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
                                    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
                                    "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.6}, 1),
    "deepseek-v2-lite": ("deepseek_v2", {**D, **rope(), **MLA, "q_lora_rank": None, "n_routed_experts": 6,
                                         "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
                                         "first_k_dense_replace": 1, "topk_method": "greedy"}, 0),
    "deepseek-v3": ("deepseek_v3", {**D, **rope(**YARN, mscale=1.0, mscale_all_dim=1.0), **MLA,
                                    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
                                    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
                                    "routed_scaling_factor": 2.5, "norm_topk_prob": True}, 1),
    "deepseek-v3-plain": ("deepseek_v3", {**D, **rope(), **MLA, "n_routed_experts": 4, "num_experts_per_tok": 2,
                                          "moe_intermediate_size": 16, "n_shared_experts": 2,
                                          "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
                                          "q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False,
                                          "attention_bias": True}, 0),
    "gpt-oss": ("gpt_oss", {**D, **rope(150000.0, **YARN, truncate=False), "head_dim": 8, "num_local_experts": 4,
                            "num_experts_per_tok": 2, "intermediate_size": 24, "sliding_window": 8}, 1),
    "gpt-oss-deep": ("gpt_oss", {**D, **rope(150000.0), "head_dim": 12, "num_local_experts": 6,
                                 "num_experts_per_tok": 4, "intermediate_size": 24, "sliding_window": 5,
                                 "num_hidden_layers": 3}, 0),
    "hunyuan": ("hunyuan_v1_dense", {**D, **rope(rope_type="dynamic", alpha=50.0, factor=1.0), "head_dim": 12,
                                     "tie_word_embeddings": True}, 1),
    "hunyuan-moe": ("hunyuan_v1_moe", {**D, **rope(), "num_experts": 4, "moe_topk": 2, "intermediate_size": 16,
                                       "head_dim": 8}, 1),
    "seed-oss": ("seed_oss", {**D, **rope(1e7), "head_dim": 16, "attention_out_bias": True}, 1),
    "exaone4": ("exaone4", {**D, **rope(1e6, **LLAMA3), "num_hidden_layers": 4, "sliding_window": 8}, 1),
    "exaone4-full": ("exaone4", {**D, **rope(1e6, **LLAMA3), "sliding_window": None, "tie_word_embeddings": True}, 0),
    "exaone-moe": ("exaone_moe", {**D, **rope(1e6), **MOE, "num_hidden_layers": 4, "sliding_window": 8, "head_dim": 8,
                                  "num_shared_experts": 1, "first_k_dense_replace": 1}, 1),
    "dots1": ("dots1", {**D, **rope(1e7), "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                        "n_shared_experts": 2, "first_k_dense_replace": 1, "head_dim": 12, "n_group": 1,
                        "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True}, 1),
    "minimax-m2": ("minimax_m2", {**D, **rope(5e6, partial_rotary_factor=0.5), "num_local_experts": 6,
                                  "num_experts_per_tok": 2, "intermediate_size": 16, "head_dim": 12}, 1),
    "phimoe": ("phimoe", {**D, **rope(), "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 16,
                          "attention_bias": True, "lm_head_bias": True, "original_max_position_embeddings": 128}, 1),
    "arcee": ("arcee", {**D, **rope(**YARN)}, 1),
    "nemotron": ("nemotron", {**D, **rope(partial_rotary_factor=0.5), "head_dim": 12}, 1),
    "nemotron-bias": ("nemotron", {**D, **rope(partial_rotary_factor=0.5), "head_dim": 8, "attention_bias": True,
                                   "mlp_bias": True}, 0),
    "apertus": ("apertus", {**D, **rope(1.2e7, **LLAMA3)}, 1),
    "flex-olmo": ("flex_olmo", {**D, **rope(5e5), "num_experts": 4, "num_experts_per_tok": 2,
                                "intermediate_size": 16}, 1),
    "granite-swa": ("granite_swa", {**D, **rope(), "num_hidden_layers": 4, "sliding_window": 8,
                                    "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                                    "residual_multiplier": 0.4, "logits_scaling": 2.5,
                                    "layer_rope_theta": [1e4, 1e4, 1e4, 1e6]}, 1),
    "granite-moe-swa": ("granitemoe_swa", {**D, **rope(), "num_hidden_layers": 4, "sliding_window": 8,
                                           "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16,
                                           "shared_intermediate_size": 24, "attention_multiplier": 0.2,
                                           "logits_scaling": 2.5}, 0),
    "bitnet": ("bitnet", {**D, **rope(5e5), "tie_word_embeddings": True}, 1),
    "jetmoe": ("jetmoe", {**D, **rope(), "num_key_value_heads": 2, "kv_channels": 12, "num_local_experts": 4,
                          "num_experts_per_tok": 2, "intermediate_size": 16}, 1),
    "solar-open": ("solar_open", {**D, **rope(1e6), "n_routed_experts": 6, "num_experts_per_tok": 2, "head_dim": 12,
                                  "moe_intermediate_size": 16, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}, 1),
    "afmoe": ("afmoe", {**D, **rope(), **MOE, "num_hidden_layers": 4, "sliding_window": 8, "head_dim": 12,
                        "num_dense_layers": 1, "num_shared_experts": 1, "route_scale": 2.0, "mup_enabled": True,
                        "global_attn_every_n_layers": 4}, 1),
    "jais2": ("jais2", {**D, **rope(5e5), "head_dim": 8}, 1),
    "cwm": ("cwm", {**D, **rope(1e6, **LLAMA3), "num_hidden_layers": 5, "sliding_window": 8, "head_dim": 12}, 1),
    "hy-v3": ("hy_v3", {**D, **rope(1e7), **MOE, "head_dim": 12, "num_shared_experts": 1,
                        "router_scaling_factor": 2.826}, 1),
    "smollm3-nope": ("smollm3", {**D, **rope(2e6), "num_hidden_layers": 4, "no_rope_layer_interval": 4}, 0),
    "gptj": ("gptj", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=48, rotary_dim=4,
                          bos_token_id=1, eos_token_id=2, tie_word_embeddings=False), 1),
    "codegen": ("codegen", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=48,
                                rotary_dim=4, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False), 1),
    "starcoder": ("gpt_bigcode", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, n_inner=128,
                                      bos_token_id=1, eos_token_id=2, multi_query=True), 1),
    "starcoder-heads": ("gpt_bigcode", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128,
                                            n_inner=48, bos_token_id=1, eos_token_id=2, multi_query=False), 0),
    "bloom": ("bloom", dict(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2,
                            pad_token_id=0), 1),
    "mpt": ("mpt", dict(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=128, expansion_ratio=2,
                        bos_token_id=1, eos_token_id=2, attn_config=dict(clip_qkv=0.8)), 1),
    "dbrx": ("dbrx", dict(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=128, bos_token_id=1,
                          eos_token_id=2, attn_config=dict(kv_n_heads=2, clip_qkv=0.8, rope_theta=1e4),
                          ffn_config=dict(ffn_hidden_size=16, moe_num_experts=4, moe_top_k=2)), 1),
    "persimmon": ("persimmon", {**NO_HEADS, **rope(25000.0, partial_rotary_factor=0.5), "qk_layernorm": True}, 1),
    "opt": ("opt", dict(vocab_size=VOCAB, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
                        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                        word_embed_proj_dim=32), 1),
    "gpt-neo": ("gpt_neo", dict(vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, window_size=8,
                                intermediate_size=48, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
                                attention_types=[[["global", "local"], 1]]), 1),
    "nanochat": ("nanochat", {**D, **rope()}, 1),
    "mellum": ("mellum", {**D, **MOE, "head_dim": 12, "num_hidden_layers": 3, "sliding_window": 8,
                          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                          "mlp_layer_types": ["dense", "sparse", "sparse"], "rope_parameters": {
                              "full_attention": {"rope_theta": 500000.0, **YARN},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, 1),
    "youtu": ("youtu", {**D, **rope(), **MLA}, 1),
    "biogpt": ("biogpt", dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                              num_attention_heads=4, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
                              pad_token_id=0), 1),
    "hyperclovax": ("hyperclovax", {**D, **rope(1e6), "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                                    "residual_multiplier": 0.4, "logits_scaling": 0.5}, 1),
    "hyperclovax-plain": ("hyperclovax", {**D, **rope(1e6), "use_post_norm": False, "attention_bias": True}, 0),
    "bert": ("bert", {**NO_HEADS, "type_vocab_size": 2}, 1),
    "roberta": ("roberta", {**NO_HEADS, "type_vocab_size": 1, "max_position_embeddings": 130}, 0),
    "xlm-roberta": ("xlm-roberta", {**NO_HEADS, "type_vocab_size": 1, "pad_token_id": 1,
                                    "max_position_embeddings": 130}, 0),
    "nomic-bert": ("nomic_bert", {**NO_HEADS, **rope(1000.0), "type_vocab_size": 2}, 1),
    "distilbert": ("distilbert", {"vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
                                  "max_position_embeddings": 128}, 0),
    "mpnet": ("mpnet", {**NO_HEADS, "pad_token_id": 1, "max_position_embeddings": 130}, 1),
    "modernbert": ("modernbert", {**NO_HEADS, "num_hidden_layers": 4, "local_attention": 8,
                                  "global_attn_every_n_layers": 3}, 1),
    "modernbert-bias": ("modernbert", {**NO_HEADS, "num_hidden_layers": 3, "local_attention": 7,
                                       "global_attn_every_n_layers": 2, "norm_bias": True, "attention_bias": True,
                                       "mlp_bias": True, "hidden_activation": "silu"}, 0),
    "eurobert": ("eurobert", {**D, **rope(250000.0)}, 0),
    "jina-v3": ("jina_embeddings_v3", {**NO_HEADS, **rope(20000.0), "type_vocab_size": 1}, 1),
    "embeddinggemma": ("gemma3_text", {**D, "head_dim": 8, "query_pre_attn_scalar": 12, "num_hidden_layers": 3,
                                       "sliding_window": 8, "use_bidirectional_attention": True,
                                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, 1),
    "vaultgemma": ("vaultgemma", {**D, **rope(), "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 8,
                                  "layer_types": ["sliding_attention", "full_attention"],
                                  "tie_word_embeddings": True}, 1),
    "glm": ("glm", {**D, **rope(partial_rotary_factor=0.5), "head_dim": 8, "attention_bias": True}, 1),
    "glm4": ("glm4", {**D, **rope(partial_rotary_factor=0.5), "head_dim": 12, "attention_bias": True}, 1),
    "glm4-moe": ("glm4_moe", {**D, **rope(partial_rotary_factor=0.5), **ROUTED, "head_dim": 16, "use_qk_norm": True,
                              "attention_bias": True, "routed_scaling_factor": 1.8}, 1),
    "glm4-moe-plain": ("glm4_moe", {**D, **rope(partial_rotary_factor=0.5), **ROUTED, "head_dim": 8, "n_group": 3,
                                    "topk_group": 2, "norm_topk_prob": False, "num_hidden_layers": 3}, 0),
    "glm4-moe-lite": ("glm4_moe_lite", {**D, **rope(), **MLA, **ROUTED, "routed_scaling_factor": 1.8,
                                        "mlp_layer_types": ["dense", "sparse"]}, 1),
    "glm4-moe-lite-q": ("glm4_moe_lite", {**D, **rope(), **MLA, **ROUTED, "q_lora_rank": None,
                                          "mlp_layer_types": ["sparse", "sparse"]}, 0),
    "ernie4_5": ("ernie4_5", {**D, **rope(500000.0), "head_dim": 12, "tie_word_embeddings": True}, 1),
    "ernie4_5-bias": ("ernie4_5", {**D, **rope(500000.0), "head_dim": 8, "use_bias": True}, 0),
    "ernie4_5-moe": ("ernie4_5_moe", {**D, **rope(500000.0), "moe_num_experts": 6, "moe_k": 2,
                                      "moe_num_shared_experts": 2, "moe_intermediate_size": 16,
                                      "tie_word_embeddings": True}, 1),
    "helium": ("helium", {**D, **rope(100000.0), "head_dim": 8}, 1),
    "ministral3": ("ministral3", {**D, **rope(1e6, **YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1),
                                  "head_dim": 12, "sliding_window": None}, 1),
    "mistral4": ("mistral4", {**D, **rope(**YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.2), **MLA,
                              **ROUTED, "first_k_dense_replace": 0}, 1),
    "minicpm3": ("minicpm3", {**D, **rope(), **MLA, "tie_word_embeddings": True}, 1),
    "minicpm3-scales": ("minicpm3", {**D, **rope(), **MLA, "scale_emb": 3.0, "scale_depth": 2.2, "dim_model_base": 16,
                                     "v_head_dim": None}, 0),
    "mimo-v2-flash": ("mimo_v2_flash", {**D, **ROUTED, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 24,
                                        "v_head_dim": 16, "sliding_window": 9,
                                        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, 1),
    "llama4": ("llama4_text", {**D, **rope(500000.0), "num_hidden_layers": 4, "head_dim": 8, "num_local_experts": 4,
                               "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size": 16,
                               "intermediate_size_mlp": 24, "attention_chunk_size": 8, "floor_scale": 6}, 1),
    "llama4-top2": ("llama4_text", {**D, **rope(500000.0, **LLAMA3), "num_hidden_layers": 2, "head_dim": 12,
                                    "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16,
                                    "no_rope_layers": [0, 1], "use_qk_norm": False, "attention_chunk_size": 5,
                                    "attn_temperature_tuning": False}, 0),
    "gemma4-e": ("gemma4_text", {**D, **GEMMA4, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
                                 "layer_types": ["sliding_attention", "full_attention"] * 2,
                                 "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 64,
                                 "use_double_wide_mlp": True}, 1),
    "gemma4": ("gemma4_text", {**D, **GEMMA4, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
                               "num_global_key_value_heads": 1}, 1),
    "gemma4-moe": ("gemma4_text", {**D, **GEMMA4, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
                                   "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                                   "moe_intermediate_size": 16, "num_global_key_value_heads": 1}, 1),
    "gemma3n": ("gemma3n_text", {**D, "num_hidden_layers": 4, "head_dim": 8, "num_kv_shared_layers": 2,
                                 "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8,
                                 "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 64, "laurel_rank": 4,
                                 "intermediate_size": 24, "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
                                 "tie_word_embeddings": True}, 1),
    "deepseek-v32": ("deepseek_v32", {**D, **rope(**YARN, mscale=1.0, mscale_all_dim=1.0), **MLA, **ROUTED,
                                      "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "index_n_heads": 8,
                                      "index_head_dim": 16, "index_topk": 6}, 1),
    "glm-moe-dsa": ("glm_moe_dsa", {**D, **rope(), **MLA, **ROUTED, "num_hidden_layers": 3, "first_k_dense_replace": 1,
                                    "indexer_types": ["full", "shared", "full"], "index_n_heads": 8,
                                    "index_head_dim": 16, "index_topk": 6}, 1),
    "longcat-flash": ("longcat_flash", {**{k: v for k, v in D.items() if k not in ("num_hidden_layers",
                                                                                     "intermediate_size")},
                                        **rope(1e7), **MLA, "num_layers": 1, "ffn_hidden_size": 24, "moe_topk": 3,
                                        "n_routed_experts": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 16,
                                        "routed_scaling_factor": 3.0, "head_dim": 8}, 1),
    "olmoe-clip": ("olmoe", {**D, **rope(), "num_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 16,
                             "norm_topk_prob": True, "clip_qkv": 0.5, "attention_bias": True}, 1),
    "mistral4-groups": ("mistral4", {**D, **rope(**YARN, mscale=0.7, mscale_all_dim=0.4, llama_4_scaling_beta=0.2), **MLA,
                                     **ROUTED, "n_shared_experts": 2, "n_group": 2, "topk_group": 1,
                                     "norm_topk_prob": False, "routed_scaling_factor": 1.5, "attention_bias": True}, 1),
    "ernie4_5-moe-floor": ("ernie4_5_moe", {**D, **rope(500000.0), "moe_num_experts": 6, "moe_k": 3, "use_bias": True,
                                            "moe_num_shared_experts": 0, "moe_intermediate_size": 16,
                                            "num_hidden_layers": 3, "moe_layer_start_index": 1, "moe_layer_end_index": 1,
                                            "moe_norm_min": 0.9}, 1),
    "mimo-v2-flash-rope": ("mimo_v2_flash", {**D, **ROUTED, "num_hidden_layers": 3, "head_dim": 16, "v_head_dim": 24,
                                             "sliding_window": 9, "attention_value_scale": 1.3, "attention_bias": True,
                                             "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                                             "rope_parameters": {
                                                 "full_attention": {"rope_type": "default", "rope_theta": 5e6,
                                                                    "partial_rotary_factor": 0.5},
                                                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4,
                                                                       "partial_rotary_factor": 1.0}}}, 1),
    "phimoe-mscale": ("phimoe", {**D, **rope(**LONG, original_max_position_embeddings=32, short_mscale=1.3, long_mscale=1.3),
                                 "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16,
                                 "router_jitter_noise": 0.1, "sliding_window": 9}, 1),
    "gemma3n-plain": ("gemma3n_text", {**D, "num_hidden_layers": 3, "head_dim": 8, "num_kv_shared_layers": 0,
                                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                                       "sliding_window": 8, "hidden_size_per_layer_input": 4,
                                       "vocab_size_per_layer_input": 96, "laurel_rank": 4, "altup_num_inputs": 3,
                                       "altup_active_idx": 1, "altup_correct_scale": False,
                                       "intermediate_size": [24, 16, 24], "activation_sparsity_pattern": [0.3, 0.0, 0.7],
                                       "tie_word_embeddings": True}, 1),
    "llama4-plain": ("llama4_text", {**D, **rope(500000.0), "num_hidden_layers": 3, "head_dim": 8, "num_local_experts": 4,
                                     "num_experts_per_tok": 2, "moe_layers": [0, 2], "intermediate_size": 16,
                                     "intermediate_size_mlp": 24, "attention_chunk_size": 16, "use_qk_norm": False,
                                     "attn_temperature_tuning": False, "attention_bias": True,
                                     "no_rope_layers": [1, 0, 1]}, 0),
    "longcat-flash-bias": ("longcat_flash", {**{k: v for k, v in D.items() if k not in ("num_hidden_layers",
                                                                                          "intermediate_size")},
                                             **rope(1e7), **MLA, "num_layers": 2, "ffn_hidden_size": 24, "moe_topk": 3,
                                             "n_routed_experts": 4, "zero_expert_num": 3, "expert_ffn_hidden_size": 16,
                                             "routed_scaling_factor": 3.0, "head_dim": 8, "router_bias": True,
                                             "attention_bias": True}, 0),
    "afmoe-plain": ("afmoe", {**D, **rope(), **MOE, "num_hidden_layers": 5, "sliding_window": 8, "head_dim": 12,
                              "num_dense_layers": 2, "num_shared_experts": 2, "mup_enabled": False,
                              "global_attn_every_n_layers": 2, "attention_bias": True}, 0),
    "gemma3-local": ("gemma3_text", {**D, "head_dim": 8, "tie_word_embeddings": True, "sliding_window": 8,
                                     "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"],
                                     "rope_parameters": {
                                         "full_attention": {"rope_theta": 500000.0, **YARN},
                                         "sliding_attention": {"rope_theta": 500000.0, **LLAMA3}}}, 1),
    "gpt-oss-limits": ("gpt_oss", {**D, **rope(150000.0), "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
                                   "intermediate_size": 24, "sliding_window": 8, "num_hidden_layers": 1,
                                   "swiglu_alpha": 1.0, "swiglu_limit": 0.5}, 1),
    "glm4-moe-lite-factor": ("glm4_moe_lite", {**D, **rope(**YARN, attention_factor=1.3, truncate=False), **MLA, **ROUTED,
                                               "mlp_layer_types": ["dense"], "num_hidden_layers": 1}, 1),
    "exaone4-no-window": ("exaone4", {**D, **rope(1e6, rope_type="dynamic", factor=2.0), "max_position_embeddings": 16,
                                      "sliding_window": 8, "layer_types": ["full_attention"] * 2}, 1),
}
ENCODERS = ("bert", "roberta", "xlm-roberta", "nomic_bert", "distilbert", "mpnet", "modernbert", "eurobert",
            "jina_embeddings_v3")


CASES.update(refs_hybrid.CASES)


def fill(model, generator):
    """Random weights, rounded to bfloat16, that no part of the model can hide."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "conv" in name and p.dim() == 3:
            p.copy_(0.5 * noise)
        elif p.dim() == 1:
            p.copy_((1 if any(x in name.lower() for x in ("norm", "ln", "scal")) else 0) + 0.2 * noise)
        else:
            p.copy_(0.18 * noise)
        p.copy_(p.bfloat16().float())
    for name, p in model.named_buffers():
        if "correction_bias" in name or "expert_bias" in name or "balancing_biases" in name:
            p.copy_((0.1 * torch.randn(p.shape, generator=generator)).bfloat16().float())


def results(model, tokens, encoder, greedy):
    with torch.no_grad():
        ids = torch.tensor([tokens])
        if encoder:
            rows = model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].float()
            return {"tokens": tokens, "last": [round(float(x), 5) for x in rows[-1]],
                    "argmax": rows.argmax(-1).tolist(), "greedy": []}
        rows = model(ids, use_cache=False).logits[0].float()
        out, cur = [], tokens[:]
        for _ in range(greedy):
            best = int(model(torch.tensor([cur]), use_cache=False).logits[0, -1].argmax())
            out.append(best)
            cur.append(best)
        return {"tokens": tokens, "last": [round(float(x), 5) for x in rows[-1]], "argmax": rows.argmax(-1).tolist(),
                "greedy": out}


def make(out, name, kind, config, seed, small):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    if small:
        experts = "num_local_experts" in config or "num_experts" in config
        shrink = {"vocab_size": 64, "moe_intermediate_size": 8, "num_experts": 4, "num_local_experts": 4,
                  "n_positions": 64, "n_inner": 32,
                  "intermediate_size": config.get("intermediate_size", 0)}
        if isinstance(shrink["intermediate_size"], int):
            shrink["intermediate_size"] = min(shrink["intermediate_size"], 12 if experts else 24)
        if "n_positions" in config or kind == "bert":
            shrink["max_position_embeddings"] = 64
        config = {k: shrink.get(k, v) if v else v for k, v in config.items()}
        if kind == "falcon":
            config["ffn_hidden_size"] = 40
    config = AutoConfig.for_model(kind, **config)
    config._attn_implementation = "eager"
    encoder = kind in ENCODERS or getattr(config, "use_bidirectional_attention", False)
    if kind == "mistral4":  # has no entry among the automatic classes
        from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM
        model = Mistral4ForCausalLM(config).float().eval()
    else:
        model = (AutoModel if encoder else AutoModelForCausalLM).from_config(config).float().eval()
    with torch.no_grad():
        fill(model, g)
    vocab = config.vocab_size
    lengths = (1, 20) if small else (1, 9, 31, 64)
    if "dynamic" in name or "long" in name:
        lengths = (20, 48)  # on both sides of the original context
    cases = [results(model, torch.randint(3, vocab, (n,), generator=g).tolist(), encoder, 4) for n in lengths]
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    if kind == "rwkv":  # running it scales weights in place
        model.train()
        model.rwkv._rescale_layers()
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
    with open(os.path.join(folder, "ref.json"), "w") as f:
        json.dump({"transformers": transformers.__version__, "cases": cases}, f)
    for extra in os.listdir(folder):
        if extra not in ("config.json", "model.safetensors", "ref.json"):
            os.remove(os.path.join(folder, extra))


def main():
    out, names = sys.argv[1], [a for a in sys.argv[2:] if not a.startswith("-")]
    small = "--small" in sys.argv
    for i, (name, (kind, config, kept)) in enumerate(CASES.items()):
        if (names and name not in names) or (small and not kept):
            continue
        try:
            make(out, name, kind, config, 1000 + i, small)
            print("made", name)
        except Exception:
            print("failed", name, traceback.format_exc().strip().splitlines()[-1])


if __name__ == "__main__":
    main()
