/* Filters of sequences and mappings. Those that are generators in jinja2 are lazy here too: nothing happens
 * before the first item is asked for, and what was read is gone. */
#include "lang/jinja/jinja_filter.h"

#include "base/size.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <string.h>

#define FILTER(name) static struct jv name(struct jrt *rt, struct jv v, struct jv *arg)

static struct jv ignore_case(struct jrt *rt, struct jv v)
{
    return v.kind == J_STR ? jv_str(jtext_map_case(rt, v.s, JTEXT_LOWER)) : v;
}

/* The key that sort, unique, min and the others compare. */
static struct jv key_of(struct jrt *rt, struct jv item, struct jv attribute, bool case_sensitive)
{
    struct jv key = jop_path(rt, item, attribute, jv_missing());
    return case_sensitive ? key : ignore_case(rt, key);
}

/* -- sorting: a stable merge sort of items by their keys */

struct jkeyed {
    struct jv key, item;
};

static void jsort_merge(struct jrt *rt, struct jkeyed *v, struct jkeyed *spare, size_t n, bool reverse)
{
    if (n < 2)
        return;
    size_t half = n / 2, a = 0, b = half, out = 0;
    jsort_merge(rt, v, spare, half, reverse);
    jsort_merge(rt, v + half, spare, n - half, reverse);
    while (a < half && b < n) {
        bool second = reverse ? jop_less(rt, v[a].key, v[b].key) : jop_less(rt, v[b].key, v[a].key);
        spare[out++] = second ? v[b++] : v[a++];
    }
    while (a < half)
        spare[out++] = v[a++];
    memcpy(v, spare, out * sizeof *v);
}

static struct jkeyed *jsort(struct jrt *rt, struct jkeyed *v, size_t n, bool reverse)
{
    jsort_merge(rt, v, jalloc(rt, n, sizeof *v), n, reverse);
    return v;
}

static struct jv jsort_list(struct jrt *rt, const struct jkeyed *v, size_t n)
{
    struct jlist *l = jlist_new(rt, n);
    for (size_t i = 0; i < n; i++)
        jlist_add(rt, l, v[i].item);
    return jv_list(l);
}

/* Several attributes, separated by commas: the key is the list of them. */
static struct jv sort_key(struct jrt *rt, struct jv item, struct jv attribute, bool case_sensitive)
{
    if (attribute.kind != J_STR)
        return key_of(rt, item, attribute, case_sensitive);
    struct jlist *parts = jtext_split(rt, attribute.s, jstr_lit(rt, ","), -1), *key = jlist_new(rt, parts->n);
    for (size_t i = 0; i < parts->n; i++)
        jlist_add(rt, key, key_of(rt, item, parts->v[i], case_sensitive));
    return jv_list(key);
}

FILTER(jf_sort)
{
    struct jlist *l = jiter_list(rt, v);
    struct jkeyed *k = jalloc(rt, l->n, sizeof *k);
    for (size_t i = 0; i < l->n; i++)
        k[i] = (struct jkeyed){sort_key(rt, l->v[i], arg[2], jv_true(arg[1])), l->v[i]};
    return jsort_list(rt, jsort(rt, k, l->n, jv_true(arg[0])), l->n);
}

FILTER(jf_dictsort)
{
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    if (v.kind != J_DICT)
        jfail(rt, "'%s' object has no attribute 'items'", jv_type(v));
    bool by_value = arg[1].kind == J_STR && jstr_is(arg[1].s, "value");
    if (arg[1].kind != J_MISSING && !by_value && !(arg[1].kind == J_STR && jstr_is(arg[1].s, "key")))
        jfail(rt, "You can only sort by either \"key\" or \"value\"");
    struct jkeyed *k = jalloc(rt, v.d->n, sizeof *k);
    for (size_t i = 0; i < v.d->n; i++) {
        const struct jpair *p = &v.d->item[i];
        struct jv key = by_value ? p->value : p->key;
        k[i] = (struct jkeyed){jv_true(arg[0]) ? key : ignore_case(rt, key), jv_pair(rt, p->key, p->value)};
    }
    return jsort_list(rt, jsort(rt, k, v.d->n, jv_true(arg[2])), v.d->n);
}

FILTER(jf_groupby)
{
    struct jlist *l = jiter_list(rt, v), *groups = jlist_new(rt, 0);
    struct jkeyed *k = jalloc(rt, l->n, sizeof *k);
    bool exact = jv_true(arg[2]);
    for (size_t i = 0; i < l->n; i++) {
        struct jv key = jop_path(rt, l->v[i], arg[0], arg[1]);
        k[i] = (struct jkeyed){exact ? key : ignore_case(rt, key), l->v[i]};
    }
    jsort(rt, k, l->n, false);
    for (size_t i = 0; i < l->n;) {
        struct jlist *items = jlist_new(rt, 0);
        size_t from = i;
        while (i < l->n && jop_eq(rt, k[i].key, k[from].key))
            jlist_add(rt, items, k[i++].item);
        struct jv pair = jv_pair(rt, jop_path(rt, k[from].item, arg[0], arg[1]), jv_list(items));
        pair.l->group = true;
        jlist_add(rt, groups, pair);
    }
    return jv_list(groups);
}

static struct jv extreme(struct jrt *rt, struct jv v, const struct jv *arg, bool largest)
{
    struct jiter *it = jiter_of(rt, v);
    struct jv best, item;
    if (!jiter_next(rt, it, &best))
        return jv_undef_hint(rt, "No aggregated item, sequence was empty.");
    struct jv best_key = key_of(rt, best, arg[1], jv_true(arg[0]));
    while (jiter_next(rt, it, &item)) {
        struct jv key = key_of(rt, item, arg[1], jv_true(arg[0]));
        if (jop_compare(rt, largest ? JCMP_GT : JCMP_LT, key, best_key)) {
            best = item;
            best_key = key;
        }
    }
    return best;
}

FILTER(jf_min)
{
    return extreme(rt, v, arg, false);
}

FILTER(jf_max)
{
    return extreme(rt, v, arg, true);
}

FILTER(jf_sum)
{
    struct jv total = arg[1].kind == J_MISSING ? jv_int(0) : arg[1], item;
    if (total.kind == J_STR)
        jfail(rt, "sum() can't sum strings [use ''.join(seq) instead]");
    struct jiter *it = jiter_of(rt, v);
    while (jiter_next(rt, it, &item))
        total = jop_binary(rt, JBIN_ADD, total, jop_path(rt, item, arg[0], jv_missing()));
    return total;
}

FILTER(jf_first)
{
    (void)arg;
    struct jv item;
    return jiter_next(rt, jiter_of(rt, v), &item) ? item
                                                  : jv_undef_hint(rt, "No first item, sequence was empty.");
}

FILTER(jf_last)
{
    (void)arg;
    struct jv item, back = jiter_reversed(rt, v, true);
    return jiter_next(rt, back.it, &item) ? item : jv_undef_hint(rt, "No last item, sequence was empty.");
}

/* A prompt must not depend on chance: the middle item stands for any. */
FILTER(jf_random)
{
    (void)arg;
    struct jlist *l = jiter_list(rt, v);
    return l->n ? l->v[l->n / 2] : jv_undef_hint(rt, "No random item, sequence was empty.");
}

FILTER(jf_list)
{
    (void)arg;
    return jv_list(jiter_list(rt, v));
}

FILTER(jf_reverse)
{
    (void)arg;
    if (v.kind == J_STR) {
        struct jv bound[3] = {jv_none(), jv_none(), jv_int(-1)};
        return jop_slice(rt, v, bound);
    }
    struct jv back = jiter_reversed(rt, v, false);
    return v.kind == J_ITER ? jv_list(jiter_list(rt, back)) : back;
}

FILTER(jf_join)
{
    struct jsb b = {.rt = rt};
    struct jstr *sep = arg[0].kind == J_MISSING ? jstr_lit(rt, "") : jop_str(rt, arg[0]);
    struct jiter *it = jiter_of(rt, v);
    struct jv item;
    for (bool first = true; jiter_next(rt, it, &item); first = false) {
        if (!first)
            jsb_str(&b, sep);
        jsb_str(&b, jop_str(rt, jop_path(rt, item, arg[1], jv_missing())));
    }
    return jv_str(jsb_done(&b));
}

FILTER(jf_attr)
{
    if (v.kind == J_UNDEF)
        jfail_undef(rt, v);
    struct jstr *name = jop_soft_str(rt, arg[0]);
    struct jv found = v.kind == J_NS ? jop_attr(rt, v, name) : jmethod_find(rt, v, name);
    return found.kind == J_MISSING ? jv_undef_attr(rt, v, arg[0]) : found;
}

/* -- generators */

static struct jv lazy(struct jrt *rt, bool (*step)(struct jrt *, struct jiter *, struct jv *), struct jv v,
                      void *own)
{
    return jiter_value(rt, (struct jiter){.step = step, .v = v, .own = own});
}

static bool step_items(struct jrt *rt, struct jiter *it, struct jv *out)
{
    if (it->v.kind == J_UNDEF)
        return false;
    if (it->v.kind != J_DICT)
        jfail(rt, "Can only get item pairs from a mapping.");
    if (it->at >= it->v.d->n)
        return false;
    const struct jpair *p = &it->v.d->item[it->at++];
    *out = jv_pair(rt, p->key, p->value);
    return true;
}

FILTER(jf_items)
{
    (void)arg;
    return lazy(rt, step_items, v, NULL);
}

/* The source of a generator over `v`, opened when the first item is asked for. */
static bool source_next(struct jrt *rt, struct jiter *it, struct jv *out)
{
    if (!it->from)
        it->from = jiter_of(rt, it->v);
    return jiter_next(rt, it->from, out);
}

/* own: the arguments of map, select and the like */
struct japply {
    struct jcall call; /* what is handed to the filter or test */
    const struct jfunc *func;
    struct jv attribute, fallback;
    bool by_attribute, by_test, keep; /* keep: what the test must say */
};

static void apply_name(struct jrt *rt, struct japply *a, const struct jcall *c, size_t at, bool test)
{
    struct jstr *name = jarg_str(rt, c->pos[at], test ? "the name of a test" : "the name of a filter");
    a->func = test ? jtest_find(name->s, name->n) : jfilter_find(name->s, name->n);
    if (!a->func)
        jfail(rt, "No %s named '%s'.", test ? "test" : "filter", jstr_c(rt, name));
    a->call = *c;
    a->call.pos += at + 1;
    a->call.npos -= at + 1;
}

static bool step_map(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct japply *a = it->own;
    const struct jcall *c = &a->call;
    struct jv item;
    if (!it->at++) {
        if (!jv_true(it->v))
            return false;
        if (!c->npos && c->nkw && c->nkw <= 2 && jstr_is(c->kw[0].s, "attribute")) {
            a->by_attribute = true;
            a->attribute = c->kw[1];
            if (c->nkw == 2 && !jstr_is(c->kw[2].s, "default"))
                jfail(rt, "Unexpected keyword argument '%s'", jstr_c(rt, c->kw[2].s));
            a->fallback = c->nkw == 2 ? c->kw[3] : jv_missing();
        } else if (c->npos) {
            struct jcall whole = *c;
            apply_name(rt, a, &whole, 0, false);
        } else {
            jfail(rt, "map requires a filter argument");
        }
    }
    if (!source_next(rt, it, &item))
        return false;
    *out = a->by_attribute ? jop_path(rt, item, a->attribute, a->fallback)
                           : jfunc_run(rt, a->func, item, &a->call);
    return true;
}

/* map(default=..., attribute=...) has its keywords in any order: attribute first. */
static struct jv jf_map(struct jrt *rt, struct jv v, const struct jcall *c)
{
    struct japply *a = jalloc(rt, 1, sizeof *a);
    a->call = *c;
    if (!c->npos && c->nkw == 2 && jstr_is(c->kw[2].s, "attribute")) {
        struct jv *kw = jalloc(rt, 4, sizeof *kw);
        memcpy(kw, c->kw + 2, 2 * sizeof *kw);
        memcpy(kw + 2, c->kw, 2 * sizeof *kw);
        a->call.kw = kw;
    }
    return lazy(rt, step_map, v, a);
}

static bool step_select(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct japply *a = it->own;
    if (!it->at++) {
        size_t off = a->by_attribute;
        struct jcall whole = a->call;
        if (!jv_true(it->v))
            return false;
        if (a->by_attribute && !whole.npos)
            jfail(rt, "Missing parameter for attribute name");
        if (a->by_attribute)
            a->attribute = whole.pos[0];
        a->by_test = whole.npos > off;
        if (a->by_test)
            apply_name(rt, a, &whole, off, true);
    }
    while (source_next(rt, it, out)) {
        struct jv v = a->by_attribute ? jop_path(rt, *out, a->attribute, jv_missing()) : *out;
        if (a->by_test)
            v = jfunc_run(rt, a->func, v, &a->call);
        if (jv_true(v) == a->keep)
            return true;
    }
    return false;
}

static struct jv choose(struct jrt *rt, struct jv v, const struct jcall *c, bool keep, bool by_attribute)
{
    struct japply *a = jalloc(rt, 1, sizeof *a);
    *a = (struct japply){.call = *c, .keep = keep, .by_attribute = by_attribute};
    return lazy(rt, step_select, v, a);
}

static struct jv jf_select(struct jrt *rt, struct jv v, const struct jcall *c)
{
    return choose(rt, v, c, true, false);
}

static struct jv jf_reject(struct jrt *rt, struct jv v, const struct jcall *c)
{
    return choose(rt, v, c, false, false);
}

static struct jv jf_selectattr(struct jrt *rt, struct jv v, const struct jcall *c)
{
    return choose(rt, v, c, true, true);
}

static struct jv jf_rejectattr(struct jrt *rt, struct jv v, const struct jcall *c)
{
    return choose(rt, v, c, false, true);
}

struct junique {
    struct jdict *seen;
    struct jv attribute;
    bool case_sensitive;
};

static bool step_unique(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct junique *u = it->own;
    while (source_next(rt, it, out)) {
        struct jv key = key_of(rt, *out, u->attribute, u->case_sensitive);
        if (jdict_get(rt, u->seen, key))
            continue;
        jdict_set(rt, u->seen, key, jv_none());
        return true;
    }
    return false;
}

FILTER(jf_unique)
{
    struct junique *u = jalloc(rt, 1, sizeof *u);
    *u = (struct junique){jdict_new(rt), arg[1], jv_true(arg[0])};
    return lazy(rt, step_unique, v, u);
}

struct jchunks {
    int64_t count;
    struct jv fill;
    struct jlist *all; /* slice: everything */
    size_t offset;
    struct jv ahead; /* batch: an item that was read already */
};

static bool step_batch(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jchunks *c = it->own;
    struct jlist *l = jlist_new(rt, 0);
    struct jv item;
    if (c->ahead.kind != J_MISSING)
        jlist_add(rt, l, c->ahead);
    c->ahead = jv_missing();
    while (source_next(rt, it, &item)) {
        if ((int64_t)l->n == c->count) {
            c->ahead = item;
            *out = jv_list(l);
            return true;
        }
        jlist_add(rt, l, item);
    }
    if (!l->n)
        return false;
    while (jarg_given(c->fill) && (int64_t)l->n < c->count)
        jlist_add(rt, l, c->fill);
    *out = jv_list(l);
    return true;
}

FILTER(jf_batch)
{
    struct jchunks *c = jalloc(rt, 1, sizeof *c);
    *c = (struct jchunks){.count = jarg_int(rt, arg[0], 0, "linecount"), .fill = arg[1]};
    return lazy(rt, step_batch, v, c);
}

static bool step_slice(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jchunks *c = it->own;
    if (!c->all) {
        c->all = jiter_list(rt, it->v);
        if (!c->count)
            jfail(rt, "integer division or modulo by zero");
    }
    if (c->count < 0 || it->at >= (size_t)c->count)
        return false;
    size_t each = c->all->n / (size_t)c->count, extra = c->all->n % (size_t)c->count;
    size_t start = c->offset + it->at * each;
    if (it->at < extra)
        c->offset++;
    size_t end = c->offset + (it->at + 1) * each;
    struct jlist *l = jlist_new(rt, end - start + 1);
    for (size_t i = start; i < end; i++)
        jlist_add(rt, l, c->all->v[i]);
    if (jarg_given(c->fill) && it->at >= extra)
        jlist_add(rt, l, c->fill);
    it->at++;
    *out = jv_list(l);
    return true;
}

FILTER(jf_slice)
{
    struct jchunks *c = jalloc(rt, 1, sizeof *c);
    *c = (struct jchunks){.count = jarg_int(rt, arg[0], 0, "slices"), .fill = arg[1]};
    return lazy(rt, step_slice, v, c);
}

static const struct jfunc table[] = {
    {"attr", "name", {.bound = jf_attr}},
    {"batch", "linecount|fill_with", {.bound = jf_batch}},
    {"dictsort", "|case_sensitive by reverse", {.bound = jf_dictsort}},
    {"first", "", {.bound = jf_first}},
    {"groupby", "attribute|default case_sensitive", {.bound = jf_groupby}},
    {"items", "", {.bound = jf_items}},
    {"join", "|d attribute", {.bound = jf_join}},
    {"last", "", {.bound = jf_last}},
    {"list", "", {.bound = jf_list}},
    {"map", NULL, {.call = jf_map}},
    {"max", "|case_sensitive attribute", {.bound = jf_max}},
    {"min", "|case_sensitive attribute", {.bound = jf_min}},
    {"random", "", {.bound = jf_random}},
    {"reject", NULL, {.call = jf_reject}},
    {"rejectattr", NULL, {.call = jf_rejectattr}},
    {"reverse", "", {.bound = jf_reverse}},
    {"select", NULL, {.call = jf_select}},
    {"selectattr", NULL, {.call = jf_selectattr}},
    {"slice", "slices|fill_with", {.bound = jf_slice}},
    {"sort", "|reverse case_sensitive attribute", {.bound = jf_sort}},
    {"sum", "|attribute start", {.bound = jf_sum}},
    {"unique", "|case_sensitive attribute", {.bound = jf_unique}},
};

const struct jfilters jfilters_seq = {table, sizeof table / sizeof table[0]};
