/* Python's operators: equality and order, containment, arithmetic, attributes, subscripts and slices. */
#define _GNU_SOURCE /* memmem, memrchr */
#include "lang/jinja/jinja_op.h"

#include "base/size.h"
#include "lang/jinja/jinja_call.h"

#include <math.h>
#include <string.h>

/* -- comparison */

static bool jop_eq_dict(struct jrt *rt, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        struct jv *other = jdict_get(rt, b, a->item[i].key);
        if (!other || !jop_eq(rt, a->item[i].value, *other))
            return false;
    }
    return true;
}

static bool jop_eq_list(struct jrt *rt, const struct jlist *a, const struct jlist *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jop_eq(rt, a->v[i], b->v[i]))
            return false;
    return true;
}

static bool jop_eq_range(const struct jrange *a, const struct jrange *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool jop_eq(struct jrt *rt, struct jv a, struct jv b)
{
    jcharge(rt, 0);
    if (jv_is_num(a) && jv_is_num(b)) {
        if (jv_is_int(a) && jv_is_int(b))
            return jv_as_int(a) == jv_as_int(b);
        return jv_as_float(a) == jv_as_float(b);
    }
    if (a.kind != b.kind)
        return false;
    bool same;
    switch (a.kind) {
    case J_UNDEF:
    case J_NONE:
        return true;
    case J_STR:
        return jstr_eq(a.s, b.s);
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
        jdeeper(rt);
        same = a.kind == J_DICT ? jop_eq_dict(rt, a.d, b.d) : jop_eq_list(rt, a.l, b.l);
        jshallower(rt);
        return same;
    case J_RANGE:
        return jop_eq_range(a.range, b.range);
    case J_VIEW:
        return a.view->kind == b.view->kind && a.view->kind != JVIEW_VALUES &&
               jop_eq_dict(rt, a.view->d, b.view->d);
    case J_METHOD:
        return a.method->func == b.method->func && jop_eq(rt, a.method->self, b.method->self);
    default:
        return a.it == b.it;
    }
}

static _Noreturn void jop_no_order(struct jrt *rt, const char *op, struct jv a, struct jv b)
{
    if (a.kind == J_UNDEF)
        jfail_undef(rt, a);
    if (b.kind == J_UNDEF)
        jfail_undef(rt, b);
    jfail(rt, "'%s' not supported between instances of '%s' and '%s'", op, jv_type(a), jv_type(b));
}

/* -1, 0, 1; 2 where a number is not one */
static int jop_order(struct jrt *rt, const char *op, struct jv a, struct jv b)
{
    if (jv_is_num(a) && jv_is_num(b)) {
        if (jv_is_int(a) && jv_is_int(b))
            return jv_as_int(a) < jv_as_int(b) ? -1 : jv_as_int(a) > jv_as_int(b);
        double x = jv_as_float(a), y = jv_as_float(b);
        return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
    }
    if (a.kind == J_STR && b.kind == J_STR) {
        jcharge(rt, size_min(a.s->n, b.s->n));
        int c = jstr_cmp(a.s, b.s);
        return c < 0 ? -1 : c > 0;
    }
    if (a.kind != b.kind || !jv_is_seq(a))
        jop_no_order(rt, op, a, b);
    jdeeper(rt);
    int order = a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
    for (size_t i = 0; i < size_min(a.l->n, b.l->n); i++)
        if (!jop_eq(rt, a.l->v[i], b.l->v[i])) {
            order = jop_order(rt, op, a.l->v[i], b.l->v[i]);
            break;
        }
    jshallower(rt);
    return order;
}

bool jop_less(struct jrt *rt, struct jv a, struct jv b)
{
    jcharge(rt, 0);
    return jop_order(rt, "<", a, b) == -1;
}

static bool jop_in_view(struct jrt *rt, struct jv item, const struct jview *view)
{
    if (view->kind == JVIEW_KEYS)
        return jdict_get(rt, view->d, item);
    for (size_t i = 0; i < view->d->n; i++) {
        const struct jpair *p = &view->d->item[i];
        if (view->kind == JVIEW_VALUES
                ? jop_eq(rt, item, p->value)
                : item.kind == J_TUPLE && item.l->n == 2 && jop_eq(rt, item.l->v[0], p->key) &&
                      jop_eq(rt, item.l->v[1], p->value))
            return true;
    }
    return false;
}

static bool jop_in(struct jrt *rt, struct jv item, struct jv c)
{
    if (c.kind == J_STR) {
        if (item.kind != J_STR)
            jfail(rt, "'in <string>' requires string as left operand, not %s", jv_type(item));
        jcharge(rt, c.s->n);
        return !item.s->n || memmem(c.s->s, c.s->n, item.s->s, item.s->n);
    }
    if (c.kind == J_DICT)
        return jdict_get(rt, c.d, item);
    if (c.kind == J_VIEW)
        return jop_in_view(rt, item, c.view);
    if (!jiter_can(c))
        jfail(rt, "argument of type '%s' is not iterable", jv_type(c));
    struct jiter *it = jiter_of(rt, c);
    struct jv v;
    while (jiter_next(rt, it, &v))
        if (jop_eq(rt, item, v))
            return true;
    return false;
}

bool jop_compare(struct jrt *rt, enum jcmp op, struct jv a, struct jv b)
{
    int order;
    switch (op) {
    case JCMP_EQ:
        return jop_eq(rt, a, b);
    case JCMP_NE:
        return !jop_eq(rt, a, b);
    case JCMP_IN:
        return jop_in(rt, a, b);
    case JCMP_NOTIN:
        return !jop_in(rt, a, b);
    case JCMP_LT:
        return jop_less(rt, a, b);
    case JCMP_GT:
        return jop_order(rt, ">", a, b) == 1;
    case JCMP_LE:
        order = jop_order(rt, "<=", a, b);
        return order == -1 || order == 0;
    default:
        order = jop_order(rt, ">=", a, b);
        return order == 1 || order == 0;
    }
}

bool jop_len(struct jv v, size_t *n)
{
    switch (v.kind) {
    case J_UNDEF:
        *n = 0;
        return true;
    case J_STR:
        *n = v.s->chars;
        return true;
    case J_LIST:
    case J_TUPLE:
        *n = v.l->n;
        return true;
    case J_DICT:
        *n = v.d->n;
        return true;
    case J_VIEW:
        *n = v.view->d->n;
        return true;
    case J_RANGE:
        *n = v.range->n;
        return true;
    default:
        return false;
    }
}

/* -- arithmetic */

static _Noreturn void jop_no_binary(struct jrt *rt, enum jbin op, struct jv a, struct jv b)
{
    static const char *const sign[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (a.kind == J_UNDEF)
        jfail_undef(rt, a);
    if (b.kind == J_UNDEF)
        jfail_undef(rt, b);
    if (op == JBIN_ADD && (a.kind == J_STR || jv_is_seq(a)))
        jfail(rt, "can only concatenate %s (not \"%s\") to %s", jv_type(a), jv_type(b), jv_type(a));
    jfail(rt, "unsupported operand type(s) for %s: '%s' and '%s'", sign[op], jv_type(a), jv_type(b));
}

static _Noreturn void jop_too_big(struct jrt *rt)
{
    jfail_limit(rt, "an integer does not fit in 64 bits");
}

static int64_t jop_floordiv_int(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b && (a < 0) != (b < 0));
}

static struct jv jop_pow_int(struct jrt *rt, int64_t a, int64_t b)
{
    if (b < 0) {
        if (!a)
            jfail(rt, "0.0 cannot be raised to a negative power");
        return jv_float(pow((double)a, (double)b));
    }
    int64_t r = 1;
    for (uint64_t e = (uint64_t)b; e; e >>= 1) {
        if ((e & 1) && __builtin_mul_overflow(r, a, &r))
            jop_too_big(rt);
        if (e > 1 && __builtin_mul_overflow(a, a, &a))
            jop_too_big(rt);
    }
    return jv_int(r);
}

static struct jv jop_int(struct jrt *rt, enum jbin op, int64_t a, int64_t b)
{
    int64_t r;
    bool over = false;
    if (op >= JBIN_DIV && op <= JBIN_MOD && !b)
        jfail(rt, op == JBIN_DIV ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case JBIN_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case JBIN_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case JBIN_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case JBIN_DIV:
        return jv_float((double)a / (double)b);
    case JBIN_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        r = over ? 0 : jop_floordiv_int(a, b);
        break;
    case JBIN_MOD:
        r = b == -1 ? 0 : a - jop_floordiv_int(a, b) * b;
        break;
    default:
        return jop_pow_int(rt, a, b);
    }
    if (over)
        jop_too_big(rt);
    return jv_int(r);
}

static struct jv jop_float(struct jrt *rt, enum jbin op, double a, double b)
{
    if (op >= JBIN_DIV && op <= JBIN_MOD && b == 0)
        jfail(rt, op == JBIN_DIV   ? "float division by zero"
                  : op == JBIN_MOD ? "float modulo"
                                   : "float floor division by zero");
    double mod, div;
    switch (op) {
    case JBIN_ADD:
        return jv_float(a + b);
    case JBIN_SUB:
        return jv_float(a - b);
    case JBIN_MUL:
        return jv_float(a * b);
    case JBIN_DIV:
        return jv_float(a / b);
    case JBIN_POW:
        if (a == 0 && b < 0)
            jfail(rt, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b) && !isinf(b))
            jfail(rt, "a complex number is not supported");
        div = pow(a, b);
        if (isinf(div) && !isinf(a) && !isinf(b))
            jfail(rt, "(34, 'Numerical result out of range')");
        return jv_float(div);
    default:
        mod = fmod(a, b);
        div = (a - mod) / b;
        if (mod != 0 && (b < 0) != (mod < 0)) {
            mod += b;
            div -= 1;
        } else if (mod == 0) {
            mod = copysign(0, b);
        }
        if (op == JBIN_MOD)
            return jv_float(mod);
        if (div == 0)
            return jv_float(copysign(0, a / b));
        return jv_float(div - floor(div) > 0.5 ? floor(div) + 1 : floor(div));
    }
}

static struct jv jop_repeat(struct jrt *rt, struct jv v, int64_t times)
{
    size_t n = times < 0 ? 0 : (size_t)times, unit = v.kind == J_STR ? v.s->n : v.l->n, total;
    if (!size_mul(unit, n, &total) || total > rt->arena.limit)
        jfail_limit(rt, "a repeated %s is too long", jv_type(v));
    if (v.kind == J_STR) {
        struct jsb b = {.rt = rt};
        for (size_t i = 0; unit && i < n; i++)
            jsb_str(&b, v.s);
        struct jstr *s = jsb_done(&b);
        s->markup = v.s->markup;
        return jv_str(s);
    }
    struct jlist *l = jlist_new(rt, total);
    for (size_t i = 0; unit && i < n; i++)
        for (size_t k = 0; k < unit; k++)
            jlist_add(rt, l, v.l->v[k]);
    return (struct jv){.kind = v.kind, .l = l};
}

static struct jv jop_add_str(struct jrt *rt, struct jv a, struct jv b)
{
    if (!a.s->markup && !b.s->markup)
        return jv_str(jstr_concat(rt, a.s, b.s));
    struct jstr *left = a.s->markup ? a.s : jop_escape(rt, a), *right = b.s->markup ? b.s : jop_escape(rt, b);
    struct jstr *s = jstr_concat(rt, left, right);
    s->markup = true;
    return jv_str(s);
}

struct jv jop_binary(struct jrt *rt, enum jbin op, struct jv a, struct jv b)
{
    if (jv_is_num(a) && jv_is_num(b)) {
        struct jv r = jv_is_int(a) && jv_is_int(b) ? jop_int(rt, op, jv_as_int(a), jv_as_int(b))
                                                   : jop_float(rt, op, jv_as_float(a), jv_as_float(b));
        r.data = a.data | b.data;
        return r;
    }
    if (op == JBIN_ADD && a.kind == b.kind) {
        if (a.kind == J_STR)
            return jop_add_str(rt, a, b);
        if (jv_is_seq(a))
            return (struct jv){.kind = a.kind, .l = jlist_concat(rt, a.l, b.l)};
    }
    if (op == JBIN_MUL && jv_is_int(b) && (a.kind == J_STR || jv_is_seq(a)))
        return jop_repeat(rt, a, jv_as_int(b));
    if (op == JBIN_MUL && jv_is_int(a) && (b.kind == J_STR || jv_is_seq(b)))
        return jop_repeat(rt, b, jv_as_int(a));
    if (op == JBIN_MOD && a.kind == J_STR)
        return jv_str(jformat_percent(rt, a.s, b));
    jop_no_binary(rt, op, a, b);
}

struct jv jop_negate(struct jrt *rt, struct jv a, bool minus)
{
    if (a.kind == J_UNDEF)
        jfail_undef(rt, a);
    if (!jv_is_num(a))
        jfail(rt, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jv_type(a));
    if (a.kind == J_FLOAT)
        return (struct jv){.kind = J_FLOAT, .data = a.data, .f = minus ? -a.f : a.f};
    int64_t i = jv_as_int(a);
    if (minus && __builtin_sub_overflow(0, i, &i))
        jop_too_big(rt);
    return (struct jv){.kind = J_INT, .data = a.data, .i = i};
}

/* -- subscripts */

static bool jop_hashable(struct jv v)
{
    if (v.kind != J_TUPLE)
        return v.kind != J_LIST && v.kind != J_DICT;
    for (size_t i = 0; i < v.l->n; i++)
        if (v.l->v[i].kind == J_TUPLE || !jop_hashable(v.l->v[i]))
            return false;
    return true;
}

static struct jv jop_char(struct jrt *rt, const struct jstr *s, size_t i)
{
    size_t at = jstr_offset(s, i), n = 1;
    while (at + n < s->n && ((unsigned char)s->s[at + n] & 0xc0) == 0x80)
        n++;
    return jv_str(jstr_sub(rt, s, at, n));
}

static struct jv jop_at(struct jrt *rt, struct jv obj, size_t i)
{
    if (obj.kind == J_STR)
        return jop_char(rt, obj.s, i);
    if (obj.kind == J_RANGE)
        return jv_int(obj.range->start + (int64_t)i * obj.range->step);
    return obj.l->v[i];
}

/* Python's getattr: methods first; J_MISSING where there is no such attribute. */
static struct jv jop_python_attr(struct jrt *rt, struct jv obj, struct jstr *name)
{
    if (obj.kind == J_NS) {
        struct jv *v = jdict_get(rt, obj.d, jv_str(name));
        return v ? *v : jv_missing();
    }
    if (name->n >= 4 && !memcmp(name->s, "__", 2) && !memcmp(name->s + name->n - 2, "__", 2))
        return jv_undef_hint(rt, "access to attribute '%s' of '%s' object is unsafe.", jstr_c(rt, name),
                             jv_type(obj));
    return jmethod_find(rt, obj, name);
}

struct jv jop_attr(struct jrt *rt, struct jv obj, struct jstr *name)
{
    if (obj.kind == J_UNDEF)
        jfail_undef(rt, obj);
    struct jv v = jop_python_attr(rt, obj, name);
    if (v.kind != J_MISSING)
        return v;
    if (obj.kind == J_DICT) {
        struct jv *item = jdict_get(rt, obj.d, jv_str(name));
        if (item)
            return *item;
    }
    return jv_undef_attr(rt, obj, jv_str(name));
}

struct jv jop_item(struct jrt *rt, struct jv obj, struct jv key)
{
    size_t n;
    if (obj.kind == J_UNDEF)
        jfail_undef(rt, obj);
    if (obj.kind == J_DICT) {
        struct jv *item = jop_hashable(key) ? jdict_get(rt, obj.d, key) : NULL;
        if (item)
            return *item;
    } else if ((obj.kind == J_STR || jv_is_seq(obj) || obj.kind == J_RANGE) && jv_is_int(key) &&
               jop_len(obj, &n)) {
        int64_t i = jv_as_int(key);
        if (i < 0)
            i += (int64_t)n;
        if (i >= 0 && (size_t)i < n)
            return jop_at(rt, obj, (size_t)i);
    }
    if (key.kind == J_STR) {
        struct jv v = jop_python_attr(rt, obj, key.s);
        if (v.kind != J_MISSING)
            return v;
    }
    return jv_undef_attr(rt, obj, key);
}

struct jv jop_path(struct jrt *rt, struct jv obj, struct jv path, struct jv fallback)
{
    if (!jarg_given(path))
        return obj;
    if (path.kind != J_STR) {
        struct jv v = jop_item(rt, obj, path);
        return v.kind == J_UNDEF && jarg_given(fallback) ? fallback : v;
    }
    for (size_t at = 0; at <= path.s->n;) {
        const char *dot = memchr(path.s->s + at, '.', path.s->n - at);
        size_t n = dot ? (size_t)(dot - path.s->s) - at : path.s->n - at;
        struct jstr *part = jstr_sub(rt, path.s, at, n);
        bool digits = n > 0 && n < 18;
        int64_t index = 0;
        for (size_t i = 0; digits && i < n; i++) {
            digits = part->s[i] >= '0' && part->s[i] <= '9';
            index = index * 10 + (part->s[i] - '0');
        }
        obj = jop_item(rt, obj, digits ? jv_int(index) : jv_str(part));
        if (obj.kind == J_UNDEF && jarg_given(fallback))
            obj = fallback;
        at += n + 1;
    }
    return obj;
}

/* -- slices */

static int64_t jop_bound(struct jrt *rt, struct jv v, int64_t otherwise)
{
    if (v.kind == J_NONE || v.kind == J_MISSING)
        return otherwise;
    if (!jv_is_int(v))
        jfail(rt, "slice indices must be integers or None or have an __index__ method");
    return jv_as_int(v);
}

/* A bound as Python adjusts it: from the end where negative, cut to the sequence. */
static int64_t jop_adjust(int64_t i, int64_t n, bool back)
{
    if (i < 0) {
        i = i < -n ? -1 : i + n;
        return i < 0 ? (back ? -1 : 0) : i;
    }
    return i >= n ? (back ? n - 1 : n) : i;
}

static struct jv jop_slice_range(struct jrt *rt, const struct jrange *r, int64_t start, int64_t step,
                                 size_t count)
{
    struct jrange *s = jalloc(rt, 1, sizeof *s);
    *s = (struct jrange){.start = r->start + start * r->step, .step = r->step * step, .n = count};
    s->stop = s->start + (int64_t)count * s->step;
    return (struct jv){.kind = J_RANGE, .range = s};
}

struct jv jop_slice(struct jrt *rt, struct jv obj, const struct jv bound[3])
{
    size_t len;
    if (obj.kind == J_UNDEF)
        jfail_undef(rt, obj);
    if (obj.kind == J_DICT)
        jfail(rt, "unhashable type: 'slice'");
    if (obj.kind != J_STR && !jv_is_seq(obj) && obj.kind != J_RANGE)
        jfail(rt, "'%s' object is not subscriptable", jv_type(obj));
    jop_len(obj, &len);
    int64_t n = (int64_t)len, step = jop_bound(rt, bound[2], 1);
    if (!step)
        jfail(rt, "slice step cannot be zero");
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    bool back = step < 0;
    int64_t start = jop_adjust(jop_bound(rt, bound[0], back ? INT64_MAX : 0), n, back);
    int64_t stop = jop_bound(rt, bound[1], back ? INT64_MIN : INT64_MAX);
    stop = back && stop == INT64_MIN ? -1 : jop_adjust(stop, n, back);
    int64_t span = back ? start - stop : stop - start, pace = back ? -step : step;
    size_t count = span > 0 ? (size_t)((span - 1) / pace + 1) : 0;
    if (obj.kind == J_RANGE)
        return jop_slice_range(rt, obj.range, count ? start : 0, step, count);
    if (obj.kind == J_STR && (step == 1 || !count)) {
        size_t from = count ? jstr_offset(obj.s, (size_t)start) : 0;
        size_t to = count ? jstr_offset(obj.s, (size_t)stop) : 0;
        jcharge(rt, obj.s->chars == obj.s->n ? 0 : to);
        return jv_str(jstr_sub(rt, obj.s, from, to - from));
    }
    if (obj.kind == J_STR) {
        struct jlist *chars = jiter_list(rt, obj);
        struct jsb b = {.rt = rt};
        for (size_t i = 0; i < count; i++)
            jsb_str(&b, chars->v[start + (int64_t)i * step].s);
        struct jstr *s = jsb_done(&b);
        s->markup = obj.s->markup;
        return jv_str(s);
    }
    struct jlist *l = jlist_new(rt, count);
    for (size_t i = 0; i < count; i++)
        jlist_add(rt, l, obj.l->v[start + (int64_t)i * step]);
    return (struct jv){.kind = obj.kind, .l = l};
}
