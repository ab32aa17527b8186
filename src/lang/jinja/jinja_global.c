/* The global functions of a template: range, namespace, dict, cycler, joiner, raise_exception, strftime_now. */
#include "lang/jinja/jinja_call.h"
#include "lang/jinja/jinja_op.h"

#include <string.h>
#include <time.h>

#define RANGE_MAX 100000 /* jinja2's sandbox has the same bound */

static struct jv jglobal_range(struct jrt *rt, struct jv self, struct jv *arg)
{
    (void)self;
    struct jrange *r = jalloc(rt, 1, sizeof *r);
    bool one = arg[1].kind == J_MISSING;
    r->start = one ? 0 : jarg_int(rt, arg[0], 0, "an argument of range()");
    r->stop = jarg_int(rt, one ? arg[0] : arg[1], 0, "an argument of range()");
    r->step = jarg_int(rt, arg[2], 1, "an argument of range()");
    if (!r->step)
        jfail(rt, "range() arg 3 must not be zero");
    bool up = r->step > 0;
    uint64_t pace = up ? (uint64_t)r->step : 0 - (uint64_t)r->step;
    uint64_t span = up ? (uint64_t)r->stop - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)r->stop;
    uint64_t n = (up ? r->start < r->stop : r->start > r->stop) ? (span - 1) / pace + 1 : 0;
    if (n > RANGE_MAX)
        jfail(rt, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", RANGE_MAX);
    r->n = (size_t)n;
    return (struct jv){.kind = J_RANGE, .range = r};
}

/* dict(mapping or pairs, **keywords) */
static struct jdict *jglobal_fields(struct jrt *rt, const struct jcall *c)
{
    struct jdict *d = jdict_new(rt);
    if (c->npos > 1)
        jfail(rt, "%s expected at most 1 argument, got %zu", c->name, c->npos);
    if (c->npos && (c->pos[0].kind == J_DICT || c->pos[0].kind == J_NS)) {
        d = jdict_copy(rt, c->pos[0].d);
    } else if (c->npos) {
        struct jiter *it = jiter_of(rt, c->pos[0]);
        for (struct jv item; jiter_next(rt, it, &item);) {
            struct jlist *pair = jiter_can(item) ? jiter_list(rt, item) : NULL;
            if (!pair || pair->n != 2)
                jfail(rt, "dictionary update sequence elements must be pairs");
            jdict_set(rt, d, pair->v[0], pair->v[1]);
        }
    }
    for (size_t i = 0; i < c->nkw; i++)
        jdict_set(rt, d, c->kw[2 * i], c->kw[2 * i + 1]);
    return d;
}

static struct jv jglobal_dict(struct jrt *rt, struct jv self, const struct jcall *c)
{
    (void)self;
    return jv_dict(jglobal_fields(rt, c));
}

static struct jv jglobal_namespace(struct jrt *rt, struct jv self, const struct jcall *c)
{
    (void)self;
    struct jdict *d = jglobal_fields(rt, c);
    for (size_t i = 0; i < d->n; i++)
        if (d->item[i].key.kind == J_STR && d->item[i].key.s->n && d->item[i].key.s->s[0] == '_')
            jfail(rt,
                  "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%s'.",
                  jstr_c(rt, d->item[i].key.s));
    return (struct jv){.kind = J_NS, .d = d};
}

static struct jv jglobal_cycler(struct jrt *rt, struct jv self, const struct jcall *c)
{
    (void)self;
    if (!c->npos || c->nkw)
        jfail(rt, "at least one item has to be provided");
    struct jcycler *y = jalloc(rt, 1, sizeof *y);
    y->items = jlist_new(rt, c->npos);
    for (size_t i = 0; i < c->npos; i++)
        jlist_add(rt, y->items, c->pos[i]);
    return (struct jv){.kind = J_CYCLER, .cycler = y};
}

static struct jv jglobal_joiner(struct jrt *rt, struct jv self, struct jv *arg)
{
    (void)self;
    struct jjoiner *j = jalloc(rt, 1, sizeof *j);
    j->sep = arg[0].kind == J_MISSING ? jv_lit(rt, ", ") : arg[0];
    return (struct jv){.kind = J_JOINER, .joiner = j};
}

static struct jv jglobal_raise(struct jrt *rt, struct jv self, struct jv *arg)
{
    (void)self;
    jfail(rt, "%s", jstr_c(rt, jop_soft_str(rt, arg[0])));
}

static struct jv jglobal_strftime(struct jrt *rt, struct jv self, struct jv *arg)
{
    (void)self;
    struct jstr *format = jarg_str(rt, arg[0], "the format of strftime_now()");
    if (format->n > 1000)
        jfail(rt, "the format of strftime_now() is too long");
    char text[8192], c[1024];
    size_t n = 0;
    for (size_t i = 0; i < format->n; i++) {
        char next = format->s[i] == '%' && i + 1 < format->n ? format->s[i + 1] : 0;
        if (next == 'f') {
            memcpy(c + n, "000000", 6); /* microseconds: the clock is given in seconds */
            n += 6;
            i++;
        } else if (next == 'z' || next == 'Z') {
            i++; /* a naive datetime has no zone */
        } else {
            c[n++] = format->s[i];
            if (format->s[i] == '%' && i + 1 < format->n)
                c[n++] = format->s[++i];
        }
        if (n > sizeof c - 16)
            jfail(rt, "the format of strftime_now() is too long");
    }
    c[n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    n = strftime(text, sizeof text, c, &rt->now);
#pragma GCC diagnostic pop
    return jv_str(jstr_copy(rt, text, n, jstr_any_data(format)));
}

static struct jv jglobal_lipsum(struct jrt *rt, struct jv self, const struct jcall *c)
{
    (void)self;
    (void)c;
    jfail(rt, "lipsum() is random text and has no place in a prompt");
}

static const struct jfunc jglobals[] = {
    {"range", "start|stop step", {.bound = jglobal_range}},
    {"dict", NULL, {.call = jglobal_dict}},
    {"namespace", NULL, {.call = jglobal_namespace}},
    {"cycler", NULL, {.call = jglobal_cycler}},
    {"joiner", "|sep", {.bound = jglobal_joiner}},
    {"raise_exception", "message", {.bound = jglobal_raise}},
    {"strftime_now", "format", {.bound = jglobal_strftime}},
    {"lipsum", NULL, {.call = jglobal_lipsum}},
};

const struct jfunc *jglobal_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof jglobals / sizeof jglobals[0]; i++)
        if (strlen(jglobals[i].name) == n && !memcmp(jglobals[i].name, name, n))
            return &jglobals[i];
    return NULL;
}
