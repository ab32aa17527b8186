/* Values: text with its origin, lists, dicts, and the ways to fail. */
#include "lang/jinja/jinja_value.h"

#include "base/size.h"
#include "base/utf8.h"
#include "lang/jinja/jinja_op.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void jfail_text(struct jrt *rt, enum err_code code, const char *fmt, va_list ap)
{
    char text[640];
    vsnprintf(text, sizeof text, fmt, ap);
    if (rt->line)
        err_set(rt->err, code, "template line %d: %s", rt->line, text);
    else
        err_set(rt->err, code, "template: %s", text);
}

void jfail(struct jrt *rt, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    jfail_text(rt, ERR_DATA, fmt, ap);
    va_end(ap);
    longjmp(rt->fail, 1);
}

void jfail_limit(struct jrt *rt, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    jfail_text(rt, ERR_RESOURCE, fmt, ap);
    va_end(ap);
    longjmp(rt->fail, 1);
}

void *jalloc(struct jrt *rt, size_t count, size_t size)
{
    void *p = arena_alloc(&rt->arena, count, size);
    if (!p)
        jfail_limit(rt, "out of memory: rendering may use %zu MiB", rt->arena.limit >> 20);
    return p;
}

void jcharge(struct jrt *rt, size_t bytes)
{
    uint64_t cost = 1 + bytes / 32;
    if (rt->fuel < cost)
        jfail_limit(rt, "too many steps: an endless or very long loop");
    rt->fuel -= cost;
}

void jdeeper(struct jrt *rt)
{
    if (++rt->depth > rt->depth_max)
        jfail_limit(rt, "nested too deeply (more than %u levels)", rt->depth_max);
}

/* -- text */

size_t jstr_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

struct jstr *jstr_new(struct jrt *rt, const char *s, size_t n, bool data)
{
    struct jstr *r = jalloc(rt, 1, sizeof *r);
    *r = (struct jstr){.s = s, .n = n, .chars = jstr_count(s, n), .data = data};
    return r;
}

struct jstr *jstr_copy(struct jrt *rt, const char *s, size_t n, bool data)
{
    char *copy = jalloc(rt, n, 1);
    memcpy(copy, s, n);
    return jstr_new(rt, copy, n, data);
}

struct jstr *jstr_lit(struct jrt *rt, const char *s)
{
    return jstr_new(rt, s, strlen(s), false);
}

struct jstr *jstr_sub(struct jrt *rt, const struct jstr *s, size_t from, size_t n)
{
    struct jstr *r = jalloc(rt, 1, sizeof *r);
    *r = *s;
    r->s += from;
    r->n = n;
    r->chars = s->chars == s->n ? n : jstr_count(r->s, n);
    if (r->mask)
        r->mask += from;
    if (from + n != s->n)
        r->buf = NULL;
    return r;
}

bool jstr_data_at(const struct jstr *s, size_t i)
{
    return s->mask ? s->mask[i] : s->data;
}

bool jstr_any_data(const struct jstr *s)
{
    return s->mask ? memchr(s->mask, 1, s->n) != NULL : s->data && s->n;
}

static void jbuf_put(struct jbuf *b, const struct jstr *s)
{
    memcpy(b->s + b->used, s->s, s->n);
    if (s->mask)
        memcpy(b->mask + b->used, s->mask, s->n);
    else
        memset(b->mask + b->used, s->data, s->n);
    b->used += s->n;
}

struct jstr *jstr_concat(struct jrt *rt, const struct jstr *a, const struct jstr *b)
{
    size_t n, cap;
    struct jbuf *buf = a->buf;
    bool extends = buf && a->s + a->n == buf->s + buf->used && buf->cap - buf->used >= b->n;
    jcharge(rt, b->n + (extends ? 0 : a->n));
    if (!size_add(a->n, b->n, &n) || !size_add(n, n / 2 + 32, &cap))
        jfail_limit(rt, "a string is too long");
    if (!extends) {
        buf = jalloc(rt, 1, sizeof *buf);
        *buf = (struct jbuf){.s = jalloc(rt, cap, 1), .mask = jalloc(rt, cap, 1), .cap = cap};
        jbuf_put(buf, a);
    }
    jbuf_put(buf, b);
    struct jstr *r = jalloc(rt, 1, sizeof *r);
    *r = (struct jstr){.s = buf->s + buf->used - n, .n = n, .chars = a->chars + b->chars, .buf = buf};
    if (!a->mask && !b->mask && (a->data == b->data || !a->n || !b->n))
        r->data = a->n ? a->data : b->data;
    else
        r->mask = buf->mask + buf->used - n;
    return r;
}

static struct jstr *jstr_flagged(struct jrt *rt, struct jstr *s, bool markup)
{
    if (s->markup == markup)
        return s;
    struct jstr *r = jalloc(rt, 1, sizeof *r);
    *r = *s;
    r->markup = markup;
    return r;
}

struct jstr *jstr_plain(struct jrt *rt, struct jstr *s)
{
    return jstr_flagged(rt, s, false);
}

struct jstr *jstr_markup(struct jrt *rt, struct jstr *s)
{
    return jstr_flagged(rt, s, true);
}

bool jstr_eq(const struct jstr *a, const struct jstr *b)
{
    return a->n == b->n && !memcmp(a->s, b->s, a->n);
}

bool jstr_is(const struct jstr *a, const char *lit)
{
    size_t n = strlen(lit);
    return a->n == n && !memcmp(a->s, lit, n);
}

int jstr_cmp(const struct jstr *a, const struct jstr *b)
{
    /* UTF-8 sorts as its code points do */
    int c = memcmp(a->s, b->s, size_min(a->n, b->n));
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

size_t jstr_offset(const struct jstr *s, size_t chars)
{
    if (s->chars == s->n)
        return chars;
    if (chars == s->chars)
        return s->n;
    size_t i = 0;
    for (size_t seen = 0; i < s->n; i++)
        if (((unsigned char)s->s[i] & 0xc0) != 0x80 && seen++ == chars)
            break;
    return i;
}

const char *jstr_c(struct jrt *rt, const struct jstr *s)
{
    size_t n = size_min(s->n, 500);
    while (n && n < s->n && ((unsigned char)s->s[n] & 0xc0) == 0x80)
        n--;
    char *c = jalloc(rt, n + 1, 1);
    memcpy(c, s->s, n);
    return c;
}

/* -- the builder */

static void jsb_room(struct jsb *b, size_t n)
{
    size_t want, cap;
    if (!size_add(b->n, n, &want) || (b->max && want > b->max))
        jfail_limit(b->rt, "the output is too long (more than %zu bytes)", b->max);
    jcharge(b->rt, n);
    if (want <= b->cap)
        return;
    if (!size_add(want, want / 2 + 48, &cap))
        jfail_limit(b->rt, "a string is too long");
    char *s = jalloc(b->rt, cap, 1);
    uint8_t *mask = jalloc(b->rt, cap, 1);
    if (b->n) {
        memcpy(s, b->s, b->n);
        memcpy(mask, b->mask, b->n);
    }
    b->s = s;
    b->mask = mask;
    b->cap = cap;
}

void jsb_add(struct jsb *b, const char *s, size_t n, bool data)
{
    if (!n)
        return;
    jsb_room(b, n);
    memcpy(b->s + b->n, s, n);
    memset(b->mask + b->n, data, n);
    b->seen |= 1u << data;
    b->n += n;
}

void jsb_lit(struct jsb *b, const char *s, bool data)
{
    jsb_add(b, s, strlen(s), data);
}

void jsb_cp(struct jsb *b, uint32_t cp, bool data)
{
    char c[4];
    jsb_add(b, c, utf8_put(cp, c), data);
}

void jsb_sub(struct jsb *b, const struct jstr *s, size_t from, size_t n)
{
    if (!s->mask) {
        jsb_add(b, s->s + from, n, s->data);
        return;
    }
    if (!n)
        return;
    jsb_room(b, n);
    memcpy(b->s + b->n, s->s + from, n);
    memcpy(b->mask + b->n, s->mask + from, n);
    b->seen |= 3;
    b->n += n;
}

void jsb_str(struct jsb *b, const struct jstr *s)
{
    jsb_sub(b, s, 0, s->n);
}

struct jstr *jsb_done(struct jsb *b)
{
    struct jstr *r = jstr_new(b->rt, b->n ? b->s : "", b->n, b->seen == 2);
    if (b->seen == 3)
        r->mask = b->mask;
    if (b->n) {
        r->buf = jalloc(b->rt, 1, sizeof *r->buf);
        *r->buf = (struct jbuf){.s = b->s, .mask = b->mask, .used = b->n, .cap = b->cap};
    }
    return r;
}

/* -- lists */

struct jlist *jlist_new(struct jrt *rt, size_t room)
{
    struct jlist *l = jalloc(rt, 1, sizeof *l);
    l->room = jalloc(rt, 1, sizeof *l->room);
    l->room->cap = room;
    l->v = l->room->v = room ? jalloc(rt, room, sizeof *l->v) : NULL;
    return l;
}

void jlist_add(struct jrt *rt, struct jlist *l, struct jv v)
{
    struct jroom *r = l->room;
    jcharge(rt, 0);
    if (r->used == r->cap) {
        size_t cap = r->cap + r->cap / 2 + 8;
        struct jv *items = jalloc(rt, cap, sizeof *items);
        if (l->n)
            memcpy(items, l->v, l->n * sizeof *items);
        r->v = items;
        r->cap = cap;
        l->v = items;
    }
    l->v[l->n++] = v;
    r->used = l->n;
}

struct jlist *jlist_concat(struct jrt *rt, const struct jlist *a, const struct jlist *b)
{
    struct jroom *room = a->room;
    size_t n = a->n + b->n;
    if (room && a->n && a->v == room->v && room->used == a->n && room->cap - room->used >= b->n) {
        jcharge(rt, b->n);
        struct jlist *l = jalloc(rt, 1, sizeof *l);
        *l = (struct jlist){.v = room->v, .n = n, .room = room};
        if (b->n)
            memcpy(room->v + room->used, b->v, b->n * sizeof *b->v);
        room->used = n;
        return l;
    }
    jcharge(rt, n * 16);
    struct jlist *l = jlist_new(rt, n + n / 2 + 4);
    if (a->n)
        memcpy(l->v, a->v, a->n * sizeof *a->v);
    if (b->n)
        memcpy(l->v + a->n, b->v, b->n * sizeof *b->v);
    l->n = l->room->used = n;
    return l;
}

/* -- dicts */

#define JDICT_SMALL 8

static uint64_t jhash_bytes(const void *p, size_t n, uint64_t h)
{
    const uint8_t *s = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001b3u;
    return h;
}

static uint64_t jhash(struct jrt *rt, struct jv v)
{
    uint64_t h = 0xcbf29ce484222325u;
    double f;
    switch (v.kind) {
    case J_STR:
        jcharge(rt, v.s->n);
        return jhash_bytes(v.s->s, v.s->n, h);
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        f = jv_as_float(v); /* equal numbers of different types are one key */
        if (f == 0)
            f = 0;
        return jhash_bytes(&f, sizeof f, h + 1);
    case J_TUPLE:
        jdeeper(rt);
        for (size_t i = 0; i < v.l->n; i++) {
            uint64_t item = jhash(rt, v.l->v[i]);
            h = jhash_bytes(&item, sizeof item, h);
        }
        jshallower(rt);
        return h;
    case J_LIST:
    case J_DICT:
        jfail(rt, "unhashable type: '%s'", jv_type(v));
    default:
        return h + v.kind;
    }
}

struct jdict *jdict_new(struct jrt *rt)
{
    return jalloc(rt, 1, sizeof(struct jdict));
}

static size_t jdict_find(struct jrt *rt, const struct jdict *d, struct jv key, uint64_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->item[i].hash == hash && jop_eq(rt, d->item[i].key, key))
                return i;
        return SIZE_MAX;
    }
    for (size_t at = hash & (d->slots - 1);; at = (at + 1) & (d->slots - 1)) {
        uint32_t i = d->index[at];
        if (!i)
            return SIZE_MAX;
        jcharge(rt, 0);
        if (d->item[i - 1].hash == hash && jop_eq(rt, d->item[i - 1].key, key))
            return i - 1;
    }
}

static void jdict_place(struct jdict *d, size_t i)
{
    size_t at = d->item[i].hash & (d->slots - 1);
    while (d->index[at])
        at = (at + 1) & (d->slots - 1);
    d->index[at] = (uint32_t)i + 1;
}

static void jdict_grow(struct jrt *rt, struct jdict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    if (cap > UINT32_MAX / 4)
        jfail_limit(rt, "a dict is too large");
    struct jpair *item = jalloc(rt, cap, sizeof *item);
    if (d->n)
        memcpy(item, d->item, d->n * sizeof *item);
    d->item = item;
    d->cap = cap;
    if (cap <= JDICT_SMALL)
        return;
    d->slots = cap * 2;
    d->index = jalloc(rt, d->slots, sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        jdict_place(d, i);
}

void jdict_set(struct jrt *rt, struct jdict *d, struct jv key, struct jv value)
{
    uint64_t hash = jhash(rt, key);
    jcharge(rt, 0);
    size_t i = jdict_find(rt, d, key, hash);
    if (i != SIZE_MAX) {
        d->item[i].value = value;
        return;
    }
    if (d->n == d->cap)
        jdict_grow(rt, d);
    d->item[d->n++] = (struct jpair){key, value, hash};
    if (d->index)
        jdict_place(d, d->n - 1);
}

struct jv *jdict_get(struct jrt *rt, const struct jdict *d, struct jv key)
{
    size_t i = jdict_find(rt, d, key, jhash(rt, key));
    return i == SIZE_MAX ? NULL : &d->item[i].value;
}

struct jdict *jdict_copy(struct jrt *rt, const struct jdict *d)
{
    struct jdict *r = jdict_new(rt);
    for (size_t i = 0; i < d->n; i++)
        jdict_set(rt, r, d->item[i].key, d->item[i].value);
    return r;
}

/* -- values */

struct jv jv_lit(struct jrt *rt, const char *s)
{
    return jv_str(jstr_lit(rt, s));
}

struct jv jv_pair(struct jrt *rt, struct jv a, struct jv b)
{
    struct jlist *l = jlist_new(rt, 2);
    jlist_add(rt, l, a);
    jlist_add(rt, l, b);
    return jv_tuple(l);
}

static struct jv jv_undef(struct jrt *rt, const char *hint, struct jv obj, struct jv name)
{
    struct jundef *u = jalloc(rt, 1, sizeof *u);
    *u = (struct jundef){hint, obj, name};
    return (struct jv){.kind = J_UNDEF, .undef = u};
}

struct jv jv_undef_hint(struct jrt *rt, const char *fmt, ...)
{
    char *text = jalloc(rt, 320, 1);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, 320, fmt, ap);
    va_end(ap);
    return jv_undef(rt, text, jv_missing(), jv_missing());
}

struct jv jv_undef_name(struct jrt *rt, struct jv name)
{
    return jv_undef(rt, NULL, jv_missing(), name);
}

struct jv jv_undef_attr(struct jrt *rt, struct jv obj, struct jv name)
{
    return jv_undef(rt, NULL, obj, name);
}

void jfail_undef(struct jrt *rt, struct jv v)
{
    const struct jundef *u = v.undef;
    if (u->hint)
        jfail(rt, "%s", u->hint);
    const char *name = jstr_c(rt, jop_repr(rt, u->name));
    if (u->obj.kind == J_MISSING)
        jfail(rt, "%s is undefined", name);
    const char *quote = u->name.kind == J_STR ? "'" : "", *type = jv_type(u->obj);
    const char *object = u->obj.kind == J_NONE ? "" : " object";
    if (u->obj.kind == J_NONE)
        type = "None";
    jfail(rt, "%s%s%s%s has no %s %s", quote, type, object, quote,
          u->name.kind == J_STR ? "attribute" : "element", name);
}

bool jv_true(struct jv v)
{
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
        return v.s->n != 0;
    case J_LIST:
    case J_TUPLE:
        return v.l->n != 0;
    case J_DICT:
        return v.d->n != 0;
    case J_VIEW:
        return v.view->d->n != 0;
    case J_RANGE:
        return v.range->n != 0;
    default:
        return true;
    }
}

const char *jv_type(struct jv v)
{
    static const char *const name[] = {
        [J_MISSING] = "MissingType",
        [J_UNDEF] = "Undefined",
        [J_NONE] = "NoneType",
        [J_BOOL] = "bool",
        [J_INT] = "int",
        [J_FLOAT] = "float",
        [J_STR] = "str",
        [J_LIST] = "list",
        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",
        [J_RANGE] = "range",
        [J_ITER] = "generator",
        [J_NS] = "Namespace",
        [J_MACRO] = "Macro",
        [J_FUNC] = "function",
        [J_METHOD] = "builtin_function_or_method",
        [J_LOOP] = "LoopContext",
        [J_CYCLER] = "Cycler",
        [J_JOINER] = "Joiner",
    };
    static const char *const view[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.kind == J_VIEW)
        return view[v.view->kind];
    if (v.kind == J_STR && v.s->markup)
        return "Markup";
    return name[v.kind];
}
