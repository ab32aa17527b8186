#include "run/seq_images.h"

#include "base/mem.h"

#include <string.h>

int step_take_images(struct runner *r, struct err *e)
{
    const struct plan *p = r->plan;
    bool axes = false, spans = false;
    for (uint32_t i = 0; i < p->count; i++) {
        axes |= p->ops[i].kind == OP_QKV && p->ops[i].qkv.rope.axes;
        spans |= p->ops[i].kind == OP_ATTN && p->ops[i].attn.span;
    }
    r->given = mem_zalloc(r->chunk, p->width[p->given] * sizeof *r->given);
    r->axes = axes ? mem_alloc(r->chunk, PLAN_AXES * sizeof *r->axes) : NULL;
    r->span = spans ? mem_alloc(r->chunk, sizeof *r->span) : NULL;
    return !r->given || (axes && !r->axes) || (spans && !r->span)
               ? err_memory(e, "a step's rows", r->chunk * p->width[p->given] * sizeof *r->given)
               : 0;
}

void step_free_images(struct runner *r)
{
    mem_free(r->given);
    mem_free(r->axes);
    mem_free(r->span);
}

/* The longer side of an image's grid, less its tokens: how far positions behind it are from the number of the token. */
static int64_t image_shift(const struct seq_image *m)
{
    return (int64_t)(m->cols > m->rows ? m->cols : m->rows) - m->tokens;
}

static int32_t part_id(const struct seq_rows *p, uint32_t i)
{
    return i < p->seq->len ? p->seq->ids[i] : p->ids[i - p->seq->len];
}

/* The image tokens around token i without other ones between them: those that see each other. */
static struct step_span image_run(const struct seq_rows *p, const struct seq_image *m, uint32_t i)
{
    const uint32_t all = p->seq->len + p->n, end = m->first + m->tokens < all ? m->first + m->tokens : all;
    uint32_t from = i, to = i + 1;
    while (from > m->first && part_id(p, from - 1) < 0)
        from--;
    while (to < end && part_id(p, to) < 0)
        to++;
    return (struct step_span){from, to};
}

void part_fill_images(const struct seq_rows *p, struct step *st)
{
    const struct seq *s = p->seq;
    struct runner *r = s->runner;
    const size_t width = r->plan->width[r->plan->given];
    const struct seq_image *m = s->image, *last = m + s->images;
    uint32_t row = 0; /* of m: rows before this token */
    int64_t shift = 0;
    for (; m < last && m->first + m->tokens <= s->len; m++)
        shift += image_shift(m);
    for (uint32_t i = m < last ? m->first : s->len; i < s->len; i++)
        row += s->ids[i] < 0;
    for (uint32_t k = 0; k < p->n; k++) {
        const uint32_t i = s->len + k, to = st->rows + k;
        if (m < last && i >= m->first + m->tokens) {
            shift += image_shift(m++);
            row = 0;
        }
        const bool in = m < last && i >= m->first;
        if (in && p->ids[k] < 0 && m->data)
            memcpy(r->given + to * width, m->data + row * width, width * sizeof *r->given);
        if (r->span)
            r->span[to] = !in || p->ids[k] >= 0         ? (struct step_span){0}
                          : k && r->span[to - 1].to > i ? r->span[to - 1]
                                                        : image_run(p, m, i);
        const int32_t base = (int32_t)((in ? m->first : i) + shift);
        for (uint32_t a = 0; r->axes && a < PLAN_AXES; a++)
            r->axes[(size_t)to * PLAN_AXES + a] = base + (!in || !a ? 0
                                                          : a == 1  ? (int32_t)(row / m->cols)
                                                                    : (int32_t)(row % m->cols));
        row += in && p->ids[k] < 0;
    }
    st->axes = r->axes;
    st->span = r->span;
}

/* The image that token i of the sequence is in; NULL: none. */
static const struct seq_image *image_at(const struct seq *s, uint32_t i)
{
    for (uint32_t k = 0; k < s->images; k++)
        if (s->image[k].first <= i && i < s->image[k].first + s->image[k].tokens)
            return &s->image[k];
    return NULL;
}

uint32_t seq_run(const struct seq *s, const int32_t *ids, uint32_t n)
{
    const struct seq_image *m = image_at(s, s->len);
    uint32_t end = m ? m->first + m->tokens - s->len : 0, at = 0;
    while (at < end && at < n && ids[at] < 0)
        at++;
    return at;
}

uint32_t seq_whole(const struct seq *s, const int32_t *ids, uint32_t n, uint32_t most)
{
    const uint32_t cut = n < most ? n : most;
    uint32_t at = cut;
    if (!s->runner->span || cut == n)
        return cut;
    const struct seq_image *m = image_at(s, s->len + at);
    while (at && m && s->len + at > m->first && ids[at] < 0 && ids[at - 1] < 0)
        at--;
    return at;
}

int step_give_images(struct runner *r, const struct step *st, struct err *e)
{
    bool any = false;
    for (uint32_t i = 0; r->plan->given && i < st->rows && !any; i++)
        any = st->ids[i] < 0;
    return any ? r->device->ops->write_rows(r->device, r->plan->given, st->rows, r->given, e) : 0;
}
