/* Calls that go out while they come. Where the model is held to the syntax of its family, a call is sure as soon as its
 * arguments begin, and they are JSON to their end, unless the answer is cut there. */
#include "lang/chat/output_internal.h"

#include "base/mem.h"

#include <string.h>

/* What leads to the arguments. */
static int head_arguments(const struct output_head *o, struct output_text t, struct output_call_head *h)
{
    int found = output_match(o->text, t, h), best = -1;
    if (found <= 0)
        return found;
    t = (struct output_text){t.s + h->n, t.n - h->n};
    for (const char *const *a = output_arguments; *a && best < 1; a++) {
        struct output_call_head own = {0};
        int match = output_match(*a, t, &own);
        h->n += match > 0 ? own.n : 0;
        best = match > best ? match : best;
    }
    return best;
}

/* Behind what may stand between two calls of a body. */
static int head_json(bool keyed, struct output_text t, struct output_call_head *h)
{
    size_t skip = 0;
    int best = -1;
    while (skip < t.n && (output_is_white(t.s[skip]) || strchr("[},;", t.s[skip])) && t.s[skip])
        skip++;
    t = (struct output_text){t.s + skip, t.n - skip};
    for (size_t i = 0; i < (keyed ? 1 : output_head_count) && best < 1; i++) {
        struct output_call_head own = {0};
        int match = keyed ? output_match("{ \"@\" : ", t, &own) : head_arguments(&output_heads[i], t, &own);
        if (match > best) {
            best = match;
            *h = own;
        }
    }
    h->n += skip;
    return best;
}

/* The arguments have to be an object, and the tool one that there is. */
static int head_find(const struct output_wrap *w, const json_t *tools, struct output_text t,
                     struct output_call_head *h)
{
    int found = w->shape == SHAPE_JSON || w->shape == SHAPE_KEYED ? head_json(w->shape == SHAPE_KEYED, t, h)
                : w->shape == SHAPE_NAMED                         ? output_named_head(w, t, h)
                                                                  : -1;
    if (found <= 0)
        return found;
    while (h->n < t.n && output_is_white(t.s[h->n]))
        h->n++;
    size_t inner = h->n + 1; /* doubled braces are mended when the call is whole */
    while (inner < t.n && output_is_white(t.s[inner]))
        inner++;
    if (inner >= t.n)
        return 0;
    char *name = mem_strndup(h->name.s, h->name.n);
    bool known = name && t.s[h->n] == '{' && t.s[inner] != '{' && output_tool(tools, name);
    mem_free(name);
    return known ? 1 : -1;
}

static void ahead_begin(struct output_ahead *a, const struct output_wrap *w, const struct output_options *o,
                        struct output_text held)
{
    struct output_call_head h = {0};
    int found = head_find(w, o->tools, (struct output_text){held.s + a->from, held.n - a->from}, &h);
    if (found < 0 || a->calls == OUTPUT_CALLS)
        a->at = AHEAD_OVER;
    if (a->at == AHEAD_OVER || !found)
        return;
    char *name = mem_strndup(h.name.s, h.name.n), *id = h.id.n ? mem_strndup(h.id.s, h.id.n) : NULL;
    a->at = name && (id || !h.id.n) ? AHEAD_ARGUMENTS : AHEAD_OVER;
    if (a->at == AHEAD_ARGUMENTS) {
        o->take(o->arg, &(struct output_piece){
                            .part = OUTPUT_CALL, .text = "", .name = name, .id = id, .more = true});
        a->calls++;
        a->from += h.n;
        a->scan = (struct output_scan){0};
    }
    mem_free(name);
    mem_free(id);
}

static void ahead_go_on(struct output_ahead *a, const struct output_wrap *w, const struct output_options *o,
                        struct output_text held)
{
    size_t end = a->from;
    bool whole = false;
    while (end < held.n && !whole)
        whole = output_scan(&a->scan, held.s[end++]);
    if (end > a->from)
        o->take(o->arg,
                &(struct output_piece){
                    .part = OUTPUT_CALL, .text = held.s + a->from, .n = end - a->from, .more = !whole});
    a->from = end;
    if (whole)
        a->at = w->shape == SHAPE_NAMED ? AHEAD_OVER : AHEAD_HEAD;
}

void output_ahead(struct output_ahead *a, const struct output_wrap *w, const struct output_options *o,
                  struct output_text held)
{
    size_t before = SIZE_MAX;
    while (a->at != AHEAD_OVER && a->from < held.n && a->from != before) {
        before = a->from;
        if (a->at == AHEAD_HEAD)
            ahead_begin(a, w, o, held);
        else
            ahead_go_on(a, w, o, held);
    }
}
