/* Statements: output, assignment, branches, loops, macros. */
#include "lang/jinja/jinja_run.h"

#include <stdio.h>
#include <string.h>

static struct jenv *jenv_new(struct jrt *rt, struct jenv *parent, size_t slots)
{
    struct jenv *e = jalloc(rt, 1, sizeof *e);
    *e = (struct jenv){parent, jalloc(rt, slots, sizeof *e->slot)};
    return e;
}

static struct jv jcontext_resolve(struct jrt *rt, struct jstr *name)
{
    struct jv key = jv_str(name), *v = jdict_get(rt, rt->vars, key);
    if (!v)
        v = jdict_get(rt, rt->given, key);
    if (v)
        return *v;
    const struct jfunc *f = jglobal_find(name->s, name->n);
    return f ? (struct jv){.kind = J_FUNC, .func = f} : jv_missing();
}

static void jframe_enter(struct jrt *rt, struct jenv *env, const struct jframe *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct jload *l = &f->load[i];
        struct jv *slot = &env->slot[l->ref.slot];
        if (l->kind == JLOAD_RESOLVE)
            *slot = jcontext_resolve(rt, l->name);
        else if (l->kind == JLOAD_ALIAS)
            *slot = *jenv_at(env, l->from);
        else if (l->kind == JLOAD_UNDEF)
            *slot = jv_missing();
    }
}

static void jframe_leave(struct jenv *env, const struct jframe *f)
{
    for (size_t i = 0; i < f->n; i++)
        env->slot[f->load[i].ref.slot] = jv_missing();
}

/* -- assignment */

static void jassign_attr(struct jrt *rt, struct jenv *env, const struct jnode *n, struct jv v)
{
    struct jv ns = *jenv_at(env, n->ref);
    if (ns.kind != J_NS)
        jfail(rt, "cannot assign attribute on non-namespace object");
    if (n->value.s->n && n->value.s->s[0] == '_')
        jfail(rt, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '%s'.",
              jstr_c(rt, n->value.s));
    jdict_set(rt, ns.d, n->value, v);
}

static void jassign(struct jrt *rt, struct jenv *env, const struct jnode *target, struct jv v, bool toplevel)
{
    if (target->kind == JN_NSREF) {
        jassign_attr(rt, env, target, v);
        return;
    }
    if (target->kind == JN_NAME) {
        *jenv_at(env, target->ref) = v;
        if (toplevel)
            jdict_set(rt, rt->vars, jv_str(target->name), v);
        return;
    }
    if (!jiter_can(v))
        jfail(rt, "cannot unpack non-iterable %s object", jv_type(v));
    struct jlist *l = jv_is_seq(v) ? v.l : jiter_list(rt, v);
    if (l->n < target->count)
        jfail(rt, "not enough values to unpack (expected %zu, got %zu)", target->count, l->n);
    if (l->n > target->count)
        jfail(rt, "too many values to unpack (expected %zu)", target->count);
    size_t i = 0;
    jdeeper(rt);
    for (const struct jnode *item = target->list; item; item = item->next)
        jassign(rt, env, item, l->v[i++], toplevel);
    jshallower(rt);
}

/* Blocks write what a filter or a call gives as it is: jinja2 can join only strings there. */
static void jexec_write(struct jrt *rt, struct jv v)
{
    if (v.kind != J_STR)
        jfail(rt, "a block gave %s, where only a string can be written", jv_type(v));
    jsb_str(rt->out, v.s);
}

/* Output of a body as a string. */
static struct jstr *jexec_capture(struct jrt *rt, struct jenv *env, const struct jnode *body,
                                  enum jflow *flow)
{
    struct jsb b = {.rt = rt}, *outside = rt->out;
    rt->out = &b;
    *flow = jexec(rt, env, body);
    rt->out = outside;
    return jsb_done(&b);
}

static enum jflow jexec_set_block(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    enum jflow flow;
    jframe_enter(rt, env, n->frame);
    struct jv v = jv_str(jexec_capture(rt, env, n->body, &flow));
    if (flow == JFLOW_NEXT) {
        if (n->b)
            v = jeval_filter(rt, env, n->b, v);
        if (n->kind == JN_SET_BLOCK)
            jassign(rt, env, n->a, v, n->toplevel);
        else
            jexec_write(rt, v);
    }
    jframe_leave(env, n->frame);
    return flow;
}

static enum jflow jexec_with(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    /* the values belong to the frame outside, the targets to the one inside */
    jframe_enter(rt, env, n->frame);
    const struct jnode *value = n->list2;
    for (const struct jnode *t = n->list; t; t = t->next, value = value->next)
        jassign(rt, env, t, jeval(rt, env, value), false);
    enum jflow flow = jexec(rt, env, n->body);
    jframe_leave(env, n->frame);
    return flow;
}

static enum jflow jexec_scope(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    if (jv_true(jeval(rt, env, n->a)))
        jfail(rt, "autoescape is not supported: a prompt is not HTML");
    jframe_enter(rt, env, n->frame);
    enum jflow flow = jexec(rt, env, n->body);
    jframe_leave(env, n->frame);
    return flow;
}

/* -- loops */

struct jfor_test {
    const struct jnode *node;
    struct jenv *env;
};

static struct jv jtarget_value(struct jrt *rt, struct jenv *env, const struct jnode *target)
{
    if (target->kind != JN_TUPLE)
        return *jenv_at(env, target->ref);
    struct jlist *l = jlist_new(rt, target->count);
    jdeeper(rt);
    for (const struct jnode *item = target->list; item; item = item->next)
        jlist_add(rt, l, jtarget_value(rt, env, item));
    jshallower(rt);
    return jv_tuple(l);
}

static bool jfor_test_step(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jfor_test *t = it->own;
    const struct jnode *n = t->node;
    struct jv v;
    if (!it->at++)
        jframe_enter(rt, t->env, n->test_frame);
    while (jiter_next(rt, it->from, &v)) {
        jassign(rt, t->env, n->list, v, false);
        if (jv_true(jeval(rt, t->env, n->c))) {
            *out = jtarget_value(rt, t->env, n->list);
            return true;
        }
    }
    return false;
}

size_t jloop_length(struct jrt *rt, struct jloop *l)
{
    if (!l->has_length && !(l->over.kind != J_MISSING && jop_len(l->over, &l->length))) {
        struct jlist *rest = jiter_list(rt, (struct jv){.kind = J_ITER, .it = l->it});
        l->it = jiter_of(rt, jv_list(rest));
        l->length = rest->n + (size_t)(l->index0 + 1) + (l->after.kind != J_MISSING);
    }
    l->has_length = true;
    return l->length;
}

struct jv jloop_peek(struct jrt *rt, struct jloop *l)
{
    if (l->after.kind == J_MISSING && !jiter_next(rt, l->it, &l->after))
        l->after = jv_missing();
    return l->after;
}

static bool jloop_next(struct jrt *rt, struct jloop *l)
{
    struct jv v = jloop_peek(rt, l);
    if (v.kind == J_MISSING)
        return false;
    l->after = jv_missing();
    l->index0++;
    l->before = l->current;
    l->current = v;
    return true;
}

/* The loop itself, in an environment that holds its variables. */
static enum jflow jfor_run(struct jrt *rt, struct jenv *env, const struct jnode *n, struct jloop *l)
{
    bool empty = true;
    enum jflow flow = JFLOW_NEXT;
    while (flow != JFLOW_BREAK && jloop_next(rt, l)) {
        rt->line = n->line;
        jassign(rt, env, n->a, l->current, false);
        if (n->uses)
            *jenv_at(env, n->special[0]) = (struct jv){.kind = J_LOOP, .loop = l};
        jframe_enter(rt, env, n->frame);
        flow = jexec(rt, env, n->body);
        empty = empty && flow != JFLOW_NEXT; /* a turn that was cut short does not count for else */
    }
    jframe_leave(env, n->frame);
    if (!empty || !n->other)
        return JFLOW_NEXT;
    jframe_enter(rt, env, n->other_frame);
    flow = jexec(rt, env, n->other);
    jframe_leave(env, n->other_frame);
    return flow;
}

static struct jloop *jloop_new(struct jrt *rt, struct jenv *outside, const struct jnode *n, struct jv over)
{
    struct jloop *l = jalloc(rt, 1, sizeof *l);
    *l = (struct jloop){.node = n, .env = outside, .over = over, .index0 = -1};
    rt->line = n->line;
    l->it = jiter_of(rt, over);
    if (n->c) {
        struct jfor_test *t = jalloc(rt, 1, sizeof *t);
        *t = (struct jfor_test){n, jenv_new(rt, outside, n->test_slots)};
        l->it = jiter_value(rt, (struct jiter){.step = jfor_test_step, .from = l->it, .own = t}).it;
        l->over = jv_missing();
    }
    return l;
}

static struct jv jfor_recursive(struct jrt *rt, struct jenv *outside, const struct jnode *n, struct jv over,
                                int64_t depth)
{
    struct jsb b = {.rt = rt}, *out = rt->out;
    struct jloop *l = jloop_new(rt, outside, n, over);
    l->depth0 = depth;
    rt->out = &b;
    jdeeper(rt);
    jfor_run(rt, jenv_new(rt, outside, n->slots), n, l);
    jshallower(rt);
    rt->out = out;
    return jv_str(jsb_done(&b));
}

struct jv jloop_call(struct jrt *rt, struct jloop *l, const struct jcall *c)
{
    if (!l->node->recursive)
        jfail(rt, "The loop must have the 'recursive' marker to be called recursively.");
    if (c->npos != 1 || c->nkw)
        jfail(rt, "a loop is called with one argument: what to iterate over");
    return jfor_recursive(rt, l->env, l->node, c->pos[0], l->depth0 + 1);
}

static enum jflow jexec_for(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv over = jeval(rt, env, n->b);
    if (n->recursive) {
        jsb_str(rt->out, jfor_recursive(rt, env, n, over, 0).s);
        return JFLOW_NEXT;
    }
    return jfor_run(rt, env, n, jloop_new(rt, env, n, over));
}

/* -- macros */

static struct jv jcall_kw(const struct jcall *c, const struct jstr *name, bool *used)
{
    for (size_t i = 0; i < c->nkw; i++)
        if (jstr_eq(c->kw[2 * i].s, name)) {
            used[i] = true;
            return c->kw[2 * i + 1];
        }
    return jv_missing();
}

/* Keyword arguments that no parameter took. */
static struct jv jmacro_rest(struct jrt *rt, const struct jmacro *m, const struct jcall *c, const bool *used)
{
    struct jdict *rest = jdict_new(rt);
    for (size_t i = 0; i < c->nkw; i++) {
        if (used[i])
            continue;
        if (!(m->node->uses & JUSES_KWARGS))
            jfail(rt, "macro '%s' takes no keyword argument '%s'",
                  m->node->name ? jstr_c(rt, m->node->name) : "caller", jstr_c(rt, c->kw[2 * i].s));
        jdict_set(rt, rest, c->kw[2 * i], c->kw[2 * i + 1]);
    }
    return jv_dict(rest);
}

/* Arguments to parameters, as jinja2's Macro does it. */
static void jmacro_bind(struct jrt *rt, const struct jmacro *m, struct jenv *env, const struct jcall *c)
{
    const struct jnode *n = m->node;
    bool used[65] = {false}, found_caller = false;
    size_t i = 0;
    for (const struct jnode *p = n->list; p; p = p->next, i++) {
        found_caller = found_caller || jstr_is(p->name, "caller");
        *jenv_at(env, p->ref) = i < c->npos ? c->pos[i] : jcall_kw(c, p->name, used);
    }
    if ((n->uses & JUSES_CALLER) && !found_caller) {
        struct jstr caller = {.s = "caller", .n = 6};
        struct jv v = jcall_kw(c, &caller, used);
        if (!jarg_given(v))
            v = jv_undef_hint(rt, "No caller defined");
        *jenv_at(env, n->special[1]) = v;
    }
    struct jv rest = jmacro_rest(rt, m, c, used);
    if (n->uses & JUSES_KWARGS)
        *jenv_at(env, n->special[2]) = rest;
    if (n->uses & JUSES_VARARGS) {
        struct jlist *more = jlist_new(rt, 0);
        for (size_t k = n->count; k < c->npos; k++)
            jlist_add(rt, more, c->pos[k]);
        *jenv_at(env, n->special[3]) = jv_tuple(more);
    } else if (c->npos > n->count) {
        jfail(rt, "macro '%s' takes not more than %zu argument(s)", n->name ? jstr_c(rt, n->name) : "caller",
              n->count);
    }
}

struct jv jmacro_call(struct jrt *rt, struct jmacro *m, const struct jcall *c)
{
    const struct jnode *n = m->node;
    struct jenv *env = jenv_new(rt, m->env, n->slots);
    jdeeper(rt);
    jmacro_bind(rt, m, env, c);
    jframe_enter(rt, env, n->frame);
    size_t defaults = 0, i = 0;
    for (const struct jnode *d = n->list2; d; d = d->next)
        defaults++;
    const struct jnode *d = n->list2;
    for (const struct jnode *p = n->list; p; p = p->next, i++) {
        bool has_default = i + defaults >= n->count;
        struct jv *slot = jenv_at(env, p->ref);
        if (slot->kind == J_MISSING)
            *slot = has_default ? jeval(rt, env, d)
                                : jv_undef_hint(rt, "parameter '%s' was not provided", jstr_c(rt, p->name));
        if (has_default)
            d = d->next;
    }
    enum jflow flow;
    struct jstr *s = jexec_capture(rt, env, n->body, &flow);
    jshallower(rt);
    return jv_str(s);
}

static struct jv jmacro_new(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jmacro *m = jalloc(rt, 1, sizeof *m);
    *m = (struct jmacro){n, env};
    return (struct jv){.kind = J_MACRO, .macro = m};
}

static void jexec_call_block(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv caller = jmacro_new(rt, env, n);
    struct jcall none = {.name = "generation"};
    if (!n->a) {
        jsb_str(rt->out, jmacro_call(rt, caller.macro, &none).s);
        return;
    }
    struct jv callee = jeval(rt, env, n->a->a);
    struct jcall c = jeval_args(rt, env, n->a->args, n->a->a->name ? jstr_c(rt, n->a->a->name) : "call");
    struct jv *kw = jalloc(rt, 2 * c.nkw + 2, sizeof *kw);
    memcpy(kw, c.kw, 2 * c.nkw * sizeof *kw);
    kw[2 * c.nkw] = jv_lit(rt, "caller");
    kw[2 * c.nkw + 1] = caller;
    c.kw = kw;
    c.nkw++;
    rt->line = n->line;
    jexec_write(rt, jcall_value(rt, callee, &c));
}

/* -- all statements */

static enum jflow jexec_if(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    if (jv_true(jeval(rt, env, n->a)))
        return jexec(rt, env, n->body);
    for (const struct jnode *elif = n->list; elif; elif = elif->next)
        if (jv_true(jeval(rt, env, elif->a)))
            return jexec(rt, env, elif->body);
    return jexec(rt, env, n->other);
}

static enum jflow jexec_block(struct jrt *rt, const struct jnode *n)
{
    struct jenv *env = jenv_new(rt, NULL, n->slots);
    jframe_enter(rt, env, n->frame);
    return jexec(rt, env, n->body);
}

static enum jflow jexec_one(struct jrt *rt, struct jenv *env, const struct jnode *n)
{
    struct jv v;
    switch (n->kind) {
    case JN_OUTPUT:
        for (const struct jnode *item = n->list; item; item = item->next)
            jsb_str(rt->out, jop_soft_str(rt, jeval(rt, env, item)));
        return JFLOW_NEXT;
    case JN_IF:
        return jexec_if(rt, env, n);
    case JN_FOR:
        return jexec_for(rt, env, n);
    case JN_SET:
        v = jeval(rt, env, n->b);
        rt->line = n->line;
        jassign(rt, env, n->a, v, n->toplevel);
        return JFLOW_NEXT;
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
        return jexec_set_block(rt, env, n);
    case JN_MACRO:
        v = jmacro_new(rt, env, n);
        *jenv_at(env, n->ref) = v;
        if (n->toplevel)
            jdict_set(rt, rt->vars, jv_str(n->name), v);
        return JFLOW_NEXT;
    case JN_CALL_BLOCK:
        jexec_call_block(rt, env, n);
        return JFLOW_NEXT;
    case JN_WITH:
        return jexec_with(rt, env, n);
    case JN_SCOPE:
        return jexec_scope(rt, env, n);
    case JN_BLOCK:
        return jexec_block(rt, n);
    case JN_BREAK:
        return JFLOW_BREAK;
    case JN_CONTINUE:
        return JFLOW_CONTINUE;
    default:
        jfail(rt, "no loader for this environment specified: a chat template cannot include, import or "
                  "extend another");
    }
}

enum jflow jexec(struct jrt *rt, struct jenv *env, const struct jnode *list)
{
    jdeeper(rt);
    enum jflow flow = JFLOW_NEXT;
    for (const struct jnode *n = list; n && flow == JFLOW_NEXT; n = n->next) {
        jcharge(rt, 0);
        rt->line = n->line;
        flow = jexec_one(rt, env, n);
    }
    jshallower(rt);
    return flow;
}
