/* Compiling and rendering: the interface of the interpreter. */
#include "lang/jinja/jinja.h"

#include "base/utf8.h"
#include "lang/jinja/jinja_run.h"

#include <string.h>

#define COMPILE_FUEL   ((uint64_t)50 * 1000 * 1000)
#define COMPILE_MEMORY ((size_t)128 << 20)
#define COMPILE_DEPTH  400
#define RENDER_FUEL    ((uint64_t)50 * 1000 * 1000)
#define RENDER_MEMORY  ((size_t)256 << 20)
#define RENDER_OUTPUT  ((size_t)64 << 20)
#define RENDER_DEPTH   2000

/* -- compiling */

/* Apart from jinja_compile, so that no local of that one lives across the longjmp. */
static bool compile_guarded(struct jrt *rt, struct jinja *t, const char *text, size_t n)
{
    if (setjmp(rt->fail))
        return false;
    t->names = jdict_new(rt);
    t->root = jparse(rt, text, n, t->names);
    jscope(rt, t->root);
    return true;
}

int jinja_compile(struct jinja **out, const char *text, size_t n, struct err *e)
{
    struct jinja *t = mem_zalloc(1, sizeof *t);
    if (!t)
        return err_memory(e, "a template", sizeof *t);
    struct err local = {0};
    struct jrt rt = {.arena = {.limit = COMPILE_MEMORY},
                     .fuel = COMPILE_FUEL,
                     .depth_max = COMPILE_DEPTH,
                     .err = e ? e : &local};
    bool ok = compile_guarded(&rt, t, text, n);
    t->arena = rt.arena;
    if (!ok) {
        jinja_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    arena_free(&t->arena);
    mem_free(t);
}

bool jinja_mentions(const struct jinja *t, const char *name)
{
    for (size_t i = 0; i < t->names->n; i++)
        if (jstr_is(t->names->item[i].key.s, name))
            return true;
    return false;
}

/* -- values from JSON */

struct jimport {
    struct jrt *rt;
    const char *const *roles;
    bool data;
};

static struct jv import_value(const struct jimport *im, const json_t *j);

static bool import_is_role(const struct jimport *im, const char *key, const json_t *value)
{
    if (!im->roles || !json_is_string(value) || strcmp(key, "role"))
        return false;
    for (const char *const *r = im->roles; *r; r++)
        if (!strcmp(*r, json_string_value(value)))
            return true;
    return false;
}

static struct jv import_object(const struct jimport *im, const json_t *j)
{
    struct jdict *d = jdict_new(im->rt);
    struct jimport trusted = *im;
    trusted.data = false;
    for (void *it = json_object_iter((json_t *)j); it; it = json_object_iter_next((json_t *)j, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        struct jv v = import_value(import_is_role(im, key, value) ? &trusted : im, value);
        jdict_set(im->rt, d, jv_str(jstr_new(im->rt, key, strlen(key), im->data)), v);
    }
    return jv_dict(d);
}

static struct jv import_value(const struct jimport *im, const json_t *j)
{
    struct jv v = jv_none();
    jdeeper(im->rt);
    jcharge(im->rt, 0);
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        v = import_object(im, j);
        break;
    case JSON_ARRAY:
        v = jv_list(jlist_new(im->rt, json_array_size(j)));
        for (size_t i = 0; i < json_array_size(j); i++)
            jlist_add(im->rt, v.l, import_value(im, json_array_get(j, i)));
        break;
    case JSON_STRING:
        v = jv_str(jstr_new(im->rt, json_string_value(j), json_string_length(j), im->data));
        break;
    case JSON_INTEGER:
        v = jv_int(json_integer_value(j));
        break;
    case JSON_REAL:
        v = jv_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        v = jv_bool(json_is_true(j));
        break;
    case JSON_NULL:
        break;
    }
    v.data = im->data;
    jshallower(im->rt);
    return v;
}

static void import_names(struct jrt *rt, const json_t *names, const char *const *roles, bool data)
{
    if (!names)
        return;
    struct jimport im = {rt, roles, data};
    struct jv all = import_value(&im, names);
    if (all.kind != J_DICT)
        jfail(rt, "the names of a template must be a JSON object");
    for (size_t i = 0; i < all.d->n; i++)
        jdict_set(rt, rt->given, all.d->item[i].key, all.d->item[i].value);
}

/* -- rendering */

static bool render_guarded(struct jrt *rt, const struct jinja *t, const struct jinja_input *in,
                           struct jsb *out)
{
    if (setjmp(rt->fail))
        return false;
    rt->out = out;
    rt->vars = jdict_new(rt);
    rt->given = jdict_new(rt);
    import_names(rt, in->own, NULL, false);
    import_names(rt, in->data, in->roles, true);
    jexec(rt, NULL, t->root);
    return true;
}

static int spans_copy(struct spans *out, const struct jsb *b, struct err *e)
{
    size_t count = 0;
    for (size_t i = 0; i < b->n; i++)
        count += !i || b->mask[i] != b->mask[i - 1];
    *out = (struct spans){
        .text = mem_alloc(b->n + 1, 1), .n = b->n, .items = mem_alloc(count, sizeof *out->items)};
    if (!out->text || !out->items) {
        spans_free(out);
        return err_memory(e, "the rendered prompt", b->n);
    }
    if (b->n)
        memcpy(out->text, b->s, b->n);
    out->text[b->n] = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (!i || b->mask[i] != b->mask[i - 1])
            out->items[out->count++] = (struct jinja_span){out->text + i, 0, !b->mask[i]};
        out->items[out->count - 1].n++;
    }
    return 0;
}

int jinja_render(const struct jinja *t, const struct jinja_input *in, struct spans *out, struct err *e)
{
    const struct jinja_limits *l = &in->limits;
    struct err local = {0};
    struct jrt rt = {
        .arena = {.limit = l->memory ? l->memory : RENDER_MEMORY},
        .fuel = l->fuel ? l->fuel : RENDER_FUEL,
        .depth_max = l->depth ? l->depth : RENDER_DEPTH,
        .now = in->now,
        .err = e ? e : &local,
    };
    struct jsb b = {.rt = &rt, .max = l->output ? l->output : RENDER_OUTPUT};
    *out = (struct spans){0};
    int rc = render_guarded(&rt, t, in, &b) ? spans_copy(out, &b, e) : -1;
    arena_free(&rt.arena);
    return rc;
}

void spans_free(struct spans *s)
{
    mem_free(s->text);
    mem_free(s->items);
    *s = (struct spans){0};
}
