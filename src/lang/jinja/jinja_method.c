/* Methods and attributes of values, as Python's types have them. What would change a list or a dict is
 * refused, as jinja2's immutable sandbox does. */
#include "lang/jinja/jinja_call.h"
#include "lang/jinja/jinja_method.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_run.h"

#include <math.h>
#include <string.h>

#define METHOD(name) static struct jv name(struct jrt *rt, struct jv self, struct jv *arg)

/* -- list and tuple */

METHOD(jm_list_index)
{
    int64_t n = (int64_t)self.l->n, from = jarg_int(rt, arg[1], 0, "start"),
            to = jarg_int(rt, arg[2], n, "stop");
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? to + n : to > n ? n : to;
    for (int64_t i = from; i < to; i++)
        if (jop_eq(rt, self.l->v[i], arg[0]))
            return jv_int(i);
    jfail(rt, "%s is not in list", jstr_c(rt, jop_repr(rt, arg[0])));
}

METHOD(jm_list_count)
{
    int64_t count = 0;
    for (size_t i = 0; i < self.l->n; i++)
        count += jop_eq(rt, self.l->v[i], arg[0]);
    return jv_int(count);
}

METHOD(jm_copy)
{
    (void)rt;
    (void)arg;
    return self;
}

static const struct jfunc list_methods[] = {
    {"copy", "", {.bound = jm_copy}},
    {"count", "value", {.bound = jm_list_count}},
    {"index", "value|start stop", {.bound = jm_list_index}},
};

/* A range is counted and searched as the list of its items. */
METHOD(jm_range_index)
{
    return jm_list_index(rt, jv_list(jiter_list(rt, self)), arg);
}

METHOD(jm_range_count)
{
    return jm_list_count(rt, jv_list(jiter_list(rt, self)), arg);
}

static const struct jfunc range_methods[] = {
    {"count", "value", {.bound = jm_range_count}},
    {"index", "value", {.bound = jm_range_index}},
};

/* -- dict */

static struct jv view(struct jrt *rt, struct jv self, enum jview_kind kind)
{
    struct jview *w = jalloc(rt, 1, sizeof *w);
    *w = (struct jview){kind, self.d};
    return (struct jv){.kind = J_VIEW, .view = w};
}

METHOD(jm_keys)
{
    (void)arg;
    return view(rt, self, JVIEW_KEYS);
}

METHOD(jm_values)
{
    (void)arg;
    return view(rt, self, JVIEW_VALUES);
}

METHOD(jm_items)
{
    (void)arg;
    return view(rt, self, JVIEW_ITEMS);
}

METHOD(jm_get)
{
    struct jv *v = jdict_get(rt, self.d, arg[0]);
    return v ? *v : arg[1].kind == J_MISSING ? jv_none() : arg[1];
}

METHOD(jm_fromkeys)
{
    (void)self;
    struct jdict *d = jdict_new(rt);
    struct jiter *it = jiter_of(rt, arg[0]);
    for (struct jv key; jiter_next(rt, it, &key);)
        jdict_set(rt, d, key, arg[1].kind == J_MISSING ? jv_none() : arg[1]);
    return jv_dict(d);
}

static const struct jfunc dict_methods[] = {
    {"copy", "", {.bound = jm_copy}},          {"fromkeys", "keys|value", {.bound = jm_fromkeys}},
    {"get", "key|default", {.bound = jm_get}}, {"items", "", {.bound = jm_items}},
    {"keys", "", {.bound = jm_keys}},          {"values", "", {.bound = jm_values}},
};

/* -- numbers */

METHOD(jm_is_integer)
{
    (void)rt;
    (void)arg;
    return jv_bool(isfinite(self.f) && self.f == floor(self.f));
}

METHOD(jm_bit_length)
{
    (void)rt;
    (void)arg;
    int64_t i = jv_as_int(self), bits = 0;
    for (uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i; u; u >>= 1)
        bits++;
    return jv_int(bits);
}

METHOD(jm_conjugate)
{
    (void)rt;
    (void)arg;
    return self;
}

static const struct jfunc number_methods[] = {
    {"conjugate", "", {.bound = jm_conjugate}},
    {"bit_length", "", {.bound = jm_bit_length}},
    {"is_integer", "", {.bound = jm_is_integer}},
};

/* -- loop, cycler */

static struct jv jm_loop_cycle(struct jrt *rt, struct jv self, const struct jcall *c)
{
    if (!c->npos)
        jfail(rt, "no items for cycling given");
    return c->pos[(size_t)self.loop->index0 % c->npos];
}

static struct jv jm_loop_changed(struct jrt *rt, struct jv self, const struct jcall *c)
{
    struct jlist *l = jlist_new(rt, c->npos);
    for (size_t i = 0; i < c->npos; i++)
        jlist_add(rt, l, c->pos[i]);
    struct jv now = jv_tuple(l), *last = &self.loop->changed;
    if (last->kind == J_TUPLE && jop_eq(rt, *last, now))
        return jv_bool(false);
    *last = now;
    return jv_bool(true);
}

static const struct jfunc loop_methods[] = {
    {"cycle", NULL, {.call = jm_loop_cycle}},
    {"changed", NULL, {.call = jm_loop_changed}},
};

METHOD(jm_cycler_next)
{
    (void)rt;
    (void)arg;
    struct jcycler *y = self.cycler;
    struct jv v = y->items->v[y->pos];
    y->pos = (y->pos + 1) % y->items->n;
    return v;
}

METHOD(jm_cycler_reset)
{
    (void)rt;
    (void)arg;
    self.cycler->pos = 0;
    return jv_none();
}

static const struct jfunc cycler_methods[] = {
    {"next", "", {.bound = jm_cycler_next}},
    {"reset", "", {.bound = jm_cycler_reset}},
};

/* -- attributes that are values */

static struct jv loop_attr(struct jrt *rt, struct jloop *l, const struct jstr *name)
{
    struct jv v;
    if (jstr_is(name, "index"))
        return jv_int(l->index0 + 1);
    if (jstr_is(name, "index0"))
        return jv_int(l->index0);
    if (jstr_is(name, "first"))
        return jv_bool(l->index0 == 0);
    if (jstr_is(name, "last"))
        return jv_bool(jloop_peek(rt, l).kind == J_MISSING);
    if (jstr_is(name, "length"))
        return jv_int((int64_t)jloop_length(rt, l));
    if (jstr_is(name, "revindex"))
        return jv_int((int64_t)jloop_length(rt, l) - l->index0);
    if (jstr_is(name, "revindex0"))
        return jv_int((int64_t)jloop_length(rt, l) - l->index0 - 1);
    if (jstr_is(name, "depth"))
        return jv_int(l->depth0 + 1);
    if (jstr_is(name, "depth0"))
        return jv_int(l->depth0);
    if (jstr_is(name, "previtem"))
        return l->index0 == 0 ? jv_undef_hint(rt, "there is no previous item") : l->before;
    if (jstr_is(name, "nextitem")) {
        v = jloop_peek(rt, l);
        return v.kind == J_MISSING ? jv_undef_hint(rt, "there is no next item") : v;
    }
    return jv_missing();
}

static struct jv macro_attr(struct jrt *rt, const struct jmacro *m, const struct jstr *name)
{
    const struct jnode *n = m->node;
    if (jstr_is(name, "name"))
        return n->name ? jv_str(n->name) : jv_none();
    if (jstr_is(name, "caller"))
        return jv_bool(n->uses & JUSES_CALLER);
    if (jstr_is(name, "catch_kwargs"))
        return jv_bool(n->uses & JUSES_KWARGS);
    if (jstr_is(name, "catch_varargs"))
        return jv_bool(n->uses & JUSES_VARARGS);
    if (!jstr_is(name, "arguments"))
        return jv_missing();
    struct jlist *l = jlist_new(rt, n->count);
    for (const struct jnode *p = n->list; p; p = p->next)
        jlist_add(rt, l, jv_str(p->name));
    return jv_tuple(l);
}

static struct jv plain_attr(struct jrt *rt, struct jv obj, const struct jstr *name)
{
    switch (obj.kind) {
    case J_LOOP:
        return loop_attr(rt, obj.loop, name);
    case J_MACRO:
        return macro_attr(rt, obj.macro, name);
    case J_CYCLER:
        if (jstr_is(name, "current"))
            return obj.cycler->items->v[obj.cycler->pos];
        return jstr_is(name, "items") ? jv_tuple(obj.cycler->items) : jv_missing();
    case J_TUPLE:
        if (obj.l->group && (jstr_is(name, "grouper") || jstr_is(name, "list")))
            return obj.l->v[jstr_is(name, "list")];
        return jv_missing();
    case J_RANGE:
        return jstr_is(name, "start")  ? jv_int(obj.range->start)
               : jstr_is(name, "stop") ? jv_int(obj.range->stop)
               : jstr_is(name, "step") ? jv_int(obj.range->step)
                                       : jv_missing();
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        if (jstr_is(name, "real") || (jstr_is(name, "numerator") && obj.kind != J_FLOAT))
            return obj;
        if (jstr_is(name, "imag"))
            return obj.kind == J_FLOAT ? jv_float(0) : jv_int(0);
        return jstr_is(name, "denominator") && obj.kind != J_FLOAT ? jv_int(1) : jv_missing();
    default:
        return jv_missing();
    }
}

/* -- lookup */

static bool in_words(const char *words, const struct jstr *name)
{
    for (const char *p = words; *p;) {
        size_t n = strcspn(p, " ");
        if (n == name->n && !memcmp(p, name->s, n))
            return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

static const struct jfunc *in_table(const struct jfunc *f, size_t n, const struct jstr *name)
{
    for (size_t i = 0; i < n; i++)
        if (jstr_is(name, f[i].name))
            return &f[i];
    return NULL;
}

#define IN(table) in_table(table, sizeof table / sizeof table[0], name)

static const struct jfunc *method_of(struct jv obj, const struct jstr *name)
{
    const struct jfunc *f;
    switch (obj.kind) {
    case J_STR:
        return jstr_methods_find(name);
    case J_TUPLE:
        f = IN(list_methods);
        return f && jstr_is(name, "copy") ? NULL : f;
    case J_LIST:
        return IN(list_methods);
    case J_RANGE:
        return IN(range_methods);
    case J_DICT:
        return IN(dict_methods);
    case J_BOOL:
    case J_INT:
        f = IN(number_methods);
        return f && jstr_is(name, "is_integer") ? NULL : f;
    case J_FLOAT:
        f = IN(number_methods);
        return f && jstr_is(name, "bit_length") ? NULL : f;
    case J_LOOP:
        return IN(loop_methods);
    case J_CYCLER:
        return IN(cycler_methods);
    case J_FUNC:
        return !strcmp(obj.func->name, "dict") && jstr_is(name, "fromkeys") ? &dict_methods[1] : NULL;
    default:
        return NULL;
    }
}

struct jv jmethod_find(struct jrt *rt, struct jv obj, const struct jstr *name)
{
    const char *unsafe = obj.kind == J_LIST   ? "append clear pop reverse insert sort extend remove"
                         : obj.kind == J_DICT ? "clear pop popitem setdefault update"
                                              : "";
    if (in_words(unsafe, name))
        return jv_undef_hint(rt, "access to attribute '%s' of '%s' object is unsafe.", jstr_c(rt, name),
                             jv_type(obj));
    struct jv v = plain_attr(rt, obj, name);
    if (v.kind != J_MISSING)
        return v;
    const struct jfunc *f = method_of(obj, name);
    if (!f)
        return v;
    struct jmethod *m = jalloc(rt, 1, sizeof *m);
    *m = (struct jmethod){obj, f};
    return (struct jv){.kind = J_METHOD, .method = m};
}
