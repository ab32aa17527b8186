/* Passes over a list of launches: each makes one kind of change, wherever the list allows it, and leaves a
 * valid list. In this order (passes_run). */
#pragma once

#include "device/cuda/lower.h"

/* One row: a pack that the operation before has made is not made again. */
void pass_pack_once(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* Products that share their input become one launch, up to GEMM_SEGS of them: forms of tiles together, others of one
 * form. */
void pass_merge_products(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* Gate and up in turns in one launch, which applies the activation, too. */
void pass_pair_activation(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* One row in front of tiles: the product norms and packs its input itself. */
void pass_row_input(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* One row: the product behind attention joins the parts of blocks that shared keys. */
void pass_join_parts(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* One row: the product gates and norms its input itself. */
void pass_gate_input(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* One row: the product convolves its results. */
void pass_conv_results(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* Attention packs its rows for the product behind it. */
void pass_attention_packs(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* One row: attention finishes its heads of Q, K and V itself. */
void pass_finish_heads(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* The head's product writes to the host's memory where nothing follows it. */
void pass_direct_results(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* Products take GEMM_ROWS_MOST rows at a time. */
void pass_cut_rows(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* The row of the variant table for each product. */
void pass_choose_kernels(const struct lower *l, const struct step_class *c, struct launch_list *list);
/* Products of experts have weights on their way before the kernel in front of them ends, and rows that go to them are normed
 * before they are sorted. */
void pass_tiles_there(const struct lower *l, const struct step_class *c, struct launch_list *list);

/* The sum behind a product of cuBLASLt, or of experts, is made where it is normed for the next one. Over a whole plan: the
 * next one may be another layer's. */
void pass_sum_rows(struct launch_list *list);

void passes_run(const struct lower *l, const struct step_class *c, struct launch_list *list);
