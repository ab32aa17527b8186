/* From trees to states. States are written from the end: each piece is given its successor, and returns where
 * it starts. Code points become ranges of UTF-8 bytes here. */
#include "lang/grammar/grammar.h"

#include "base/utf8.h"

#include <string.h>

enum { EMIT_WRITE_OUT = 24 }; /* a repetition of at most this many states is unrolled, a larger one counted */

struct emit {
    struct grammar *g;
    struct program *p;
    bool flat;
    uint32_t rule; /* being written */
    struct todo {
        uint32_t rule;
        const struct gram *body;
    } * todo; /* counted bodies that wait */
    uint32_t todos, todo_cap;
    struct pedge *lead; /* of the class being written */
    uint32_t leads, lead_cap;
};

/* Room for one more in a growing array; false and the grammar's error when there is none. */
static bool emit_room(struct emit *m, void **at, uint32_t n, uint32_t *cap, uint32_t most, size_t size)
{
    if (m->g->err.code)
        return false;
    if (n < *cap)
        return true;
    if (n >= most) {
        grammar_fail(m->g, ERR_DATA, "the constraint is too large: more than %u states or edges", most);
        return false;
    }
    uint32_t grown = *cap ? *cap * 2 : 256;
    void *p = mem_realloc(*at, grown, size);
    if (!p) {
        err_memory(&m->g->err, "a grammar's program", grown * size);
        return false;
    }
    *at = p;
    *cap = grown;
    return true;
}

/* State 0 is the dead end, which is also what a failed call gives. */
static uint32_t emit_state(struct emit *m, enum grammar_op op, uint32_t a, uint32_t b)
{
    struct program *p = m->p;
    if (!emit_room(m, (void **)&p->states, p->state_count, &p->state_cap, PROGRAM_STATES, sizeof *p->states))
        return 0;
    p->states[p->state_count] = (struct pstate){.op = op, .a = a, .b = b, .rule = m->rule};
    return p->state_count++;
}

static void emit_edge(struct emit *m, uint8_t lo, uint8_t hi, uint32_t to)
{
    struct program *p = m->p;
    if (emit_room(m, (void **)&p->edges, p->edge_count, &p->edge_cap, PROGRAM_EDGES, sizeof *p->edges))
        p->edges[p->edge_count++] = (struct pedge){lo, hi, to};
}

static uint32_t emit_byte(struct emit *m, uint8_t lo, uint8_t hi, uint32_t to)
{
    uint32_t s = emit_state(m, OP_BYTES, m->p->edge_count, 1);
    emit_edge(m, lo, hi, to);
    return s;
}

static uint32_t emit_new_rule(struct emit *m, struct prule r)
{
    struct program *p = m->p;
    if (!emit_room(m, (void **)&p->rules, p->rule_count, &p->rule_cap, PROGRAM_STATES, sizeof *p->rules))
        return 0;
    p->rules[p->rule_count] = r;
    return p->rule_count++;
}

static void emit_lead(struct emit *m, uint8_t lo, uint8_t hi, uint32_t to)
{
    if (emit_room(m, (void **)&m->lead, m->leads, &m->lead_cap, PROGRAM_EDGES, sizeof *m->lead))
        m->lead[m->leads++] = (struct pedge){lo, hi, to};
}

/* One range whose UTF-8 forms differ, byte by byte, in independent ranges. tail[k]: any k continuation bytes. */
static void emit_sequence(struct emit *m, uint32_t lo, uint32_t hi, uint32_t *tail)
{
    char a[4], b[4];
    size_t n = utf8_put(lo, a);
    utf8_put(hi, b);
    uint32_t to = tail[0];
    bool whole = true;
    for (size_t i = n - 1, k = 1; i > 0; i--, k++) {
        uint8_t x = (uint8_t)a[i], y = (uint8_t)b[i];
        whole = whole && x == 0x80 && y == 0xbf;
        if (whole && tail[k])
            to = tail[k];
        else
            to = emit_byte(m, x, y, to);
        if (whole)
            tail[k] = to;
    }
    emit_lead(m, (uint8_t)a[0], (uint8_t)b[0], to);
}

static void emit_range(struct emit *m, uint32_t lo, uint32_t hi, uint32_t *tail)
{
    static const uint32_t cuts[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts && lo <= hi; c++) {
        if (lo > cuts[c])
            continue;
        uint32_t end = hi < cuts[c] ? hi : cuts[c];
        if (cuts[c] != 0xdfff) /* surrogates are no characters */
            while (lo <= end) {
                uint32_t to = end;
                /* Cut until lo and `to` agree above the lowest byte in which they differ, and span it. */
                for (uint32_t bits = 6; lo > 0x7f && bits <= 18; bits += 6) {
                    uint32_t low = (1u << bits) - 1;
                    if ((lo & ~low) == (to & ~low))
                        break;
                    if (lo & low)
                        to = lo | low;
                    else if ((to & low) != low)
                        to = (to & ~low) - 1;
                }
                emit_sequence(m, lo, to, tail);
                lo = to + 1;
            }
        else if (lo <= end)
            lo = end + 1;
    }
}

static bool class_has(const struct gram *n, uint32_t cp)
{
    for (uint32_t i = 0; i < n->n; i++)
        if (cp >= n->ranges[i].lo && cp <= n->ranges[i].hi)
            return true;
    return false;
}

/* The characters of a class that JSON wants escaped, each in its shortest form. */
static void emit_escapes(struct emit *m, const struct gram *n, uint32_t next)
{
    static const char control[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
    uint32_t hex[2] = {0, 0}; /* after "\u000", "\u001" */
    for (uint32_t high = 0; high < 2; high++) {
        uint32_t edge = m->p->edge_count, count = 0;
        for (uint32_t low = 0; low < 16; low++) {
            uint32_t cp = high * 16 + low;
            if (class_has(n, cp) && !(cp && strchr("\b\f\n\r\t", (int)cp))) {
                uint8_t digit = (uint8_t) "0123456789abcdef"[low];
                emit_edge(m, digit, digit, next);
                count++;
            }
        }
        if (count)
            hex[high] = emit_state(m, OP_BYTES, edge, count);
    }
    uint32_t four = 0;
    if (hex[0] || hex[1]) {
        uint32_t edge = m->p->edge_count;
        for (uint32_t high = 0; high < 2; high++)
            if (hex[high])
                emit_edge(m, (uint8_t)('0' + high), (uint8_t)('0' + high), hex[high]);
        uint32_t s = emit_state(m, OP_BYTES, edge, m->p->edge_count - edge);
        four = emit_byte(m, '0', '0', emit_byte(m, '0', '0', s));
    }
    uint32_t edge = m->p->edge_count;
    for (size_t i = 0; control[i]; i++)
        if (class_has(n, (uint8_t)control[i]))
            emit_edge(m, (uint8_t)letter[i], (uint8_t)letter[i], next);
    if (four)
        emit_edge(m, 'u', 'u', four);
    if (m->p->edge_count > edge)
        emit_lead(m, '\\', '\\', emit_state(m, OP_BYTES, edge, m->p->edge_count - edge));
}

static uint32_t emit_class(struct emit *m, const struct gram *n, uint32_t next)
{
    static const struct range raw[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    uint32_t tail[4] = {next, 0, 0, 0};
    m->leads = 0;
    for (uint32_t i = 0; i < n->n; i++) {
        struct range r = n->ranges[i];
        if (!n->quoted) {
            emit_range(m, r.lo, r.hi, tail);
            continue;
        }
        for (size_t k = 0; k < sizeof raw / sizeof *raw; k++) {
            uint32_t lo = r.lo > raw[k].lo ? r.lo : raw[k].lo, hi = r.hi < raw[k].hi ? r.hi : raw[k].hi;
            if (lo <= hi)
                emit_range(m, lo, hi, tail);
        }
    }
    if (n->quoted)
        emit_escapes(m, n, next);
    uint32_t edge = m->p->edge_count;
    for (uint32_t i = 0; i < m->leads; i++)
        emit_edge(m, m->lead[i].lo, m->lead[i].hi, m->lead[i].to);
    return m->leads ? emit_state(m, OP_BYTES, edge, m->leads) : 0;
}

static uint32_t emit_dfa(struct emit *m, const struct dfa *d, uint32_t next)
{
    /* Two states for each: a split to `next` (or the bytes again) and the bytes; both exist before the edges. */
    uint32_t first = m->p->state_count;
    for (uint32_t i = 1; i < d->n; i++) {
        uint32_t bytes = first + 2 * (i - 1) + 1;
        if (!emit_state(m, OP_SPLIT, bytes, d->accept[i] ? next : bytes))
            return 0;
        if (!emit_state(m, OP_BYTES, 0, 0))
            return 0;
    }
    for (uint32_t i = 1; i < d->n; i++) {
        uint32_t edge = m->p->edge_count;
        for (uint32_t c = 0; c < 256;) {
            uint32_t to = dfa_next(d, i, c), end = c;
            while (end < 255 && dfa_next(d, i, end + 1) == to)
                end++;
            if (to)
                emit_edge(m, (uint8_t)c, (uint8_t)end, first + 2 * (to - 1));
            c = end + 1;
        }
        struct pstate *s = &m->p->states[first + 2 * (i - 1) + 1];
        s->a = edge;
        s->b = m->p->edge_count - edge;
    }
    return first;
}

/* About how many states a tree becomes, up to a ceiling. */
static uint32_t emit_cost(const struct gram *n)
{
    uint32_t cost = 0;
    switch (n->kind) {
    case GRAM_BYTES:
        return n->n < 1000 ? n->n : 1000;
    case GRAM_CLASS:
        return n->n && n->ranges[n->n - 1].hi > 0x7f ? 8 : 1;
    case GRAM_SEQ:
    case GRAM_ALT:
        for (uint32_t i = 0; i < n->n && cost < 1000; i++)
            cost += emit_cost(n->kids[i]) + 1;
        return cost;
    case GRAM_REP: {
        uint32_t times = n->max == GRAMMAR_MOST ? n->min + 1 : n->max;
        return times > 1000 ? 1000 : times * emit_cost(n->kids[0]);
    }
    case GRAM_DFA:
        return n->dfa->n;
    case GRAM_CALL:
        return 1;
    case GRAM_FAIL:
        break;
    }
    return 1;
}

static uint32_t emit_node(struct emit *m, const struct gram *n, uint32_t next);

/* Repetitions are states of their own where they are few, or have no number to keep. */
static uint32_t emit_rep(struct emit *m, const struct gram *n, uint32_t next)
{
    const struct gram *kid = n->kids[0];
    uint32_t times = n->max == GRAMMAR_MOST ? n->min : n->max;
    if (n->max == 0)
        return next;
    if (!m->flat && times > 1 && (times > EMIT_WRITE_OUT || times * emit_cost(kid) > EMIT_WRITE_OUT)) {
        uint32_t rule = emit_new_rule(m, (struct prule){.counted = true, .min = n->min, .max = n->max});
        if (!emit_room(m, (void **)&m->todo, m->todos, &m->todo_cap, PROGRAM_STATES, sizeof *m->todo))
            return 0;
        m->todo[m->todos++] = (struct todo){rule, kid};
        return emit_state(m, OP_CALL, rule, next);
    }
    uint32_t at = next;
    if (n->max == GRAMMAR_MOST) {
        uint32_t loop = emit_state(m, OP_SPLIT, next, next);
        uint32_t body = emit_node(m, kid, loop);
        if (m->g->err.code)
            return 0;
        m->p->states[loop].a = body;
        at = loop;
        if (n->min == 1)
            return body;
    } else
        for (uint32_t i = n->min; i < n->max && !m->g->err.code; i++)
            at = emit_state(m, OP_SPLIT, emit_node(m, kid, at), next);
    for (uint32_t i = 0; i < n->min && !m->g->err.code; i++)
        at = emit_node(m, kid, at);
    return at;
}

static uint32_t emit_node(struct emit *m, const struct gram *n, uint32_t next)
{
    uint32_t at = next;
    if (m->g->err.code)
        return 0;
    switch (n->kind) {
    case GRAM_FAIL:
        return 0;
    case GRAM_BYTES:
        for (uint32_t i = n->n; i-- > 0;)
            at = emit_byte(m, (uint8_t)n->bytes[i], (uint8_t)n->bytes[i], at);
        return at;
    case GRAM_CLASS:
        return emit_class(m, n, next);
    case GRAM_SEQ:
        for (uint32_t i = n->n; i-- > 0;)
            at = emit_node(m, n->kids[i], at);
        return at;
    case GRAM_ALT:
        at = 0;
        for (uint32_t i = n->n; i-- > 0;) {
            uint32_t one = emit_node(m, n->kids[i], next);
            at = at ? emit_state(m, OP_SPLIT, one, at) : one;
        }
        return at;
    case GRAM_REP:
        return emit_rep(m, n, next);
    case GRAM_CALL:
        if (m->flat)
            grammar_fail(m->g, ERR_DATA, "a recursive constraint stands where only a regular one can");
        return emit_state(m, OP_CALL, n->n, next);
    case GRAM_DFA:
        return emit_dfa(m, n->dfa, next);
    }
    return 0;
}

static void emit_rule(struct emit *m, uint32_t rule, const struct gram *body)
{
    m->rule = rule;
    uint32_t end = emit_state(m, m->p->rules[rule].counted ? OP_COUNT : OP_END, rule, 0);
    uint32_t start = emit_node(m, body, end);
    m->p->rules[rule].start = start;
}

int program_emit(struct grammar *g, const struct gram *root, bool flat, struct program *out)
{
    struct emit m = {.g = g, .p = out, .flat = flat};
    uint32_t rules = flat ? 1 : g->count;
    emit_state(&m, OP_BYTES, 0, 0);
    for (uint32_t i = 0; i < rules; i++)
        emit_new_rule(&m, (struct prule){0});
    for (uint32_t i = 0; i < rules && !g->err.code; i++)
        emit_rule(&m, i, flat ? root : g->rules[i]);
    while (m.todos && !g->err.code) {
        struct todo t = m.todo[--m.todos];
        emit_rule(&m, t.rule, t.body);
    }
    mem_free(m.todo);
    mem_free(m.lead);
    return g->err.code ? -1 : 0;
}
