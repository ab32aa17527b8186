/* Names of a tower's tensors: GGUF's, and those of Hugging Face files. */
#include "model/lookup.h"

#include <stdio.h>
#include <string.h>

static const struct lookup_row table[] = {
    {"v.patch_embd",
     "embeddings.patch_embedding|patch_conv|patch_embed.proj|embeddings.patch_embeddings.projection|"
     "patch_embedder.input_proj"},
    {"v.position_embd", "embeddings.position_embedding|pos_embed|embeddings.position_embeddings|"
                        "patch_embedder.position_embedding_table"},
    {"v.class_embd", "embeddings.class_embedding|embeddings.cls_token"},
    {"v.pre_ln", "pre_layrnorm|pre_layernorm|ln_pre"},
    {"v.post_ln", "post_layernorm|merger.ln_q|merger.norm|layernorm"},
    {"ln1", "layer_norm1|attention_norm|norm1|layernorm_before|input_layernorm"},
    {"ln2", "layer_norm2|ffn_norm|norm2|layernorm_after|pre_feedforward_layernorm"},
    {"attn_q", "self_attn.q_proj|attention.q_proj|self_attn.q_proj.linear"},
    {"attn_k", "self_attn.k_proj|attention.k_proj|self_attn.k_proj.linear"},
    {"attn_v", "self_attn.v_proj|attention.v_proj|self_attn.v_proj.linear"},
    {"attn_qkv", "attn.qkv"},
    {"attn_q_norm", "self_attn.q_norm|attention.q_norm"},
    {"attn_k_norm", "self_attn.k_norm|attention.k_norm"},
    {"attn_out", "self_attn.out_proj|attention.o_proj|attn.proj|attention.projection_layer|self_attn.o_proj|"
                 "self_attn.o_proj.linear"},
    {"attn_post_norm", "post_attention_layernorm"},
    {"ffn_post_norm", "post_feedforward_layernorm"},
    {"ls1", "lambda_1|ls1"},
    {"ls2", "lambda_2|ls2"},
    {"ffn_gate", "feed_forward.gate_proj|mlp.gate_proj|mlp.gate_proj.linear"},
    {"ffn_up", "mlp.fc1|feed_forward.up_proj|mlp.up_proj|mlp.linear_fc1|mlp.up_proj.linear"},
    {"ffn_down", "mlp.fc2|feed_forward.down_proj|mlp.down_proj|mlp.linear_fc2|mlp.down_proj.linear"},
    {"v.image_newline", "image_newline"},
    {"v.std_bias", "std_bias"},
    {"v.std_scale", "std_scale"},
    {"mm.0", "multi_modal_projector.linear_1|merger.mlp.0|merger.linear_fc1"},
    {"mm.2", "multi_modal_projector.linear_2|merger.mlp.2|merger.linear_fc2"},
    {"mm.1", "multi_modal_projector.linear_1"}, /* pixtral's first; its second is mm.2 */
    {"mm.input_projection",
     "multi_modal_projector.mm_input_projection_weight|embed_vision.embedding_projection"},
    {"mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"},
    {"mm.model.fc", "connector.modality_projection.proj"},
    {"mm.input_norm", "multi_modal_projector.norm"},
    {"mm.patch_merger", "multi_modal_projector.patch_merger.merging_layer"},
    {"mm.model.mlp.0", "multi_modal_projector.layer_norm"},
    {"mm.model.mlp.1", "multi_modal_projector.linear_1"},
    {"mm.model.mlp.3", "multi_modal_projector.linear_2"},
    {"v.deepstack.#.norm", "deepstack_merger_list.%u.norm"},
    {"v.deepstack.#.fc1", "deepstack_merger_list.%u.linear_fc1"},
    {"v.deepstack.#.fc2", "deepstack_merger_list.%u.linear_fc2"},
};

void lookup_open_tower(struct lookup *n, const struct store *s)
{
    static const struct {
        const char *root, *stack;
    } known[] = {{"vision_tower.vision_model.", "encoder.layers."},
                 {"model.vision_tower.vision_model.", "encoder.layers."},
                 {"model.vision_model.", "encoder.layers."},
                 {"vision_model.", "encoder.layers."},
                 {"vision_tower.", "transformer.layers."},
                 {"model.vision_tower.", "transformer.layers."},
                 {"vision_tower.", "encoder.layer."},
                 {"model.vision_tower.", "encoder.layer."},
                 {"vision_tower.", "encoder.layers."},
                 {"model.vision_tower.", "encoder.layers."},
                 {"model.visual.", "blocks."},
                 {"visual.", "blocks."}};
    *n = (struct lookup){
        .store = s, .wrap = "", .rows = table, .count = sizeof table / sizeof *table, .tower = true};
    for (size_t k = 0; s->kind != STORE_GGUF && k < sizeof known / sizeof *known; k++) {
        char want[128];
        int len = snprintf(want, sizeof want, "%s%s0.", known[k].root, known[k].stack);
        for (size_t i = 0; i < s->count; i++)
            if (!strncmp(s->tensors[i].name, want, (size_t)len)) {
                snprintf(n->root, sizeof n->root, "%s", known[k].root);
                snprintf(n->stack, sizeof n->stack, "%s", known[k].stack);
                return;
            }
    }
}
