/* The table of names, and the search with it. */
#include "model/lookup.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* hf: alternatives after the layer's prefix (or the root, for tensors of no layer); "%u" is the expert, "#" which of
 * the two layers that the file has as one (longcat).
 * The first that is in the file counts, so the narrower name stands first. */
static const struct lookup_row table[] = {
    {"token_embd", "embed_tokens|wte|embed_in|word_embeddings|embeddings.word_embeddings|"
                   "embeddings.tok_embeddings|embeddings|tok_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"position_embd", "wpe|embeddings.position_embeddings|embed_positions"},
    {"token_embd_norm", "embeddings.LayerNorm|emb_ln|embeddings.layer_norm|embeddings.norm|"
                        "word_embeddings_layernorm|embedding_norm|"
                        "layers.0.pre_norm|blocks.0.pre_ln"},
    {"output_norm", "norm|ln_f|final_layer_norm|final_layernorm|final_norm|norm_f|"
                    "layer_norm|ln_out|out_norm"},
    {"output", "lm_head|embed_out|output_projection|output|head"},
    {"attn_norm",
     "input_layernorm|attention_layernorm|ln_1|ln_mlp|attn_norm|norm|operator_norm|"
     "attention_layer_norm|input_layernorm.#|self_attn_layer_norm|norm_1|"
     "norm_attn_norm.norm_1|attention_norm|mamba_decoder.input_layernorm|temporal_pre_norm|pre_mixer_norm|"
     "ln1|norm_mlstm"},
    {"attn_norm_2", "ln_attn|self_attn.norm|"
                    "ffn_norm|ln2"},
    {"attn_q",
     "self_attn.q_proj|attention.self.query|attention.q_lin|attention.attn.q|"
     "mixer.q_proj|linear_attn.q_proj|attention.q_proj|attn.q_proj|"
     "attn.attention.q_proj|shared_transformer.self_attn.q_proj|"
     "shared_transf.self_attn.q_proj|temporal_block.q_proj|mlstm_layer.q|self_attn.qkv_proj.q_proj"},
    {"attn_k",
     "self_attn.k_proj|attention.self.key|attention.k_lin|attention.attn.k|"
     "mixer.k_proj|linear_attn.k_proj|attention.k_proj|attn.k_proj|"
     "attn.attention.k_proj|shared_transformer.self_attn.k_proj|"
     "shared_transf.self_attn.k_proj|temporal_block.k_proj|mlstm_layer.k|self_attn.qkv_proj.k_proj"},
    {"attn_v", "self_attn.v_proj|attention.self.value|attention.v_lin|attention.attn.v|"
               "mixer.v_proj|linear_attn.v_proj|attention.v_proj|attn.v_proj|"
               "attn.attention.v_proj|shared_transformer.self_attn.v_proj|"
               "shared_transf.self_attn.v_proj|temporal_block.v_proj|mlstm_layer.v|"
               "self_attn.qkv_proj.v_proj_current"},
    {"attn_qkv", "self_attn.qkv_proj|attn.c_attn|attention.query_key_value|"
                 "self_attention.query_key_value|attn.Wqkv|mixer.Wqkv|linear_attn.in_proj_qkv|"
                 "self_attn.query_key_value|norm_attn_norm.attn.Wqkv|attention.wqkv|"
                 "attn.qkv_proj|mixer.qkv_proj|mlstm_layer.qkv_opreact"},
    {"attn_output", "self_attn.o_proj|attn.c_proj|attention.dense|self_attention.dense|"
                    "self_attn.dense|attention.output.dense|attn.out_proj|mixer.out_proj|"
                    "attention.out_lin|attention.attn.o|attn.Wo|self_attn.out_proj|mixer.o_proj|"
                    "attention.o_proj|self_attn.#.o_proj|attn.attention.out_proj|"
                    "norm_attn_norm.attn.out_proj|attention.wo|shared_transformer.self_attn.o_proj|"
                    "shared_transf.self_attn.o_proj|temporal_block.o_proj"},
    {"attn_q_norm", "self_attn.q_norm|self_attn.q_layernorm|self_attn.query_layernorm|"
                    "self_attn.q_layernorm.norms.%u|attention.query_layernorm|mixer.q_weight"},
    {"attn_k_norm", "self_attn.k_norm|self_attn.k_layernorm|self_attn.key_layernorm|"
                    "self_attn.k_layernorm.norms.%u|attention.key_layernorm|mixer.k_weight"},
    {"attn_sinks", "self_attn.sinks|self_attn.attention_sink_bias"},
    {"attn_rel_b", "encoder.relative_attention_bias"},
    {"post_attention_norm", "post_self_attn_layernorm|post_norm1|post_attention_layernorm|post_mixer_norm"},
    {"attn_output_norm", "attention.output.LayerNorm|norm1|post_attention_layernorm|sa_layer_norm|"
                         "attention.LayerNorm|norm_attn_norm.norm_2"},
    {"layer_output_norm", "output.LayerNorm|norm2|post_mlp_layernorm|output_layer_norm"},
    {"ffn_norm", "pre_feedforward_layernorm|pre_mlp_layernorm|feedforward_layernorm|"
                 "post_attention_layernorm|ln_2|mlp_norm|pre_ff_layernorm|ffn_norm|"
                 "feedforward_layer_norm|post_attention_layernorm.#|final_layer_norm|norm_2|shared_"
                 "transformer.pre_ff_layernorm|shared_transf.pre_ff_layernorm|channel_pre_norm|pre_mlp_norm|"
                 "norm_ffn"},
    {"post_ffw_norm", "post_feedforward_layernorm|post_mlp_layernorm|post_norm2|post_mlp_norm"},
    {"ffn_gate", "mlp.gate_proj|mlp.fc12|feed_forward.gate_proj|feed_forward.w1|mlps.#.gate_proj|"
                 "block_sparse_moe.gate_proj|mlp_block.gate_proj|shared_transf.feed_forward.gate_proj|"
                 "ffn.proj_up_gate"},
    {"ffn_up", "mlp.up_proj|mlp.c_fc|mlp.dense_h_to_4h|mlp.fc11|mlp.fc1|intermediate.dense|"
               "ffn.lin1|feed_forward.up_proj|feed_forward.w3|mixer.up_proj|mlps.#.up_proj|"
               "block_sparse_moe.up_proj|mlp.fc_in|fc1|ffn.up_proj|mlp_block.up_proj|"
               "shared_transf.feed_forward.up_proj|ffn.proj_up"},
    {"ffn_down",
     "mlp.down_proj|mlp.c_proj|mlp.dense_4h_to_h|mlp.fc2|output.dense|ffn.lin2|mlp.Wo|"
     "feed_forward.down_proj|feed_forward.w2|mixer.down_proj|shared_mlp.output_linear|"
     "mlps.#.down_proj|block_sparse_moe.down_proj|mlp.fc_out|fc2|ffn.down_proj|shared_"
     "transformer.feed_forward.down_proj|shared_transf.feed_forward.down_proj|mlp_block.down_proj|"
     "ffn.proj_down"},
    {"ffn_gate_up", "mlp.gate_up_proj|mlp.Wi|shared_mlp.input_linear|ffn.proj_up_gate_z"},
    {"ffn_gate_inp",
     "mlp.router.layer|mlp.gate|block_sparse_moe.gate|mlp.router|block_sparse_moe.router.layer|"
     "block_sparse_moe.router|mlp.gate.wg|mlp.router.gate|feed_forward.router|"
     "feed_forward.gate|mixer.gate|router.proj|mlp.router.classifier|ffn.router.layer|"
     "mlp.gate.router_mlp.out_proj"},
    {"exp_probs_b", "mlp.gate.e_score_correction|mlp.e_score_correction|mlp.expert|"
                    "block_sparse_moe.e_score_correction|block_sparse_moe.gate.e_score_correction|"
                    "mixer.gate.e_score_correction|feed_forward.expert|mlp.gate.expert|"
                    "mlp.moe_statics.e_score_correction|mlp.gate.moe_statics.e_score_correction|"
                    "mlp.router.e_score_correction"},
    {"ffn_gate_exps", "mlp.experts.%u.gate_proj|block_sparse_moe.experts.%u.w1|"
                      "feed_forward.experts.%u.gate_proj|feed_forward.experts.%u.w1|ffn.experts.mlp.w1"},
    {"ffn_up_exps", "mlp.experts.%u.up_proj|block_sparse_moe.experts.%u.w3|"
                    "feed_forward.experts.%u.up_proj|feed_forward.experts.%u.w3|"
                    "mixer.experts.%u.up_proj|mixer.experts.up_proj|ffn.experts.mlp.v1"},
    {"ffn_down_exps",
     "mlp.output_linear|mlp.experts.%u.down_proj|block_sparse_moe.experts.%u.w2|mlp.experts.down_proj|"
     "block_sparse_moe.output_linear|block_sparse_moe.experts.down_proj|"
     "feed_forward.experts.%u.down_proj|feed_forward.experts.%u.w2|"
     "mixer.experts.%u.down_proj|feed_forward.experts.down_proj|"
     "mixer.experts.down_proj|experts.down_proj|ffn.experts.mlp.w2"},
    {"ffn_gate_up_exps", "mlp.input_linear|mlp.experts.gate_up_proj|block_sparse_moe.input_linear|"
                         "block_sparse_moe.experts.gate_up_proj|feed_forward.experts.gate_up_proj|"
                         "experts.gate_up_proj"},
    {"ffn_latent_down", "mixer.fc1_latent_proj"},
    {"ffn_latent_up", "mixer.fc2_latent_proj"},
    {"ffn_exps", "mlp.experts|block_sparse_moe.experts"},
    {"ffn_exps_inner", "mlp.experts.base_layer|block_sparse_moe.experts.base_layer"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj|mlp.shared_experts.gate_proj|"
                       "mlp.shared_mlp.gate_proj|block_sparse_moe.shared_experts.gate_proj|"
                       "feed_forward.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj|mlp.shared_experts.up_proj|mlp.shared_mlp.up_proj|"
                     "block_sparse_moe.shared_experts.up_proj|mixer.shared_experts.up_proj|"
                     "feed_forward.shared_expert.up_proj"},
    {"ffn_down_shexp",
     "mlp.shared_expert.down_proj|mlp.shared_experts.down_proj|"
     "mlp.shared_mlp.down_proj|shared_mlp.output_linear|block_sparse_moe.shared_experts.down_proj|"
     "mixer.shared_experts.down_proj|feed_forward.shared_expert.down_proj"},
    {"ffn_gate_up_shexp", "shared_mlp.input_linear"},
    {"attn_q_a", "self_attn.q_a_proj|self_attn.#.q_a_proj"},
    {"attn_q_b", "self_attn.q_b_proj|self_attn.#.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa|attention.kv_a_proj_with_mqa|"
                      "self_attn.#.kv_a_proj_with_mqa"},
    {"attn_kv_b", "self_attn.kv_b_proj|attention.kv_b_proj|self_attn.#.kv_b_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm|self_attn.#.q_a_layernorm"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm|attention.kv_a_layernorm|self_attn.#.kv_a_layernorm"},
    {"attn_q_exps", "self_attention.experts.input_linear"},
    {"attn_output_exps", "self_attention.experts.output_linear|self_attention.experts"},
    {"attn_gate_inp", "self_attention.experts.router.layer"},
    {"attn_kv", "self_attention.kv_proj"},
    {"ffn_exps_bias", "mlp"},
    {"attn_sub_norm", "self_attn.attn_sub_norm"},
    {"ffn_sub_norm", "mlp.ffn_sub_norm"},
    {"xielu_alpha_p", "mlp.act_fn.alpha_p"},
    {"xielu_alpha_n", "mlp.act_fn.alpha_n"},
    {"xielu_beta", "mlp.act_fn.beta"},
    {"xielu_eps", "mlp.act_fn.eps"},
    {"ssm_in", "mixer.in_proj|mamba.in_proj|linear_attn.in_proj_qkvz|mamba_decoder.mamba.in_proj"},
    {"ssm_conv1d", "mixer.conv1d|mamba.conv1d|linear_attn.conv1d|mamba_decoder.mamba.conv1d|"
                   "temporal_block.conv_1d|self_attn.conv1d"},
    {"ssm_conv1d_q", "self_attn.q_conv1d|linear_attn.q_conv1d|attention.q_conv1d"},
    {"ssm_conv1d_k", "self_attn.k_conv1d|linear_attn.k_conv1d|attention.k_conv1d"},
    {"ssm_conv1d_v", "self_attn.v_conv1d|linear_attn.v_conv1d|attention.v_conv1d"},
    {"ssm_x", "mixer.x_proj|mamba.x_proj|mixer.bcdt_proj|mamba.x_proj_weight|"
              "mamba_decoder.mamba.x_proj_weight"},
    {"ssm_dt", "mixer.dt_proj|mamba.dt_proj|mixer.dt|mamba.dt|linear_attn.dt|self_attn.dt|attention.dt|"
               "self_attn.forget_gate.dt|"
               "mamba_decoder.mamba.dt|mamba.dt_proj_weight|mamba_decoder.mamba.dt_proj|"
               "mamba_decoder.mamba.dt_proj_weight"},
    {"ssm_dt_norm", "mamba.dt_layernorm|mixer.dt_norm_weight"},
    {"ssm_b_norm", "mamba.b_layernorm|mixer.B_norm_weight"},
    {"ssm_c_norm", "mamba.c_layernorm|mixer.C_norm_weight"},
    {"ssm_a",
     "mixer.A_log|mamba.A_log|linear_attn.A_log|self_attn.A_log|attention.A_log|mamba_decoder.mamba.A_log|"
     "self_attn.forget_gate.A_log"},
    {"ssm_d", "mixer.D|mamba.D|mamba_decoder.mamba.D"},
    {"ssm_norm", "mixer.norm|mamba.norm|linear_attn.norm|linear_attn.o_norm|self_attn.o_norm|"
                 "attention.o_norm|mamba_decoder.mamba.norm|mlstm_layer.multihead_norm"},
    {"ssm_out",
     "mixer.out_proj|mamba.out_proj|linear_attn.out_proj|linear_attn.o_proj|mamba_decoder.mamba.out_proj|"
     "mlstm_layer.out_proj"},
    {"lru_in", "temporal_block.linear_x"},
    {"lru_gate", "temporal_block.linear_y"},
    {"lru_out", "temporal_block.linear_out"},
    {"lru_a", "temporal_block.rg_lru.recurrent_param"},
    {"lru_input_gate", "temporal_block.rg_lru.input_gate_weight|temporal_block.rg_lru.input_gate"},
    {"lru_recurrent_gate",
     "temporal_block.rg_lru.recurrent_gate_weight|temporal_block.rg_lru.recurrent_gate"},
    {"attn_v_next", "self_attn.qkv_proj.v_proj_delayed"},
    {"attn_k_scale", "self_attn.qk_norm.temp"},
    {"cca_conv", "self_attn.qkv_proj.conv_qk_depthwise"},
    {"cca_conv_heads", "self_attn.qkv_proj.conv_qk_grouped"},
    {"token_embd_scale", "input_hidden_states_scale|input_hidden_states"},
    {"attn_branch_scale", "post_attention_residual_scale.hidden_states_scale|"
                          "post_attention_residual_scale.hidden_states"},
    {"attn_stream_scale", "post_attention_residual_scale.residual_scale|"
                          "post_attention_residual_scale.residual"},
    {"ffn_branch_scale", "post_mlp_residual_scale.hidden_states_scale|post_mlp_residual_scale.hidden_states"},
    {"ffn_stream_scale", "post_mlp_residual_scale.residual_scale|post_mlp_residual_scale.residual"},
    {"router_down", "mlp.gate.down_proj"},
    {"router_scale", "mlp.gate.router_states_scale"},
    {"router_norm", "mlp.gate.router_mlp.norm"},
    {"router_balance", "mlp.gate.balancing_biases"},
    {"router_1", "mlp.gate.router_mlp.fc1"},
    {"router_2", "mlp.gate.router_mlp.fc2"},
    {"mlstm_gates", "mlstm_layer.ifgate_preact"},
    {"mlstm_input_gate", "mlstm_layer.igate_preact"},
    {"mlstm_forget_gate", "mlstm_layer.fgate_preact"},
    {"ssm_ba", "linear_attn.in_proj_ba"},
    {"ssm_beta", "linear_attn.in_proj_b|linear_attn.b_proj|self_attn.b_proj|attention.b_proj"},
    {"ssm_alpha", "linear_attn.in_proj_a|linear_attn.a_proj"},
    {"ssm_f_a", "self_attn.f_a_proj|self_attn.f_proj|attention.f_a_proj|attention.f_proj|"
                "self_attn.forget_gate.f_a_proj|self_attn.forget_gate.f_proj"},
    {"ssm_f_b", "self_attn.f_b_proj|attention.f_b_proj|self_attn.forget_gate.f_b_proj"},
    {"ssm_g_a", "self_attn.g_a_proj|self_attn.g_proj|attention.g_a_proj|attention.g_proj"},
    {"ssm_g_b", "self_attn.g_b_proj|attention.g_b_proj"},
    {"shared_attn_norm", "shared_transformer.input_layernorm|shared_transf.input_layernorm"},
    {"shared_ffn_gate_up", "shared_transformer.feed_forward.gate_up_proj"},
    {"shared_output", "linear"},
    {"attn_q_low_a", "shared_transformer.self_attn.linear_q_adapter_list.%u.0"},
    {"attn_q_low_b", "shared_transformer.self_attn.linear_q_adapter_list.%u.1"},
    {"attn_k_low_a", "shared_transformer.self_attn.linear_k_adapter_list.%u.0"},
    {"attn_k_low_b", "shared_transformer.self_attn.linear_k_adapter_list.%u.1"},
    {"attn_v_low_a", "shared_transformer.self_attn.linear_v_adapter_list.%u.0"},
    {"attn_v_low_b", "shared_transformer.self_attn.linear_v_adapter_list.%u.1"},
    {"ffn_low_a", "shared_transformer.feed_forward.gate_up_proj_adapter_list.%u.0"},
    {"ffn_low_b", "shared_transformer.feed_forward.gate_up_proj_adapter_list.%u.1"},
    {"time_mix_receptance", "attn.r_proj|attention.receptance"},
    {"time_mix_key", "attn.k_proj|attention.key"},
    {"time_mix_value", "attn.v_proj|attention.value"},
    {"time_mix_output", "attn.o_proj|attention.output"},
    {"time_mix_gate", "attention.gate"},
    {"time_mix_ln", "attn.g_norm|attention.ln_x"},
    {"time_mix_lerp_x", "attention.time_maa_x"},
    {"time_mix_lerp_r", "attn.x_r|attention.time_mix_receptance|attention.time_maa_r"},
    {"time_mix_lerp_w", "attn.x_w|attention.time_maa_w"},
    {"time_mix_lerp_k", "attn.x_k|attention.time_mix_key|attention.time_maa_k"},
    {"time_mix_lerp_v", "attn.x_v|attention.time_mix_value|attention.time_maa_v"},
    {"time_mix_lerp_a", "attn.x_a"},
    {"time_mix_lerp_g", "attn.x_g|attention.time_maa_g"},
    {"time_mix_lerp_fused", "attn.x_x"},
    {"time_mix_decay", "attention.time_decay"},
    {"time_mix_decay_w1", "attention.time_decay_w1"},
    {"time_mix_decay_w2", "attention.time_decay_w2"},
    {"time_mix_first", "attention.time_first|attention.time_faaaa"},
    {"time_mix_k_k", "attn.k_k"},
    {"time_mix_k_a", "attn.k_a"},
    {"time_mix_r_k", "attn.r_k"},
    {"time_mix_w1", "attn.w_lora.lora.0|attention.time_maa_w1"},
    {"time_mix_w2", "attn.w_lora.lora.2|attention.time_maa_w2"},
    {"time_mix_w0", "attn.w_lora.lora.2"},
    {"time_mix_a1", "attn.a_lora.lora.0"},
    {"time_mix_a2", "attn.a_lora.lora.2"},
    {"time_mix_a0", "attn.a_lora.lora.2"},
    {"time_mix_v1", "attn.v_lora.lora.0"},
    {"time_mix_v2", "attn.v_lora.lora.2"},
    {"time_mix_v0", "attn.v_lora.lora.2"},
    {"time_mix_g1", "attn.g_lora.lora.0"},
    {"time_mix_g2", "attn.g_lora.lora.2"},
    {"channel_mix_lerp_k", "ffn.x_k|feed_forward.time_mix_key|feed_forward.time_maa_k"},
    {"channel_mix_lerp_r", "feed_forward.time_mix_receptance|feed_forward.time_maa_r"},
    {"channel_mix_key", "ffn.key|feed_forward.key"},
    {"channel_mix_value", "ffn.value|feed_forward.value"},
    {"channel_mix_receptance", "feed_forward.receptance"},
    {"shortconv.in_proj", "conv.in_proj"},
    {"shortconv.conv", "conv.conv"},
    {"shortconv.out_proj", "conv.out_proj"},
    {"attn_gate",
     "self_attn.output_gate|self_attn.gate_proj|self_attn.g_proj|attention.g_proj|linear_attn.in_proj_z|"
     "linear_attn.g_proj|mlstm_layer.ogate_preact"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b"},
    {"indexer.attn_k", "self_attn.indexer.wk"},
    {"indexer.k_norm", "self_attn.indexer.k_norm"},
    {"indexer.proj", "self_attn.indexer.weights_proj"},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
    {"layer_output_scale", "layer_scalar"},
    {"per_layer_token_embd", "embed_tokens_per_layer"},
    {"per_layer_model_proj", "per_layer_model_projection"},
    {"per_layer_proj_norm", "per_layer_projection_norm"},
    {"inp_gate", "per_layer_input_gate"},
    {"proj", "per_layer_projection"},
    {"post_norm", "post_per_layer_input_norm"},
    {"altup_proj", "altup_projections.%u"},
    {"altup_unembd_proj", "altup_unembed_projections.%u"},
    {"altup_router", "altup.modality_router"},
    {"altup_router_norm", "altup.router_norm"},
    {"altup_predict_coef", "altup.prediction_coefs"},
    {"altup_correct_coef", "altup.correction_coefs"},
    {"altup_correct_scale", "altup.correct_output_scale"},
    {"laurel_l", "laurel.linear_left"},
    {"laurel_r", "laurel.linear_right"},
    {"laurel_post_norm", "laurel.post_laurel_norm"},
};

void lookup_open(struct lookup *n, const struct store *s, const char *wrap)
{
    static const char *const roots[] = {"model.language_model.",
                                        "language_model.model.",
                                        "language_model.backbone.",
                                        "model.text_model.",
                                        "model.decoder.",
                                        "model.",
                                        "biogpt.",
                                        "transformer.",
                                        "gpt_neox.",
                                        "backbone.",
                                        "rwkv.",
                                        "bert.",
                                        "roberta.",
                                        "distilbert.",
                                        "mpnet.",
                                        "",
                                        "base_model.model."};
    static const char *const stacks[] = {"layers.",           "layers.layers.", "h.",
                                         "blocks.",           "encoder.layer.", "encoder.layers.",
                                         "transformer.layer."};
    *n = (struct lookup){.store = s, .wrap = wrap, .rows = table, .count = sizeof table / sizeof *table};
    if (s->kind == STORE_GGUF)
        return;
    for (size_t r = 0; r < sizeof roots / sizeof *roots; r++)
        for (size_t k = 0; k < sizeof stacks / sizeof *stacks; k++) {
            char want[128];
            int len = snprintf(want, sizeof want, "%s%s%s", wrap, roots[r], stacks[k]);
            for (size_t i = 0; i < s->count; i++)
                if (!strncmp(s->tensors[i].name, want, (size_t)len) &&
                    strspn(s->tensors[i].name + len, "0123456789")) {
                    snprintf(n->root, sizeof n->root, "%s", roots[r]);
                    snprintf(n->stack, sizeof n->stack, "%s", stacks[k]);
                    return;
                }
        }
    snprintf(n->root, sizeof n->root, "model.");
    snprintf(n->stack, sizeof n->stack, "layers.");
}

static void gguf_name(const struct lookup *n, struct tensor_at at, const char *suffix, char out[256])
{
    char layer[32] = "", expert[32] = "";
    if (at.layer >= 0)
        snprintf(layer, sizeof layer, "%sblk.%d.", n->tower ? "v." : "", at.layer);
    int base = (int)strlen(at.name);
    const char *hole = n->tower ? strchr(at.name, '#') : NULL;
    if (hole) {
        snprintf(out, 256, "%.*s%d%s%s", (int)(hole - at.name), at.name, at.expert, hole + 1, suffix);
        return;
    }
    if (at.expert >= 0) {
        base -= 5; /* "_exps": files from before the experts were stacked */
        snprintf(expert, sizeof expert, ".%d", at.expert);
    }
    snprintf(out, 256, "%s%.*s%s%s", layer, base, at.name, expert, suffix);
}

/* One alternative, spelled out. False where it wants an expert and there is none, or the reverse. */
static bool hf_name(const struct lookup *n, struct tensor_at at, const char *alt, size_t len,
                    const char *root, const char *suffix, char out[256])
{
    char layer[64] = "", base[128];
    const char *hole = memchr(alt, '%', len), *half = memchr(alt, '#', len);
    if ((at.expert >= 0) != (hole != NULL) || (half && !n->paired) || len >= sizeof base - 32)
        return false;
    snprintf(base, sizeof base, "%.*s", (int)len, alt);
    if (hole)
        snprintf(base, sizeof base, "%.*s%d%.*s", (int)(hole - alt), alt, at.expert,
                 (int)(alt + len - hole - 2), hole + 2);
    else if (half)
        snprintf(base, sizeof base, "%.*s%d%.*s", (int)(half - alt), alt, at.layer % 2,
                 (int)(alt + len - half - 1), half + 1);
    if (at.layer >= 0)
        snprintf(layer, sizeof layer, "%s%d.", n->stack, n->paired ? at.layer / 2 : at.layer);
    snprintf(out, 256, "%s%s%s%s%s", n->wrap, root, layer, base, suffix);
    return true;
}

static const char *alternatives(const struct lookup *n, const char *name)
{
    for (size_t i = 0; i < n->count; i++)
        if (!strcmp(n->rows[i].name, name))
            return n->rows[i].hf;
    return "";
}

static const struct tensor *find_hf(const struct lookup *n, struct tensor_at at, const char *suffix)
{
    /* Heads are outside the decoder's root. */
    const char *outer = n->tower ? "model." : "language_model.";
    const char *roots[] = {n->root, at.layer < 0 ? "" : NULL, at.layer < 0 ? outer : NULL};
    char name[256];
    for (size_t r = 0; r < 3; r++)
        for (const char *alt = alternatives(n, at.name); roots[r] && *alt; alt += *alt == '|') {
            size_t len = strcspn(alt, "|");
            if (hf_name(n, at, alt, len, roots[r], suffix, name)) {
                const struct tensor *t = store_find(n->store, name);
                if (t)
                    return t;
            }
            alt += len;
        }
    return NULL;
}

const struct tensor *lookup_find(const struct lookup *n, struct tensor_at at, const char *suffix)
{
    char name[256];
    if (n->store->kind == STORE_GGUF) {
        gguf_name(n, at, suffix, name);
        const struct tensor *t = store_find(n->store, name);
        if (t || (strcmp(suffix, ".weight") && (n->tower || strcmp(suffix, ".bias"))))
            return t;
        /* hy_v3's bias of the choice has no suffix, nor have some norms and some tables of towers */
        gguf_name(n, at, "", name);
        return store_find(n->store, name);
    }
    /* a bare parameter; the names that norms had in TensorFlow; what adapters inside of the file stand beside */
    static const char *const weights[] = {".weight", "", ".gamma", ".parametrizations.weight.original", NULL};
    static const char *const biases[] = {".bias", "_bias", ".beta", NULL};
    const char *const alone[] = {suffix, NULL};
    const char *const *tries = !strcmp(suffix, ".weight") ? weights
                               : !strcmp(suffix, ".bias") ? biases
                                                          : alone;
    const struct tensor *t = NULL;
    for (; !t && *tries; tries++)
        t = find_hf(n, at, *tries);
    return t;
}

const char *lookup_expected(const struct lookup *n, struct tensor_at at, const char *suffix, char out[256])
{
    if (n->store->kind == STORE_GGUF) {
        gguf_name(n, at, suffix, out);
        return out;
    }
    for (const char *alt = alternatives(n, at.name); *alt; alt += *alt == '|') {
        size_t len = strcspn(alt, "|");
        if (hf_name(n, at, alt, len, n->root, suffix, out))
            return out;
        alt += len;
    }
    snprintf(out, 256, "%s%s", at.name, suffix);
    return out;
}
