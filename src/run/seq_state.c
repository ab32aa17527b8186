#include "run/seq_state.h"

#include <string.h>

/* Drops state number i. */
static void seq_drop_state(struct seq *s, uint32_t i)
{
    pages_drop(&s->runner->states, s->state[i].slot);
    s->states--;
    memmove(s->state + i, s->state + i + 1, (s->states - i) * sizeof *s->state);
}

uint32_t seq_drop_states(struct seq *s, uint32_t len)
{
    while (s->states && s->state[s->states - 1].at > len)
        seq_drop_state(s, s->states - 1);
    if (!s->runner->plan->states)
        return len;
    return s->states ? s->state[s->states - 1].at : 0;
}

/* Drops the states before the last one, but not snapshots that the prefix tree does not have yet. */
static void seq_forget(struct seq *s)
{
    for (uint32_t i = s->states; i-- > 0;)
        if (i + 1 < s->states && !s->state[i].snapshot)
            seq_drop_state(s, i);
}

void seq_set_state(struct seq *s, uint32_t at, int32_t slot)
{
    pages_share(&s->runner->states, slot);
    seq_drop_states(s, at);
    if (s->states == RUNNER_STATES)
        seq_drop_state(s, 0);
    s->state[s->states++] = (struct seq_state){.at = at, .slot = slot};
    seq_forget(s);
}

void seq_want_snapshot(struct seq *s)
{
    if (s->states)
        s->state[s->states - 1].snapshot = true;
}

bool seq_release_snapshot(struct seq *s, uint32_t i)
{
    bool last = i + 1 == s->states;
    s->state[i].snapshot = false;
    if (!last)
        seq_drop_state(s, i);
    return !last;
}

/* ---- the states of a step ---- */

const struct seq_state *seq_last_state(const struct seq *s)
{
    return s->states ? &s->state[s->states - 1] : NULL;
}

/* Whether the step overwrites the state that it begins with. */
static bool part_in_place(const struct seq_rows *p)
{
    const struct seq_state *last = seq_last_state(p->seq);
    return last && !p->hold && !last->snapshot && p->seq->runner->states.refs[last->slot] == 1;
}

/* Rows before the last whose states are kept to cut back to. */
static uint32_t part_back(const struct seq_rows *p)
{
    return p->back < p->n ? p->back : p->n - 1;
}

uint32_t seq_need_states(const struct seq_rows *part)
{
    return part->seq->runner->plan->states ? 1 + part_back(part) - part_in_place(part) : 0;
}

int part_take_states(const struct seq_rows *p, int32_t *out, struct err *e)
{
    struct runner *r = p->seq->runner;
    if (!r->plan->states)
        return 0;
    if (!p->hold)
        seq_forget(p->seq);
    for (uint32_t i = p->n - 1 - part_back(p); i < p->n; i++) {
        bool same = i + 1 == p->n && part_in_place(p);
        out[i] = same ? seq_last_state(p->seq)->slot : runner_take_state(r);
        if (!out[i])
            return err_set(e, ERR_RESOURCE, "out of state slots: all %u are in use", r->states.count - 1);
    }
    return 0;
}

void part_take_snapshots(const struct seq_rows *p, int32_t *out)
{
    struct seq *s = p->seq;
    uint32_t room = s->states < RUNNER_STATES / 2 ? RUNNER_STATES / 2 - s->states : 0;
    for (uint32_t i = 0; i < p->snaps && room && s->runner->plan->states; i++) {
        uint32_t at = p->snap[i] - s->len - 1; /* wraps for what is not in this part */
        if (at < p->n && !out[at]) {
            out[at] = runner_take_state(s->runner);
            room--;
        }
    }
}

void part_return_states(const struct seq_rows *p, const int32_t *out, bool ran)
{
    struct seq *s = p->seq;
    int32_t own = s->states ? seq_last_state(s)->slot : 0;
    bool spoiled = false;
    for (uint32_t i = 0; i < p->n && s->runner->plan->states; i++) {
        spoiled |= ran && out[i] && out[i] == own;
        if (out[i] != own)
            pages_drop(&s->runner->states, out[i]);
    }
    if (spoiled)
        seq_truncate(s, s->len - 1);
}

static bool part_wants(const struct seq_rows *p, uint32_t at)
{
    bool wants = false;
    for (uint32_t i = 0; i < p->snaps; i++)
        wants |= p->snap[i] == at;
    return wants;
}

void part_keep_states(const struct seq_rows *p, const int32_t *out)
{
    struct seq *s = p->seq;
    const struct seq_state *last = seq_last_state(s);
    if (last && last->slot == out[p->n - 1]) /* in place */
        s->states--;
    else if (last && !p->hold && !last->snapshot)
        seq_drop_state(s, s->states - 1);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t at = s->len + i + 1;
        if (out[i])
            s->state[s->states++] =
                (struct seq_state){.at = at, .slot = out[i], .snapshot = part_wants(p, at)};
    }
}
