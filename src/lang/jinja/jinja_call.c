/* Calls: binding arguments to parameters, and what can be called. Also iteration over every kind of value. */
#include "lang/jinja/jinja_call.h"

#include "base/size.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_run.h"

#include <string.h>

/* -- binding */

/* The i-th name of a parameter list, its length in *n; NULL behind the last. */
static const char *jparam(const char *params, size_t i, size_t *n)
{
    for (;; i--) {
        params += strspn(params, " |");
        if (!*params)
            return NULL;
        *n = strcspn(params, " |");
        if (!i)
            return params;
        params += *n;
    }
}

/* How many parameters must be given: those before '|', or all. */
static size_t jparam_required(const char *params)
{
    const char *bar = strchr(params, '|'), *end = bar ? bar : params + strlen(params);
    size_t count = 0;
    for (const char *p = params; p < end;) {
        p += strspn(p, " ");
        size_t n = strcspn(p, " |");
        count += n > 0;
        p += n;
    }
    return count;
}

static size_t jparam_find(const char *params, const struct jstr *name)
{
    const char *p;
    size_t n;
    for (size_t i = 0; (p = jparam(params, i, &n)); i++)
        if (n == name->n && !memcmp(p, name->s, n))
            return i;
    return SIZE_MAX;
}

struct jv jfunc_run(struct jrt *rt, const struct jfunc *f, struct jv self, const struct jcall *c)
{
    struct jv arg[JARGS_MAX] = {{0}};
    size_t count = 0, n = 0;
    jcharge(rt, 0);
    if (!f->params)
        return f->call(rt, self, c);
    while (jparam(f->params, count, &n))
        count++;
    if (c->npos > count)
        jfail(rt, "%s() takes at most %zu argument(s) (%zu given)", f->name, count, c->npos);
    for (size_t i = 0; i < c->npos; i++)
        arg[i] = c->pos[i];
    for (size_t i = 0; i < c->nkw; i++) {
        size_t at = jparam_find(f->params, c->kw[2 * i].s);
        if (at == SIZE_MAX)
            jfail(rt, "%s() got an unexpected keyword argument '%s'", f->name, jstr_c(rt, c->kw[2 * i].s));
        if (arg[at].kind != J_MISSING)
            jfail(rt, "%s() got multiple values for argument '%s'", f->name, jstr_c(rt, c->kw[2 * i].s));
        arg[at] = c->kw[2 * i + 1];
    }
    size_t required = jparam_required(f->params);
    for (size_t i = 0; i < required; i++)
        if (arg[i].kind == J_MISSING) {
            const char *name = jparam(f->params, i, &n);
            jfail(rt, "%s() missing 1 required positional argument: '%.*s'", f->name, (int)n, name);
        }
    return f->bound(rt, self, arg);
}

static struct jv jjoiner_call(struct jjoiner *j, struct jrt *rt)
{
    if (j->used)
        return j->sep;
    j->used = true;
    return jv_lit(rt, "");
}

struct jv jcall_value(struct jrt *rt, struct jv callee, const struct jcall *c)
{
    switch (callee.kind) {
    case J_MACRO:
        return jmacro_call(rt, callee.macro, c);
    case J_FUNC:
        return jfunc_run(rt, callee.func, jv_missing(), c);
    case J_METHOD:
        return jfunc_run(rt, callee.method->func, callee.method->self, c);
    case J_LOOP:
        return jloop_call(rt, callee.loop, c);
    case J_JOINER:
        if (c->npos || c->nkw)
            jfail(rt, "a joiner takes no arguments");
        return jjoiner_call(callee.joiner, rt);
    case J_UNDEF:
        jfail_undef(rt, callee);
    default:
        jfail(rt, "'%s' object is not callable", jv_type(callee));
    }
}

/* -- arguments */

bool jarg_given(struct jv v)
{
    return v.kind != J_MISSING && v.kind != J_NONE;
}

int64_t jarg_int(struct jrt *rt, struct jv v, int64_t otherwise, const char *what)
{
    if (v.kind == J_MISSING)
        return otherwise;
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    if (!jv_is_int(v))
        jfail(rt, "%s must be an integer, not %s", what, jv_type(v));
    return jv_as_int(v);
}

struct jstr *jarg_str(struct jrt *rt, struct jv v, const char *what)
{
    if (v.kind != J_STR)
        jfail(rt, "%s must be str, not %s", what, jv_type(v));
    return v.s;
}

/* -- iteration */

struct jv jiter_value(struct jrt *rt, struct jiter it)
{
    struct jiter *p = jalloc(rt, 1, sizeof *p);
    *p = it;
    return (struct jv){.kind = J_ITER, .it = p};
}

static bool jiter_step_list(struct jrt *rt, struct jiter *it, struct jv *out)
{
    (void)rt;
    if (it->at >= it->v.l->n)
        return false;
    *out = it->v.l->v[it->at++];
    return true;
}

static bool jiter_step_str(struct jrt *rt, struct jiter *it, struct jv *out)
{
    const struct jstr *s = it->v.s;
    if (it->at >= s->n)
        return false;
    size_t n = 1;
    while (it->at + n < s->n && ((unsigned char)s->s[it->at + n] & 0xc0) == 0x80)
        n++;
    *out = jv_str(jstr_sub(rt, s, it->at, n));
    out->s->markup = false; /* the characters of a Markup are plain */
    it->at += n;
    return true;
}

static struct jv jview_at(struct jrt *rt, const struct jdict *d, enum jview_kind kind, size_t i)
{
    const struct jpair *p = &d->item[i];
    return kind == JVIEW_KEYS ? p->key : kind == JVIEW_VALUES ? p->value : jv_pair(rt, p->key, p->value);
}

static bool jiter_step_view(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jview *view = it->v.view;
    if (it->at >= view->d->n)
        return false;
    *out = jview_at(rt, view->d, view->kind, it->at++);
    return true;
}

static bool jiter_step_range(struct jrt *rt, struct jiter *it, struct jv *out)
{
    (void)rt;
    if (it->at >= it->v.range->n)
        return false;
    *out = jv_int(it->v.range->start + (int64_t)it->at++ * it->v.range->step);
    return true;
}

/* LoopContext is its own iterator: it gives (item, loop) and advances the loop; templates do not use that. */
bool jiter_can(struct jv v)
{
    switch (v.kind) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_ITER:
        return true;
    default:
        return false;
    }
}

struct jiter *jiter_of(struct jrt *rt, struct jv v)
{
    struct jview *view;
    switch (v.kind) {
    case J_ITER:
        return v.it;
    case J_UNDEF:
        return jiter_value(rt, (struct jiter){.step = jiter_step_list, .v = jv_list(jlist_new(rt, 0))}).it;
    case J_STR:
        return jiter_value(rt, (struct jiter){.step = jiter_step_str, .v = v}).it;
    case J_LIST:
    case J_TUPLE:
        return jiter_value(rt, (struct jiter){.step = jiter_step_list, .v = v}).it;
    case J_DICT:
        view = jalloc(rt, 1, sizeof *view);
        *view = (struct jview){JVIEW_KEYS, v.d};
        return jiter_value(rt, (struct jiter){.step = jiter_step_view, .v = {.kind = J_VIEW, .view = view}})
            .it;
    case J_VIEW:
        return jiter_value(rt, (struct jiter){.step = jiter_step_view, .v = v}).it;
    case J_RANGE:
        return jiter_value(rt, (struct jiter){.step = jiter_step_range, .v = v}).it;
    default:
        jfail(rt, "'%s' object is not iterable", jv_type(v));
    }
}

bool jiter_next(struct jrt *rt, struct jiter *it, struct jv *out)
{
    jcharge(rt, 0);
    return it->step(rt, it, out);
}

struct jlist *jiter_list(struct jrt *rt, struct jv v)
{
    size_t n = 0;
    struct jlist *l = jlist_new(rt, jop_len(v, &n) ? n : 0);
    struct jiter *it = jiter_of(rt, v);
    struct jv item;
    while (jiter_next(rt, it, &item))
        jlist_add(rt, l, item);
    return l;
}

static bool jiter_step_back(struct jrt *rt, struct jiter *it, struct jv *out)
{
    (void)rt;
    if (it->at >= it->v.l->n)
        return false;
    *out = it->v.l->v[it->v.l->n - ++it->at];
    return true;
}

struct jv jiter_reversed(struct jrt *rt, struct jv v, bool strict)
{
    if (v.kind == J_UNDEF || v.kind == J_ITER || !jiter_can(v)) {
        /* Python reverses only what has a length; an undefined value has one, but no items to index */
        if (strict && v.kind != J_UNDEF)
            jfail(rt, "'%s' object is not reversible", jv_type(v));
        if (v.kind != J_ITER && v.kind != J_UNDEF)
            jfail(rt, "argument must be iterable");
    }
    return jiter_value(rt, (struct jiter){.step = jiter_step_back, .v = jv_list(jiter_list(rt, v))});
}
