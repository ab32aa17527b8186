/* The recurrent states of a sequence: which slots a step reads and writes, and which the sequence keeps. For the
 * runner. */
#pragma once

#include "run/runner.h"

/* Drops the states after the first `len` tokens; returns the last place up to there that the sequence can be cut
 * back to. */
uint32_t seq_drop_states(struct seq *s, uint32_t len);
/* The state after all tokens; NULL: the empty one, or the plan keeps none. */
const struct seq_state *seq_last_state(const struct seq *s);
/* Takes the slots that a part's rows are to write. out: (n), all 0 before, and where the state is not kept. */
int part_take_states(const struct seq_rows *p, int32_t *out, struct err *e);
/* Takes slots for the snapshots of a part, while there are any. They have half of the sequence's places. */
void part_take_snapshots(const struct seq_rows *p, int32_t *out);
/* The step has failed: returns what it has taken. A device that was running may have overwritten the state in
 * place. */
void part_return_states(const struct seq_rows *p, const int32_t *out, bool ran);
/* The step is done: the sequence, which is still at its old length, gets the states that it has written. */
void part_keep_states(const struct seq_rows *p, const int32_t *out);
