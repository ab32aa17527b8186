/* The families: each writes its forward pass as a plan and, where needed, adjusts the hyper-parameters. */
#pragma once

#include "model/build.h"

void llama_build(struct build *b);
int smollm3_setup(struct hparams *h, const struct keys *k, struct err *e);
int qwen_moe_setup(struct hparams *h, const struct keys *k, struct err *e);
int minicpm_setup(struct hparams *h, const struct keys *k, struct err *e);
int mimo_setup(struct hparams *h, const struct keys *k, struct err *e);
int llama4_setup(struct hparams *h, const struct keys *k, struct err *e);
void llama4_build(struct build *b);
int granite_setup(struct hparams *h, const struct keys *k, struct err *e);
void gemma4_build(struct build *b);
int gemma4_setup(struct hparams *h, const struct keys *k, struct err *e);
void gemma3n_build(struct build *b);
int gemma3n_setup(struct hparams *h, const struct keys *k, struct err *e);
int gemma_setup(struct hparams *h, const struct keys *k, struct err *e);
void olmo_build(struct build *b);
int olmoe_setup(struct hparams *h, const struct keys *k, struct err *e);
void olmo2_build(struct build *b);
int olmo2_setup(struct hparams *h, const struct keys *k, struct err *e);
void phi2_build(struct build *b);
void stablelm_build(struct build *b);
void gpt2_build(struct build *b);
int gpt2_setup(struct hparams *h, const struct keys *k, struct err *e);
void neox_build(struct build *b);
int neox_setup(struct hparams *h, const struct keys *k, struct err *e);
void falcon_build(struct build *b);
int falcon_setup(struct hparams *h, const struct keys *k, struct err *e);
void cohere_build(struct build *b);
int granite_swa_setup(struct hparams *h, const struct keys *k, struct err *e);
void deepseek_build(struct build *b);
void longcat_build(struct build *b);
int longcat_setup(struct hparams *h, const struct keys *k, struct err *e);
int deepseek_setup(struct hparams *h, const struct keys *k, struct err *e);
void bert_build(struct build *b);
int bert_setup(struct hparams *h, const struct keys *k, struct err *e);
int mpnet_setup(struct hparams *h, const struct keys *k, struct err *e);
void modernbert_build(struct build *b);
void hybrid_build(struct build *b);
void single_mixer_build(struct build *b);
int hybrid_mamba2_setup(struct hparams *h, const struct keys *k, struct err *e);
int mamba_setup(struct hparams *h, const struct keys *k, struct err *e);
int mamba2_setup(struct hparams *h, const struct keys *k, struct err *e);
int jamba_setup(struct hparams *h, const struct keys *k, struct err *e);
int granite_hybrid_setup(struct hparams *h, const struct keys *k, struct err *e);
int nemotron_h_setup(struct hparams *h, const struct keys *k, struct err *e);
void falcon_h1_build(struct build *b);
int falcon_h1_setup(struct hparams *h, const struct keys *k, struct err *e);
int qwen_hybrid_setup(struct hparams *h, const struct keys *k, struct err *e);
void olmo_hybrid_build(struct build *b);
int olmo_hybrid_setup(struct hparams *h, const struct keys *k, struct err *e);
void lfm2_build(struct build *b);
int lfm2_setup(struct hparams *h, const struct keys *k, struct err *e);
int kimi_linear_setup(struct hparams *h, const struct keys *k, struct err *e);
void minimax_build(struct build *b);
int minimax_setup(struct hparams *h, const struct keys *k, struct err *e);
