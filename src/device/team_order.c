/* What rank 0 tells the other ranks, as bytes, and how they do it. */
#include "base/digest.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "codec/dtype.h"
#include "device/team_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- a step as bytes ---- */

struct step_head {
    uint32_t rows, seqs, outs, table_width;
    uint32_t has; /* bits of the optional arrays */
};

enum { HAS_AXES = 1, HAS_SPANS = 2, HAS_STATES = 4, HAS_LORA = 8 };

/* An array of a step: where its pointer is, and how long it is. */
struct step_array {
    const void **data;
    size_t bytes;
};

enum { STEP_ARRAYS = 10 };

static void step_arrays(const struct plan *p, const struct step_head *h, struct step *s,
                        struct step_array out[STEP_ARRAYS])
{
    const size_t word = sizeof(int32_t), rows = h->rows * word;
    const struct step_array all[STEP_ARRAYS] = {
        {(const void **)&s->ids, rows},
        {(const void **)&s->pos, rows},
        {(const void **)&s->axes, h->has & HAS_AXES ? rows * PLAN_AXES : 0},
        {(const void **)&s->span, h->has & HAS_SPANS ? h->rows * sizeof *s->span : 0},
        {(const void **)&s->seq, h->seqs * sizeof *s->seq},
        {(const void **)&s->tables, (size_t)p->groups * h->seqs * h->table_width * word},
        {(const void **)&s->state_in, h->has & HAS_STATES ? h->seqs * word : 0},
        {(const void **)&s->state_out, h->has & HAS_STATES ? rows : 0},
        {(const void **)&s->out, h->outs * word},
        {(const void **)&s->lora, h->has & HAS_LORA ? h->seqs * sizeof *s->lora : 0},
    };
    memcpy(out, all, sizeof all);
}

static struct step_head step_head(const struct step *s)
{
    struct step_head h = {s->rows, s->seqs, s->outs, s->table_width, 0};
    h.has = (s->axes ? HAS_AXES : 0u) | (s->span ? HAS_SPANS : 0u) | (s->state_in ? HAS_STATES : 0u) |
            (s->lora ? HAS_LORA : 0u);
    return h;
}

static size_t step_bytes(const struct plan *p, const struct step_head *h)
{
    struct step none;
    struct step_array a[STEP_ARRAYS];
    size_t n = sizeof *h;
    step_arrays(p, h, &none, a);
    for (int i = 0; i < STEP_ARRAYS; i++)
        n += a[i].bytes;
    return n;
}

size_t team_step_bytes(const struct plan *p, const struct step *s)
{
    const struct step_head h = step_head(s);
    return step_bytes(p, &h);
}

/* Of the largest step that can come: a longer order would only take memory. */
static size_t step_bytes_most(const struct plan *p, const struct order_prepare *l)
{
    enum { WIDTH_MOST = 1 << 17 }; /* pages of a sequence */
    const struct step_head h = {l->rows, l->seqs, l->outs, WIDTH_MOST,
                                HAS_AXES | HAS_SPANS | HAS_STATES | HAS_LORA};
    return step_bytes(p, &h);
}

void team_step_pack(const struct plan *p, const struct step *s, uint8_t *out)
{
    struct step copy = *s;
    struct step_array a[STEP_ARRAYS];
    struct step_head h = step_head(s);
    memcpy(out, &h, sizeof h);
    out += sizeof h;
    step_arrays(p, &h, &copy, a);
    for (int i = 0; i < STEP_ARRAYS; out += a[i++].bytes)
        if (a[i].bytes)
            memcpy(out, *a[i].data, a[i].bytes);
}

/* Whether the sequences have the rows one after the other, at positions that exist, in pages that exist. */
static bool seqs_are_sound(const struct plan *p, const struct order_prepare *l, const struct step *s)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->seqs; i++) {
        const struct step_seq *q = &s->seq[i];
        if (q->first != at || !q->rows || q->rows > s->rows - at || q->length < q->rows)
            return false;
        at += q->rows;
        for (uint32_t r = q->first; r < at; r++)
            if (s->pos[r] < 0 || (uint32_t)s->pos[r] >= q->length ||
                (s->span && (s->span[r].from > s->span[r].to || s->span[r].to > q->length)))
                return false;
        const uint32_t used = p->groups ? (q->length - 1) / l->kv.page_tokens + 1 : 0;
        if (used > s->table_width)
            return false;
        for (uint32_t g = 0; g < p->groups; g++) {
            const int32_t *page = s->tables + ((size_t)g * s->seqs + i) * s->table_width;
            for (uint32_t k = 0; k < used; k++)
                if (page[k] < 0 || (uint32_t)page[k] >= l->kv.pages[g])
                    return false;
        }
    }
    return at == s->rows;
}

static bool step_is_sound(const struct plan *p, const struct order_prepare *l, const struct step *s)
{
    if (s->rows > l->rows || s->seqs > l->seqs || s->outs > l->outs || !seqs_are_sound(p, l, s))
        return false;
    for (uint32_t i = 0; i < s->outs; i++)
        if (s->out[i] < 0 || (uint32_t)s->out[i] >= s->rows || (i && s->out[i] <= s->out[i - 1]))
            return false;
    for (uint32_t i = 0; s->state_in && i < s->seqs; i++)
        if (s->state_in[i] < 0 || (uint32_t)s->state_in[i] >= l->kv.states)
            return false;
    for (uint32_t i = 0; s->state_out && i < s->rows; i++)
        if (s->state_out[i] < 0 || (uint32_t)s->state_out[i] >= l->kv.states)
            return false;
    return true;
}

bool team_step_unpack(const struct plan *p, const struct order_prepare *l, const uint8_t *in, size_t n,
                      struct step *s)
{
    struct step_head h;
    struct step_array a[STEP_ARRAYS];
    *s = (struct step){0};
    if (n < sizeof h)
        return false;
    memcpy(&h, in, sizeof h);
    if (h.rows > l->rows || h.seqs > n / sizeof *s->seq || h.outs > l->outs ||
        h.table_width > n / sizeof(int32_t))
        return false; /* from here on no size overflows */
    *s = (struct step){.rows = h.rows, .seqs = h.seqs, .outs = h.outs, .table_width = h.table_width};
    step_arrays(p, &h, s, a);
    size_t at = sizeof h;
    for (int i = 0; i < STEP_ARRAYS; i++) {
        if (a[i].bytes > n - at)
            return false;
        if (a[i].bytes)
            *a[i].data = in + at;
        at += a[i].bytes;
    }
    return at == n && (h.has & HAS_STATES || !p->states) && step_is_sound(p, l, s);
}

int team_step_check(const struct plan *p, const struct weights *w, const struct step *s, struct err *e)
{
    return device_check_ids(p, w, s, e) || device_check_lora(p, s, e) ? -1 : 0;
}

/* ---- ranks that agree ---- */

/* What has to be the same on all ranks. */
struct accord {
    char version[32], options[96];
    struct digest plan, weights;
};

/* The beginning and the end of every matrix, and some bytes between: a file that differs there is another file. */
static void digest_sample(struct digest *d, const struct weight *w)
{
    enum { SAMPLE = 256, PLACES = 4 };
    size_t row = 0;
    dtype_row_bytes(w->type, w->cols, &row);
    const uint32_t shape[] = {w->type, w->rows, w->cols, w->count};
    digest_add(d, shape, sizeof shape);
    for (uint32_t i = 0; i < PLACES; i++) {
        uint32_t matrix = (uint32_t)((uint64_t)(w->count - 1) * i / (PLACES - 1)),
                 at = (uint32_t)((uint64_t)(w->rows - 1) * i / (PLACES - 1));
        digest_add(d, w->data + matrix * w->each_bytes + at * w->row_bytes, row < SAMPLE ? row : SAMPLE);
    }
}

static void accord_fill(struct accord *a, const struct member *m, const struct device_options *o)
{
    struct buf text = {0};
    *a = (struct accord){0};
    snprintf(a->version, sizeof a->version, "%s", QUERN_VERSION);
    snprintf(a->options, sizeof a->options, "%ux%u %s exact %d activations %d tier %s", m->tensor, m->stages,
             m->device->ops->name, o->exact, o->activations,
             strcmp(m->device->ops->name, "cpu") ? "-" : cpu_tier(o->tier));
    plan_print(m->plan, m->weights, &text);
    digest_add(&a->plan, text.data, text.len);
    buf_free(&text);
    for (uint32_t i = 1; i < m->weights->count; i++)
        digest_sample(&a->weights, &m->weights->all[i]);
}

/* What differs; NULL: nothing. */
static const char *accord_differs(const struct accord *a, const struct accord *b)
{
    return memcmp(a->version, b->version, sizeof a->version)   ? "another version of quern"
           : memcmp(&a->plan, &b->plan, sizeof a->plan)        ? "another model, or other options for it"
           : memcmp(&a->weights, &b->weights, sizeof a->plan)  ? "a model file with other contents"
           : memcmp(a->options, b->options, sizeof a->options) ? "other options, or another kind of device"
                                                               : NULL;
}

int member_agree(struct member *m, const struct device_options *o, struct err *e)
{
    struct accord all[COMM_RANKS_MOST];
    size_t at[COMM_RANKS_MOST + 1];
    for (uint32_t i = 0; i <= m->comm->size; i++)
        at[i] = i * sizeof *all;
    accord_fill(&all[m->comm->rank], m, o);
    if (comm_all_gather(m->comm, comm_all(m->comm), all, at, e))
        return -1;
    for (uint32_t i = 1; i < m->comm->size; i++) {
        const char *what = accord_differs(&all[0], &all[i]);
        if (what)
            return err_set(e, ERR_DEVICE, "rank %u has %s than rank 0 (%.31s, %.95s; rank 0: %.31s, %.95s)",
                           i, what, all[i].version, all[i].options, all[0].version, all[0].options);
    }
    return 0;
}

/* ---- orders ---- */

int member_answer(struct member *m, const struct answer *own, struct answer *all, struct err *e)
{
    size_t at[COMM_RANKS_MOST + 1];
    for (uint32_t i = 0; i <= m->comm->size; i++)
        at[i] = i * sizeof *own;
    return comm_gather(m->comm, comm_all(m->comm), own, all, at, e);
}

/* Whether an order makes sense for this rank: groups, pages and rows that there are, and the bytes that follow. */
static bool order_is_sound(const struct member *m, const struct rank_order *o)
{
    const struct order_prepare *l = &m->limit;
    const bool group = o->a < m->plan->groups;
    if (o->kind == ORDER_PREPARE)
        return o->bytes == sizeof *l;
    if (!m->prepared)
        return false;
    switch (o->kind) {
    case ORDER_MEET:
        return !o->bytes;
    case ORDER_RUN:
        return o->bytes <= step_bytes_most(m->plan, l);
    case ORDER_ROWS:
        return o->a && o->a < m->plan->buffers && o->b <= l->rows &&
               o->bytes == (uint64_t)o->b * m->plan->width[o->a] * sizeof(float);
    case ORDER_BACK:
        return !o->bytes &&
               (group ? o->b <= l->kv.pages[o->a] : o->a == GROUP_STATES && o->b <= l->kv.states);
    case ORDER_COPY:
        return group && o->bytes == 2 * (uint64_t)o->b * sizeof(int32_t) && o->b <= l->kv.pages[o->a];
    case ORDER_READ_PAGE:
    case ORDER_WRITE_PAGE:
        return !o->bytes && group && o->b < l->kv.pages[o->a];
    case ORDER_READ_STATE:
    case ORDER_WRITE_STATE:
        return !o->bytes && o->b < l->kv.states;
    default:
        return false;
    }
}

static int order_is_none(struct err *e)
{
    return err_set(e, ERR_DEVICE, "rank 0 sent an order that is none");
}

static int member_take(struct member *m, const struct rank_order *o, struct err *e)
{
    if (o->bytes > m->data_room) {
        uint8_t *more = mem_realloc(m->data, o->bytes, 1);
        if (!more)
            return err_memory(e, "an order of rank 0", o->bytes);
        m->data = more;
        m->data_room = o->bytes;
    }
    return comm_broadcast(m->comm, comm_all(m->comm), m->data, o->bytes, e);
}

static int order_prepare(struct member *m, struct err *e)
{
    struct order_prepare p;
    memcpy(&p, m->data, sizeof p);
    return member_prepare(m, &p, e);
}

static int order_copy(struct member *m, const struct rank_order *o, struct err *e)
{
    const int32_t *pages = (const int32_t *)(const void *)m->data;
    for (uint32_t i = 0; i < 2 * o->b; i++)
        if (pages[i] < 0 || (uint32_t)pages[i] >= m->limit.kv.pages[o->a])
            return order_is_none(e);
    return o->b ? m->device->ops->copy_pages(m->device, o->a, pages, pages + o->b, o->b, e) : 0;
}

/* Pages and states: this rank's part, to or from rank 0. */
static int order_part(struct member *m, const struct rank_order *o, struct err *e)
{
    const struct device_ops *ops = m->device->ops;
    bool page = o->kind == ORDER_READ_PAGE || o->kind == ORDER_WRITE_PAGE;
    uint64_t bytes = page ? m->facts.page_bytes[o->a] : m->facts.state_bytes;
    int32_t number = (int32_t)o->b;
    if (bytes > m->data_room) {
        uint8_t *more = mem_realloc(m->data, bytes, 1);
        if (!more)
            return err_memory(e, "a page", bytes);
        m->data = more;
        m->data_room = bytes;
    }
    bool own = bytes && (page || !m->stage_ranks.me); /* states are the same on all ranks of a stage */
    switch (o->kind) {
    case ORDER_READ_PAGE:
        return own && (ops->read_page(m->device, o->a, number, m->data, e) ||
                       comm_send(m->comm, 0, m->data, bytes, e))
                   ? -1
                   : 0;
    case ORDER_READ_STATE:
        return own && (ops->read_state(m->device, number, m->data, e) ||
                       comm_send(m->comm, 0, m->data, bytes, e))
                   ? -1
                   : 0;
    case ORDER_WRITE_PAGE:
        return bytes && (comm_recv(m->comm, 0, m->data, bytes, e) ||
                         ops->write_page(m->device, o->a, number, m->data, e))
                   ? -1
                   : 0;
    default:
        return bytes && (comm_recv(m->comm, 0, m->data, bytes, e) ||
                         ops->write_state(m->device, number, m->data, e))
                   ? -1
                   : 0;
    }
}

static int order_rows(struct member *m, const struct rank_order *o, struct err *e)
{
    return m->device->ops->write_rows(m->device, o->a, o->b, (const float *)(const void *)m->data, e);
}

static int order_run(struct member *m, const struct rank_order *o, struct err *e)
{
    struct step s;
    if (!team_step_unpack(m->plan, &m->limit, m->data, o->bytes, &s))
        return err_set(e, ERR_DEVICE, "rank 0 sent a step that is none");
    if (team_step_check(m->plan, m->weights, &s, e) || member_run(m, &s, e))
        return -1;
    size_t bytes = (size_t)s.outs * m->shard.plan.out_width * sizeof *m->results;
    bool sends = member_is_last(m) && (!m->stage_ranks.me || shard_cuts_results(m->plan, m->tensor));
    return sends ? comm_send(m->comm, 0, m->results, bytes, e) : 0;
}

static int member_obey(struct member *m, const struct rank_order *o, struct err *e)
{
    switch (o->kind) {
    case ORDER_PREPARE:
        return order_prepare(m, e);
    case ORDER_MEET:
        return member_meet(m, e);
    case ORDER_RUN:
        return order_run(m, o, e);
    case ORDER_ROWS:
        return order_rows(m, o, e);
    case ORDER_BACK:
        return m->device->ops->back(m->device, o->a, o->b, e);
    case ORDER_COPY:
        return order_copy(m, o, e);
    case ORDER_READ_PAGE:
    case ORDER_WRITE_PAGE:
    case ORDER_READ_STATE:
    case ORDER_WRITE_STATE:
        return order_part(m, o, e);
    default:
        return order_is_none(e);
    }
}

/* The answer of a rank to an order, and after ORDER_PREPARE what rank 0 has to know of it. */
static int member_reply(struct member *m, const struct rank_order *o, const struct err *why, struct err *e)
{
    struct answer own = {.code = why->code};
    snprintf(own.text, sizeof own.text, "%.251s", why->text);
    size_t at[COMM_RANKS_MOST + 1];
    for (uint32_t i = 0; i <= m->comm->size; i++)
        at[i] = i * sizeof m->facts;
    if (member_answer(m, &own, NULL, e))
        return -1;
    return o->kind == ORDER_PREPARE ? comm_gather(m->comm, comm_all(m->comm), &m->facts, NULL, at, e) : 0;
}

int member_serve(struct member *m, struct err *e)
{
    struct rank_order o;
    for (;;) {
        struct err why = {0};
        if (comm_broadcast(m->comm, comm_all(m->comm), &o, sizeof o, e))
            return -1;
        if (o.kind == ORDER_END)
            return 0;
        if (!order_is_sound(m, &o)) {
            order_is_none(e);
            comm_abort(m->comm, e->text);
            return -1;
        }
        bool data = o.kind != ORDER_READ_PAGE && o.kind != ORDER_WRITE_PAGE && o.kind != ORDER_READ_STATE &&
                    o.kind != ORDER_WRITE_STATE;
        if (data && o.bytes && member_take(m, &o, e))
            return -1;
        /* others may wait for this rank's part: a failure here ends the team */
        const bool together = o.kind == ORDER_RUN || o.kind == ORDER_MEET || !data;
        if (together && member_obey(m, &o, e)) {
            comm_abort(m->comm, e->text);
            return -1;
        }
        if (o.kind == ORDER_RUN)
            continue;
        if (!together)
            member_obey(m, &o, &why);
        if (member_reply(m, &o, &why, e))
            return -1;
    }
}
