/* Evaluating expressions. */
#include "lang/jinja/jinja_run.h"

#include <stdio.h>
#include <string.h>

struct jv *jenv_at(struct jenv *env, struct jref ref)
{
    for (uint16_t i = 0; i < ref.hops; i++)
        env = env->parent;
    return &env->slot[ref.slot];
}

static struct jv jeval_name(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv v = *jenv_at(env, n->ref);
    return v.kind == J_MISSING ? jv_undef_name(rt, jv_str(n->name)) : v;
}

static struct jlist *jeval_items(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jlist *l = jlist_new(rt, n->count);
    for (const struct jnode *item = n->list; item; item = item->next)
        jlist_add(rt, l, jeval(rt, env, item));
    return l;
}

static struct jv jeval_dict(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jdict *d = jdict_new(rt);
    for (const struct jnode *pair = n->list; pair; pair = pair->next) {
        struct jv key = jeval(rt, env, pair->a);
        jdict_set(rt, d, key, jeval(rt, env, pair->b));
    }
    return jv_dict(d);
}

static struct jv jeval_cond(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    if (jv_true(jeval(rt, env, n->a)))
        return jeval(rt, env, n->b);
    if (n->c)
        return jeval(rt, env, n->c);
    return jv_undef_hint(
        rt, "the inline if-expression on line %d evaluated to false and no else section was defined.",
        n->line);
}

static struct jv jeval_compare(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv left = jeval(rt, env, n->a);
    for (const struct jnode *o = n->list; o; o = o->next) {
        struct jv right = jeval(rt, env, o->a);
        rt->line = n->line;
        if (!jop_compare(rt, (enum jcmp)o->op, left, right))
            return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

static struct jv jeval_concat(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jsb b = {.rt = rt};
    struct jlist *items = jeval_items(rt, env, n);
    for (size_t i = 0; i < items->n; i++)
        jsb_str(&b, jop_str(rt, items->v[i]));
    return jv_str(jsb_done(&b));
}

static struct jv jeval_slice(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv obj = jeval(rt, env, n->a), bound[3];
    size_t i = 0;
    for (const struct jnode *part = n->list; part; part = part->next)
        bound[i++] = jeval(rt, env, part);
    rt->line = n->line;
    return jop_slice(rt, obj, bound);
}

/* -- calls */

static void jeval_more(struct jrt *rt, struct jcall *c, struct jv more)
{
    if (!jiter_can(more))
        jfail(rt, "%s() argument after * must be an iterable, not %s", c->name, jv_type(more));
    struct jlist *l = jiter_list(rt, more);
    struct jv *pos = jalloc(rt, c->npos + l->n + 1, sizeof *pos);
    if (c->npos)
        memcpy(pos, c->pos, c->npos * sizeof *pos);
    if (l->n)
        memcpy(pos + c->npos, l->v, l->n * sizeof *pos);
    c->pos = pos;
    c->npos += l->n;
}

static void jeval_more_kw(struct jrt *rt, struct jcall *c, struct jv more)
{
    if (more.kind != J_DICT)
        jfail(rt, "%s() argument after ** must be a mapping, not %s", c->name, jv_type(more));
    struct jv *kw = jalloc(rt, 2 * (c->nkw + more.d->n) + 2, sizeof *kw);
    if (c->nkw)
        memcpy(kw, c->kw, 2 * c->nkw * sizeof *kw);
    for (size_t i = 0; i < more.d->n; i++) {
        if (more.d->item[i].key.kind != J_STR)
            jfail(rt, "keywords must be strings");
        kw[2 * (c->nkw + i)] = more.d->item[i].key;
        kw[2 * (c->nkw + i) + 1] = more.d->item[i].value;
    }
    c->kw = kw;
    c->nkw += more.d->n;
}

static void jeval_check_kw(struct jrt *rt, const struct jcall *c)
{
    for (size_t i = 0; i < c->nkw; i++)
        for (size_t k = 0; k < i; k++)
            if (jstr_eq(c->kw[2 * i].s, c->kw[2 * k].s))
                jfail(rt, "%s() got multiple values for keyword argument '%s'", c->name,
                      jstr_c(rt, c->kw[2 * i].s));
}

struct jcall jeval_args(struct jrt *rt, struct jenv *env, const struct jargs *a, const char *name)
{
    struct jcall c = {.name = name,
                      .pos = jalloc(rt, a->npos + 1, sizeof *c.pos),
                      .kw = jalloc(rt, 2 * a->nkw + 2, sizeof *c.kw)};
    for (const struct jnode *n = a->pos; n; n = n->next)
        c.pos[c.npos++] = jeval(rt, env, n);
    for (const struct jnode *n = a->kw; n; n = n->next) {
        c.kw[2 * c.nkw] = jv_str(n->name);
        c.kw[2 * c.nkw + 1] = jeval(rt, env, n->a);
        c.nkw++;
    }
    if (a->more)
        jeval_more(rt, &c, jeval(rt, env, a->more));
    if (a->more_kw)
        jeval_more_kw(rt, &c, jeval(rt, env, a->more_kw));
    if (c.nkw > 64)
        jfail(rt, "%s() was given too many keyword arguments", name);
    jeval_check_kw(rt, &c);
    return c;
}

static struct jv jeval_call(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv callee = jeval(rt, env, n->a);
    const char *name = n->a->name ? jstr_c(rt, n->a->name) : "function";
    struct jcall c = jeval_args(rt, env, n->args, name);
    rt->line = n->line;
    struct jv v = jcall_value(rt, callee, &c);
    rt->line = n->line;
    return v;
}

struct jv jeval_filter(struct jrt *rt, struct jenv *env, const struct jnode *n, struct jv block)
{
    struct jv v = !n->a                     ? block
                  : n->a->kind == JN_FILTER ? jeval_filter(rt, env, n->a, block)
                                            : jeval(rt, env, n->a);
    const char *name = n->func ? n->func->name : jstr_c(rt, n->name);
    struct jcall c = jeval_args(rt, env, n->args, name);
    rt->line = n->line;
    if (!n->func)
        jfail(rt, "No filter named '%s' found.", name);
    return jfunc_run(rt, n->func, v, &c);
}

static struct jv jeval_test(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv v = jeval(rt, env, n->a);
    const char *name = n->func ? n->func->name : jstr_c(rt, n->name);
    struct jcall c = jeval_args(rt, env, n->args, name);
    rt->line = n->line;
    if (!n->func)
        jfail(rt, "No test named '%s' found.", name);
    return jfunc_run(rt, n->func, v, &c);
}

static struct jv jeval_logic(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv left = jeval(rt, env, n->a);
    if (n->kind == JN_NOT)
        return jv_bool(!jv_true(left));
    return jv_true(left) == (n->kind == JN_OR) ? left : jeval(rt, env, n->b);
}

/* Operators and subscripts: both sides first, then the operation on the line of the node. */
static struct jv jeval_operator(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv a = jeval(rt, env, n->a), b = n->b ? jeval(rt, env, n->b) : jv_none();
    rt->line = n->line;
    switch (n->kind) {
    case JN_BINARY:
        return jop_binary(rt, (enum jbin)n->op, a, b);
    case JN_ITEM:
        return jop_item(rt, a, b);
    case JN_ATTR:
        return jop_attr(rt, a, n->name);
    default:
        return jop_negate(rt, a, n->kind == JN_NEG);
    }
}

struct jv jeval(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv v;
    if (n->kind == JN_CONST)
        return n->value;
    jcharge(rt, 0);
    if (n->kind == JN_NAME)
        return jeval_name(rt, env, n);
    jdeeper(rt);
    switch (n->kind) {
    case JN_TUPLE:
        v = jv_tuple(jeval_items(rt, env, n));
        break;
    case JN_LIST:
        v = jv_list(jeval_items(rt, env, n));
        break;
    case JN_DICT:
        v = jeval_dict(rt, env, n);
        break;
    case JN_COND:
        v = jeval_cond(rt, env, n);
        break;
    case JN_OR:
    case JN_AND:
    case JN_NOT:
        v = jeval_logic(rt, env, n);
        break;
    case JN_COMPARE:
        v = jeval_compare(rt, env, n);
        break;
    case JN_CONCAT:
        v = jeval_concat(rt, env, n);
        break;
    case JN_SLICE:
        v = jeval_slice(rt, env, n);
        break;
    case JN_CALL:
        v = jeval_call(rt, env, n);
        break;
    case JN_FILTER:
        v = jeval_filter(rt, env, n, jv_none());
        break;
    case JN_TEST:
        v = jeval_test(rt, env, n);
        break;
    default:
        v = jeval_operator(rt, env, n);
    }
    jshallower(rt);
    return v;
}
