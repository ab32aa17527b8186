/* Text in which calls may come. It is divided into stretches by reasoning, in which no call is recognised,
 * and by blocks that are calls; calls after a mark end it:
 *
 *   (stretch (open reasoning close | block))* stretch [open reasoning | calls]
 *
 * A stretch is any text in which no call begins: what begins one is a mark, or what output_heads lists with
 * the name of a tool. So a call can be written in one way only: the one that follows the tool's schema. Where
 * only one call is wanted, none can begin after it. */
#include "lang/chat/output_maker.h"

#include <string.h>

/* ---- calls without a mark of their own ---- */

static struct gram *free_white(struct maker *m)
{
    return gram_rep(m->g, gram_ascii(m->g, "\t\n\r\r  "), 0, GRAMMAR_MOST);
}

/* What may stand between the signs of JSON: a little, or a line end and some indentation. */
static struct gram *free_gap(struct maker *m)
{
    return gram_alt(m->g, m->space,
                    gram_seq(m->g, gram_text(m->g, "\n"), gram_rep(m->g, gram_ascii(m->g, "  \t\t"), 0, 16)));
}

/* A pattern of output_heads or output_arguments, up to the name where it has one. */
static struct gram *free_pattern(struct maker *m, const char *pattern, struct gram *white)
{
    struct gram_items all = {0};
    for (const char *p = pattern; *p && *p != '@'; p++)
        gram_push(m->g, &all, *p == ' ' ? white : gram_bytes(m->g, p, 1));
    return gram_list(m->g, GRAM_SEQ, all.at, all.n);
}

/* Those after which `depth` braces are open; 0 = all. */
static struct gram *free_heads(struct maker *m, uint32_t depth)
{
    struct gram_items all = {0};
    struct gram *white = free_white(m);
    for (size_t i = 0; i < output_head_count; i++)
        if (!depth || output_heads[i].depth == depth)
            gram_push(m->g, &all, free_pattern(m, output_heads[i].text, white));
    return gram_list(m->g, GRAM_ALT, all.at, all.n);
}

static const char *free_name(const struct maker *m, size_t i)
{
    return json_string_value(json_object_get(output_function(m->rule->tools, i), "name"));
}

static struct gram *free_names(struct maker *m)
{
    struct gram_items all = {0};
    for (size_t i = 0; i < json_array_size(m->rule->tools); i++)
        if (free_name(m, i))
            gram_push(m->g, &all, gram_text(m->g, free_name(m, i)));
    return all.n ? gram_list(m->g, GRAM_ALT, all.at, all.n) : gram_fail(m->g);
}

/* Up to the byte that makes a call of it. */
static struct gram *free_begin(struct maker *m, const struct output_wrap *w)
{
    struct gram *white = free_white(m), *names = free_names(m);
    struct gram *list = gram_rep(m->g, gram_seq(m->g, gram_text(m->g, "["), white), 0, 1);
    if (w->shape != SHAPE_CODE)
        return gram_seq(m->g, white, list, free_heads(m, 0), names, gram_text(m->g, "\""));
    struct gram *print = gram_rep(m->g, gram_seq(m->g, gram_text(m->g, "print("), white), 0, 1);
    return gram_seq(m->g, white, print, list, names, gram_rep(m->g, gram_text(m->g, ".call"), 0, 1), white,
                    gram_ascii(m->g, "(({{"));
}

/* From the name to the brace that closes the call. */
static struct gram *free_rest(struct maker *m, struct gram *gap)
{
    struct gram_items keys = {0}, all = {0};
    uint32_t key = grammar_rule(m->g), rest = grammar_rule(m->g);
    for (const char *const *a = output_arguments; *a; a++)
        gram_push(m->g, &keys, free_pattern(m, *a, gap));
    grammar_define(m->g, key, gram_list(m->g, GRAM_ALT, keys.at, keys.n));
    for (size_t i = 0; i < json_array_size(m->rule->tools); i++)
        if (free_name(m, i))
            gram_push(m->g, &all,
                      gram_seq(m->g, gram_text(m->g, free_name(m, i)), gram_text(m->g, "\""),
                               gram_call(m->g, key), maker_object(m, output_function(m->rule->tools, i))));
    grammar_define(m->g, rest,
                   gram_seq(m->g, all.n ? gram_list(m->g, GRAM_ALT, all.at, all.n) : gram_fail(m->g), gap,
                            gram_text(m->g, "}")));
    return gram_call(m->g, rest);
}

/* A call in JSON, or a list of them: a rule that is written once. */
static struct gram *free_json(struct maker *m)
{
    if (m->json)
        return m->json;
    uint32_t space = grammar_rule(m->g), one = grammar_rule(m->g), json = grammar_rule(m->g);
    grammar_define(m->g, space, free_gap(m));
    struct gram *gap = gram_call(m->g, space), *call = gram_call(m->g, one), *rest = free_rest(m, gap);
    grammar_define(m->g, one,
                   gram_alt(m->g, gram_seq(m->g, free_heads(m, 1), rest),
                            gram_seq(m->g, free_heads(m, 2), rest, gap, gram_text(m->g, "}"))));
    struct gram *more = gram_rep(m->g, gram_seq(m->g, gap, gram_text(m->g, ","), gap, call), 0,
                                 m->rule->many ? GRAMMAR_MOST : 0);
    struct gram *list =
        gram_seq(m->g, gram_text(m->g, "["), free_white(m), call, more, gap, gram_text(m->g, "]"));
    grammar_define(m->g, json, gram_alt(m->g, call, list));
    return m->json = gram_call(m->g, json);
}

static struct gram *free_code(struct maker *m, const struct output_wrap *w)
{
    m->wrap = w;
    struct gram *call = maker_any(m);
    return gram_alt(m->g, call, gram_seq(m->g, gram_text(m->g, "print("), call, gram_text(m->g, ")")));
}

static struct gram *free_block(struct maker *m, const struct output_wrap *w)
{
    uint32_t one = grammar_rule(m->g);
    struct gram *body = w->shape == SHAPE_CODE ? free_code(m, w) : free_json(m);
    grammar_define(m->g, one,
                   gram_seq(m->g, gram_text(m->g, w->open), free_white(m), body, free_gap(m),
                            gram_text(m->g, w->close)));
    return gram_call(m->g, one);
}

/* ---- all of it ---- */

/* Is there a wrap before this one with the same mark? Then a model writes this one only where it is code. */
static bool free_is_other(const struct output_form *f, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (!strcmp(f->wraps[k].open, f->wraps[i].open))
            return f->wraps[i].shape != SHAPE_CODE;
    return false;
}

/* Every way to write calls: in a block, behind a mark; and what begins them. */
struct ways {
    struct gram_items blocks, calls, begin;
};

static void free_wraps(struct maker *m, struct ways *ways)
{
    const struct output_form *f = m->form;
    for (size_t i = 0; i < OUTPUT_WRAPS && f->wraps[i].open; i++) {
        const struct output_wrap *w = &f->wraps[i];
        struct gram *open = gram_text(m->g, w->open);
        if (free_is_other(f, i))
            continue;
        gram_push(m->g, &ways->begin, w->known ? gram_seq(m->g, open, free_begin(m, w)) : open);
        m->wrap = w;
        if (w->known)
            gram_push(m->g, &ways->blocks, free_block(m, w));
        else
            gram_push(m->g, &ways->calls, maker_calls(m));
    }
    m->wrap = &f->wraps[0];
    for (size_t i = 0; i < 4 && f->section[i]; i += 2) {
        gram_push(m->g, &ways->begin, gram_text(m->g, f->section[i]));
        gram_push(m->g, &ways->calls,
                  gram_seq(m->g, gram_text(m->g, f->section[i]), m->space, maker_calls(m), m->space,
                           gram_text(m->g, f->section[i + 1])));
    }
}

/* The rule of a stretch. JSON alone counts where it begins, and behind JSON that was a call. */
static struct gram *free_stretch(struct maker *m, const struct ways *ways)
{
    static const struct output_wrap bare = {.shape = SHAPE_JSON};
    const struct output_thought *t = m->rule->thought;
    struct gram_items begin = ways->begin;
    if (t)
        gram_push(m->g, &begin, gram_text(m->g, t->open));
    struct gram *never = gram_seq(m->g, gram_any(m->g), gram_list(m->g, GRAM_ALT, begin.at, begin.n));
    if (m->form->bare)
        never = gram_alt(m->g, never,
                         gram_seq(m->g, gram_rep(m->g, gram_ascii(m->g, "\t\n\r\r  ;;"), 0, GRAMMAR_MOST),
                                  free_begin(m, &bare)));
    uint32_t stretch = grammar_rule(m->g);
    grammar_define(m->g, stretch, gram_dfa(m->g, dfa_never(m->g, never)));
    return gram_call(m->g, stretch);
}

static struct gram *free_list(struct maker *m, const struct gram_items *l)
{
    return l->n ? gram_list(m->g, GRAM_ALT, l->at, l->n) : gram_fail(m->g);
}

struct gram *maker_free(struct maker *m)
{
    const struct output_thought *t = m->rule->thought;
    struct ways ways = {0};
    free_wraps(m, &ways);
    struct gram *white = free_white(m), *text = free_stretch(m, &ways), *block = free_list(m, &ways.blocks);
    struct gram *reason = t ? gram_until(m->g, t->close) : gram_fail(m->g);
    struct gram *thinks = t ? gram_seq(m->g, gram_text(m->g, t->open), reason) : reason;
    struct gram *aside = t ? gram_seq(m->g, thinks, gram_text(m->g, t->close)) : reason;
    struct gram *one = m->rule->many ? gram_fail(m->g) : gram_seq(m->g, block, text);
    struct gram *end =
        gram_alt(m->g, gram_text(m->g, ""), thinks, one, gram_seq(m->g, free_list(m, &ways.calls), m->space));
    struct gram *cut = m->rule->many ? gram_alt(m->g, aside, block) : aside;
    struct gram *all = gram_seq(m->g, gram_rep(m->g, gram_seq(m->g, text, cut), 0, GRAMMAR_MOST), text, end);
    if (m->form->bare) { /* nothing but reasoning may stand before JSON alone */
        struct gram *json = free_json(m),
                    *between = gram_seq(m->g, white, gram_rep(m->g, gram_text(m->g, ";"), 0, 1), white);
        struct gram *more =
            m->rule->many
                ? gram_seq(m->g, gram_rep(m->g, gram_seq(m->g, between, json), 0, GRAMMAR_MOST), all)
                : text;
        all = gram_alt(
            m->g, all,
            gram_seq(m->g, gram_rep(m->g, gram_seq(m->g, white, aside), 0, GRAMMAR_MOST), white, json, more));
    }
    if (m->rule->thinking)
        all = gram_alt(m->g, reason, gram_seq(m->g, reason, gram_text(m->g, t->close), all));
    return all;
}
