/* Scopes, by the rules of jinja2's compiler. Every block with a scope of its own (loop body, macro, with, set
 * block, ...) is a frame; a name that a frame stores becomes a variable of that frame, which starts with the
 * value of the outer one (alias), with that of the context (resolve), or unset. `if` has no scope, but a name
 * that only some branches store starts with the outer value. Frames lie in functions (the template, macros,
 * recursive loops, the filters of loops); a variable is a slot of its function. */
#include "lang/jinja/jinja_ast.h"

#include <string.h>

struct jfn {
    struct jfn *parent;
    struct jdict *slots; /* (level, name) -> slot: frames side by side share them */
    size_t n;
};

struct jsym_entry {
    struct jstr *name;
    size_t slot;
    enum jload_kind load;
    struct jfn *alias_fn;
    size_t alias_slot;
    bool stored;
};

struct jsym {
    struct jsym *parent;
    struct jfn *fn;
    int level;
    struct jdict *index; /* name -> entry */
    struct jsym_entry *entry;
    size_t n, cap;
};

/* Where the walk that resolves names stands. */
struct jplace {
    struct jsym *sym;
    bool soft, toplevel;  /* soft: inside of an if, where an unknown filter is an error only when reached */
    bool in_loop, in_for; /* in_loop: break is allowed; in_for: `loop` must not be assigned */
};

static struct jfn *jfn_new(struct jrt *rt, struct jfn *parent)
{
    struct jfn *f = jalloc(rt, 1, sizeof *f);
    *f = (struct jfn){.parent = parent, .slots = jdict_new(rt)};
    return f;
}

static struct jsym *jsym_new(struct jrt *rt, struct jsym *parent, struct jfn *fn)
{
    struct jsym *s = jalloc(rt, 1, sizeof *s);
    *s = (struct jsym){
        .parent = parent, .fn = fn, .level = parent ? parent->level + 1 : 0, .index = jdict_new(rt)};
    return s;
}

static struct jsym *jsym_copy(struct jrt *rt, const struct jsym *from)
{
    struct jsym *s = jalloc(rt, 1, sizeof *s);
    *s = *from;
    s->index = jdict_copy(rt, from->index);
    s->entry = jalloc(rt, from->cap, sizeof *s->entry);
    if (from->n)
        memcpy(s->entry, from->entry, from->n * sizeof *s->entry);
    return s;
}

static struct jsym_entry *jsym_own(struct jrt *rt, struct jsym *s, struct jstr *name)
{
    struct jv *at = jdict_get(rt, s->index, jv_str(name));
    return at ? &s->entry[at->i] : NULL;
}

static struct jsym_entry *jsym_find(struct jrt *rt, struct jsym *s, struct jstr *name, struct jsym **where)
{
    for (; s; s = s->parent) {
        struct jsym_entry *e = jsym_own(rt, s, name);
        if (e) {
            *where = s;
            return e;
        }
    }
    return NULL;
}

static size_t jfn_slot(struct jrt *rt, struct jfn *f, int level, struct jstr *name)
{
    struct jv key = jv_pair(rt, jv_int(level), jv_str(name)), *slot = jdict_get(rt, f->slots, key);
    if (slot)
        return (size_t)slot->i;
    if (f->n == UINT16_MAX)
        jfail_limit(rt, "too many variables");
    jdict_set(rt, f->slots, key, jv_int((int64_t)f->n));
    return f->n++;
}

static struct jsym_entry *jsym_define(struct jrt *rt, struct jsym *s, struct jstr *name, enum jload_kind load)
{
    struct jsym_entry *e = jsym_own(rt, s, name);
    if (!e) {
        if (s->n == s->cap) {
            s->cap = s->cap ? s->cap * 2 : 8;
            struct jsym_entry *more = jalloc(rt, s->cap, sizeof *more);
            if (s->n)
                memcpy(more, s->entry, s->n * sizeof *more);
            s->entry = more;
        }
        jdict_set(rt, s->index, jv_str(name), jv_int((int64_t)s->n));
        e = &s->entry[s->n++];
        *e = (struct jsym_entry){.name = name, .slot = jfn_slot(rt, s->fn, s->level, name)};
    }
    e->load = load;
    return e;
}

static void jsym_alias(struct jsym_entry *e, const struct jsym *outer, const struct jsym_entry *target)
{
    e->load = JLOAD_ALIAS;
    e->alias_fn = outer->fn;
    e->alias_slot = target->slot;
}

static void jsym_load(struct jrt *rt, struct jsym *s, struct jstr *name)
{
    struct jsym *where;
    if (!jsym_find(rt, s, name, &where))
        jsym_define(rt, s, name, JLOAD_RESOLVE);
}

static void jsym_store(struct jrt *rt, struct jsym *s, struct jstr *name)
{
    struct jsym_entry *e = jsym_own(rt, s, name), *outer;
    struct jsym *where;
    if (!e) {
        e = jsym_define(rt, s, name, JLOAD_UNDEF);
        if ((outer = jsym_find(rt, s->parent, name, &where)))
            jsym_alias(e, where, outer);
    }
    e->stored = true;
}

static void jsym_param(struct jrt *rt, struct jsym *s, struct jstr *name)
{
    jsym_define(rt, s, name, JLOAD_PARAM)->stored = true;
}

/* After an if: what only branches stored starts with the value from outside. */
static void jsym_merge(struct jrt *rt, struct jsym *s, struct jsym *const *branch, size_t n)
{
    for (size_t b = 0; b < n; b++)
        for (size_t i = 0; i < branch[b]->n; i++) {
            const struct jsym_entry *from = &branch[b]->entry[i];
            struct jsym_entry *own = jsym_own(rt, s, from->name), *outer;
            struct jsym *where;
            bool was_stored = own && own->stored;
            if (!own) {
                own = jsym_define(rt, s, from->name, from->load);
                own->alias_fn = from->alias_fn;
                own->alias_slot = from->alias_slot;
            }
            if (!from->stored || was_stored)
                continue;
            own->stored = true;
            if ((outer = jsym_find(rt, s->parent, from->name, &where)))
                jsym_alias(own, where, outer);
            else
                own->load = JLOAD_RESOLVE;
        }
}

/* -- collecting the names of a frame; does not enter frames inside of it */

static void jsym_visit(struct jrt *rt, struct jsym *s, const struct jnode *n);

static void jsym_visit_list(struct jrt *rt, struct jsym *s, const struct jnode *n)
{
    for (; n; n = n->next)
        jsym_visit(rt, s, n);
}

static void jsym_visit_if(struct jrt *rt, struct jsym *s, const struct jnode *n)
{
    jsym_visit(rt, s, n->a);
    struct jsym *branch[3];
    const struct jnode *body[3] = {n->body, n->list, n->other};
    for (int i = 0; i < 3; i++) {
        branch[i] = jsym_copy(rt, s);
        jsym_visit_list(rt, branch[i], body[i]);
    }
    jsym_merge(rt, s, branch, 3);
}

static void jsym_visit_target(struct jrt *rt, struct jsym *s, const struct jnode *n, bool param)
{
    if (n->kind == JN_TUPLE) {
        jdeeper(rt);
        for (const struct jnode *item = n->list; item; item = item->next)
            jsym_visit_target(rt, s, item, param);
        jshallower(rt);
    } else if (n->kind == JN_NSREF) {
        jsym_load(rt, s, n->name);
    } else if (param) {
        jsym_param(rt, s, n->name);
    } else {
        jsym_store(rt, s, n->name);
    }
}

static void jsym_visit_expr(struct jrt *rt, struct jsym *s, const struct jnode *n)
{
    if (n->kind == JN_NAME)
        jsym_load(rt, s, n->name);
    jsym_visit(rt, s, n->a);
    jsym_visit(rt, s, n->b);
    jsym_visit(rt, s, n->c);
    jsym_visit_list(rt, s, n->list);
    if (n->args) {
        jsym_visit_list(rt, s, n->args->pos);
        jsym_visit_list(rt, s, n->args->kw);
        jsym_visit(rt, s, n->args->more);
        jsym_visit(rt, s, n->args->more_kw);
    }
}

static void jsym_visit(struct jrt *rt, struct jsym *s, const struct jnode *n)
{
    if (!n)
        return;
    jcharge(rt, 0);
    jdeeper(rt);
    switch (n->kind) {
    case JN_IF:
        jsym_visit_if(rt, s, n);
        break;
    case JN_FOR:
    case JN_FILTER_BLOCK:
        jsym_visit(rt, s, n->b);
        break;
    case JN_SET:
        jsym_visit(rt, s, n->b);
        jsym_visit_target(rt, s, n->a, false);
        break;
    case JN_SET_BLOCK:
        jsym_visit_target(rt, s, n->a, false);
        break;
    case JN_MACRO:
        jsym_store(rt, s, n->name);
        break;
    case JN_CALL_BLOCK:
    case JN_NO_LOADER:
        jsym_visit(rt, s, n->a);
        break;
    case JN_WITH:
        jsym_visit_list(rt, s, n->list2);
        break;
    case JN_SCOPE:
    case JN_BLOCK:
        break;
    default:
        jsym_visit_expr(rt, s, n);
    }
    jshallower(rt);
}

/* -- resolving */

static struct jref jref_to(struct jrt *rt, const struct jfn *from, const struct jfn *to, size_t slot)
{
    size_t hops = 0;
    for (; from && from != to; from = from->parent)
        hops++;
    if (!from || hops > UINT16_MAX)
        jfail_limit(rt, "functions are nested too deeply");
    return (struct jref){(uint16_t)hops, (uint16_t)slot};
}

static struct jref jplace_ref(struct jrt *rt, const struct jplace *p, struct jstr *name)
{
    struct jsym *where;
    struct jsym_entry *e = jsym_find(rt, p->sym, name, &where);
    if (!e) { /* only the arguments of a set block's filter come here */
        e = jsym_define(rt, p->sym, name, JLOAD_RESOLVE);
        where = p->sym;
    }
    return jref_to(rt, p->sym->fn, where->fn, e->slot);
}

/* What entering the frame does, once all its names are known. */
static struct jframe *jsym_frame(struct jrt *rt, const struct jsym *s)
{
    struct jframe *f = jalloc(rt, 1, sizeof *f);
    f->load = jalloc(rt, s->n, sizeof *f->load);
    for (size_t i = 0; i < s->n; i++) {
        const struct jsym_entry *e = &s->entry[i];
        struct jload *l = &f->load[f->n++];
        *l = (struct jload){.ref = {0, (uint16_t)e->slot}, .kind = e->load, .name = e->name};
        if (e->load == JLOAD_ALIAS)
            l->from = jref_to(rt, s->fn, e->alias_fn, e->alias_slot);
    }
    return f;
}

static void jplace_node(struct jrt *rt, struct jplace p, struct jnode *n);

static void jplace_list(struct jrt *rt, struct jplace p, struct jnode *n)
{
    for (; n; n = n->next)
        jplace_node(rt, p, n);
}

static void jplace_target(struct jrt *rt, const struct jplace *p, struct jnode *n)
{
    rt->line = n->line;
    if (n->kind == JN_TUPLE) {
        jdeeper(rt);
        for (struct jnode *item = n->list; item; item = item->next)
            jplace_target(rt, p, item);
        jshallower(rt);
        return;
    }
    if (n->kind == JN_NAME && p->in_for && jstr_is(n->name, "loop"))
        jfail(rt, "Can't assign to special loop variable in for-loop target");
    n->ref = jplace_ref(rt, p, n->name);
}

static struct jplace jplace_inner(struct jrt *rt, const struct jplace *p, struct jfn *fn)
{
    return (struct jplace){.sym = jsym_new(rt, p->sym, fn), .in_loop = p->in_loop, .in_for = p->in_for};
}

static struct jnode *jnode_copy_target(struct jrt *rt, const struct jnode *n)
{
    struct jnode *r = jalloc(rt, 1, sizeof *r);
    *r = *n;
    r->next = r->list = NULL;
    struct jnode **tail = &r->list;
    jdeeper(rt);
    for (const struct jnode *item = n->list; item; item = item->next)
        tail = jnode_append(tail, jnode_copy_target(rt, item));
    jshallower(rt);
    return r;
}

/* The filter of a loop is a function of its own, with its own copy of the target. */
static void jplace_for_test(struct jrt *rt, const struct jplace *p, struct jnode *n)
{
    struct jfn *fn = jfn_new(rt, p->sym->fn);
    struct jplace test = jplace_inner(rt, p, fn);
    n->list = jnode_copy_target(rt, n->a);
    jsym_visit_target(rt, test.sym, n->list, true);
    jsym_visit(rt, test.sym, n->c);
    test.in_for = true;
    jplace_target(rt, &test, n->list);
    jplace_node(rt, test, n->c);
    n->test_frame = jsym_frame(rt, test.sym);
    n->test_slots = fn->n;
}

static void jplace_for(struct jrt *rt, const struct jplace *p, struct jnode *n)
{
    struct jfn *fn = n->recursive ? jfn_new(rt, p->sym->fn) : p->sym->fn;
    struct jplace body = jplace_inner(rt, p, fn), other = jplace_inner(rt, p, fn);
    bool extended = n->recursive || (n->uses & JUSES_LOOP);
    if (n->c)
        jplace_for_test(rt, p, n);
    jplace_node(rt, *p, n->b);
    if (extended)
        jsym_param(rt, body.sym, jstr_lit(rt, "loop"));
    jsym_visit_target(rt, body.sym, n->a, true);
    jsym_visit_list(rt, body.sym, n->body);
    if (extended)
        n->special[0] = jplace_ref(rt, &body, jstr_lit(rt, "loop"));
    n->uses = extended;
    body.in_loop = body.in_for = other.in_for = true;
    jplace_target(rt, &body, n->a);
    jplace_list(rt, body, n->body);
    n->frame = jsym_frame(rt, body.sym);
    other.in_loop = p->in_loop && !n->recursive;
    jsym_visit_list(rt, other.sym, n->other);
    jplace_list(rt, other, n->other);
    n->other_frame = jsym_frame(rt, other.sym);
    if (n->recursive)
        n->slots = fn->n;
}

static void jplace_macro(struct jrt *rt, const struct jplace *p, struct jnode *n)
{
    static const char *const special[] = {"loop", "caller", "kwargs", "varargs"};
    struct jfn *fn = jfn_new(rt, p->sym->fn);
    struct jplace in = jplace_inner(rt, p, fn);
    in.in_loop = false;
    size_t defaults = 0;
    for (struct jnode *d = n->list2; d; d = d->next)
        defaults++;
    size_t i = 0;
    for (struct jnode *param = n->list; param; param = param->next, i++) {
        jsym_param(rt, in.sym, param->name);
        for (int k = 1; k < 4; k++)
            if (jstr_is(param->name, special[k])) {
                if (k == 1 && (n->uses & JUSES_CALLER) && i + defaults < n->count)
                    jfail(rt, "When defining macros or call blocks the special \"caller\" argument must be "
                              "omitted or "
                              "be given a default.");
                if (k > 1)
                    n->uses &= (uint8_t) ~(1u << k);
            }
    }
    for (int k = 1; k < 4; k++)
        if (n->uses & 1u << k) {
            struct jstr *name = jstr_lit(rt, special[k]);
            jsym_param(rt, in.sym, name);
            n->special[k] = jplace_ref(rt, &in, name);
        }
    jsym_visit_list(rt, in.sym, n->list2);
    jsym_visit_list(rt, in.sym, n->body);
    for (struct jnode *param = n->list; param; param = param->next)
        param->ref = jplace_ref(rt, &in, param->name);
    jplace_list(rt, in, n->list2);
    jplace_list(rt, in, n->body);
    n->frame = jsym_frame(rt, in.sym);
    n->slots = fn->n;
}

/* A frame in the same function: set block, filter block, with, autoescape. */
static void jplace_scope(struct jrt *rt, const struct jplace *p, struct jnode *n)
{
    struct jplace in = jplace_inner(rt, p, p->sym->fn);
    if (n->kind == JN_WITH) {
        jplace_list(rt, *p, n->list2);
        for (struct jnode *t = n->list; t; t = t->next)
            jsym_visit_target(rt, in.sym, t, true);
    }
    jsym_visit_list(rt, in.sym, n->body);
    if (n->kind != JN_WITH)
        jsym_visit(rt, in.sym, n->b);
    for (struct jnode *t = n->kind == JN_WITH ? n->list : NULL; t; t = t->next)
        jplace_target(rt, &(struct jplace){.sym = in.sym}, t);
    if (n->kind == JN_SCOPE)
        jplace_node(rt, *p, n->a);
    jplace_list(rt, in, n->body);
    if (n->kind != JN_WITH && n->b)
        jplace_node(rt, in, n->b);
    n->frame = jsym_frame(rt, in.sym);
    if (n->kind == JN_SET_BLOCK) {
        n->toplevel = p->toplevel;
        jplace_target(rt, p, n->a);
    }
}

static void jplace_root(struct jrt *rt, struct jnode *n, bool toplevel)
{
    struct jfn *fn = jfn_new(rt, NULL);
    struct jplace p = {.sym = jsym_new(rt, NULL, fn), .toplevel = toplevel};
    jsym_visit_list(rt, p.sym, n->body);
    jplace_list(rt, p, n->body);
    n->frame = jsym_frame(rt, p.sym);
    n->slots = fn->n;
}

static void jplace_expr(struct jrt *rt, struct jplace p, struct jnode *n)
{
    if (n->kind == JN_NAME)
        n->ref = jplace_ref(rt, &p, n->name);
    if (n->kind == JN_FILTER || n->kind == JN_TEST) {
        bool filter = n->kind == JN_FILTER;
        n->func = filter ? jfilter_find(n->name->s, n->name->n) : jtest_find(n->name->s, n->name->n);
        rt->line = n->line;
        if (!n->func && !p.soft)
            jfail(rt, "No %s named '%s'.", filter ? "filter" : "test", jstr_c(rt, n->name));
    }
    if (n->kind == JN_COND)
        p.soft = true;
    jplace_node(rt, p, n->a);
    jplace_node(rt, p, n->b);
    jplace_node(rt, p, n->c);
    jplace_list(rt, p, n->list);
    if (n->args) {
        jplace_list(rt, p, n->args->pos);
        jplace_list(rt, p, n->args->kw);
        jplace_node(rt, p, n->args->more);
        jplace_node(rt, p, n->args->more_kw);
    }
}

static void jplace_node(struct jrt *rt, struct jplace p, struct jnode *n)
{
    if (!n)
        return;
    jcharge(rt, 0);
    jdeeper(rt);
    rt->line = n->line;
    switch (n->kind) {
    case JN_FOR:
        jplace_for(rt, &p, n);
        break;
    case JN_MACRO:
        n->toplevel = p.toplevel;
        n->ref = jplace_ref(rt, &p, n->name);
        jplace_macro(rt, &p, n);
        break;
    case JN_CALL_BLOCK:
        jplace_node(rt, p, n->a);
        jplace_macro(rt, &p, n);
        break;
    case JN_SET:
        jplace_node(rt, p, n->b);
        n->toplevel = p.toplevel;
        jplace_target(rt, &p, n->a);
        break;
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_WITH:
    case JN_SCOPE:
        jplace_scope(rt, &p, n);
        break;
    case JN_BLOCK:
        jplace_root(rt, n, false);
        break;
    case JN_IF:
        p.soft = true;
        jplace_node(rt, p, n->a);
        jplace_list(rt, p, n->body);
        jplace_list(rt, p, n->list);
        jplace_list(rt, p, n->other);
        break;
    case JN_BREAK:
    case JN_CONTINUE:
        if (!p.in_loop)
            jfail(rt, "'%s' outside loop", n->kind == JN_BREAK ? "break" : "continue");
        break;
    default:
        jplace_expr(rt, p, n);
    }
    jshallower(rt);
}

void jscope(struct jrt *rt, struct jnode *root)
{
    jplace_root(rt, root, true);
}
