/* Text in which calls may come. It is cut into stretches by reasoning, in which nothing counts:
 *
 *   stretch (open reasoning close stretch)* [open reasoning | calls]
 *
 * A stretch is any text in which no call begins: what begins one is a mark, or what output_heads lists with the name of a
 * tool. So there is one way to write that, and it is the one that holds to the tool's schema. */
#include "lang/output_maker.h"

#include <string.h>

/* ---- calls without a mark of their own ---- */

static struct gram *free_white(struct maker *m)
{
    return gram_rep(m->g, gram_ascii(m->g, "\t\n\r\r  "), 0, GRAMMAR_MOST);
}

/* What may stand between the signs of JSON: nothing, a blank, or a line end and some indentation. */
static struct gram *free_gap(struct maker *m)
{
    return gram_alt(m->g, gram_rep(m->g, gram_text(m->g, " "), 0, 1),
                    gram_seq(m->g, gram_text(m->g, "\n"), gram_rep(m->g, gram_ascii(m->g, "  \t\t"), 0, 16)));
}

/* A pattern of output_heads or output_arguments; NULL as a name: all that can be called. */
static struct gram *free_pattern(struct maker *m, const char *pattern, struct gram *white, const char *name)
{
    struct gram_items all = {0};
    for (const char *p = pattern; *p; p++) {
        if (*p == ' ')
            gram_push(m->g, &all, white);
        else if (*p != '@')
            gram_push(m->g, &all, gram_bytes(m->g, p, 1));
        else if (name)
            gram_push(m->g, &all, gram_text(m->g, name));
    }
    return gram_list(m->g, GRAM_SEQ, all.at, all.n);
}

static const char *free_name(const struct maker *m, size_t i)
{
    return json_string_value(json_object_get(reply_function(m->rule->tools, i), "name"));
}

/* Every tool's name, whether or not it may be called. */
static struct gram *free_names(struct maker *m)
{
    struct gram_items all = {0};
    for (size_t i = 0; i < json_array_size(m->rule->tools); i++)
        if (free_name(m, i))
            gram_push(m->g, &all, gram_text(m->g, free_name(m, i)));
    return all.n ? gram_list(m->g, GRAM_ALT, all.at, all.n) : gram_fail(m->g);
}

/* Up to the byte that makes a call of it. */
static struct gram *free_begin(struct maker *m, const struct reply_wrap *w)
{
    struct gram_items heads = {0};
    struct gram *white = free_white(m), *names = free_names(m);
    struct gram *list = gram_rep(m->g, gram_seq(m->g, gram_text(m->g, "["), white), 0, 1);
    if (w->shape == SHAPE_CODE)
        return gram_seq(m->g, white,
                        gram_rep(m->g, gram_seq(m->g, gram_text(m->g, "print("), white), 0, 1), list, names,
                        gram_rep(m->g, gram_text(m->g, ".call"), 0, 1), white, gram_ascii(m->g, "(({{"));
    for (size_t i = 0; i < output_head_count; i++) {
        const char *text = output_heads[i].text;
        char before[96] = "";
        strncat(before, text, (size_t)(strchr(text, '@') - text));
        gram_push(m->g, &heads, free_pattern(m, before, white, NULL));
    }
    return gram_seq(m->g, white, list, gram_list(m->g, GRAM_ALT, heads.at, heads.n), names,
                    gram_text(m->g, "\""));
}

/* One call in JSON: a head, the arguments, and what closes the braces. */
static struct gram *free_object(struct maker *m)
{
    struct gram_items all = {0};
    struct gram *gap = free_gap(m);
    for (size_t i = 0; i < json_array_size(m->rule->tools); i++) {
        const json_t *f = reply_function(m->rule->tools, i);
        uint32_t arguments = grammar_rule(m->g);
        struct gram_items keys = {0}, heads[3] = {{0}, {0}, {0}};
        grammar_define(m->g, arguments, maker_object(m, f));
        for (const char *const *a = output_arguments; *a; a++)
            gram_push(m->g, &keys, free_pattern(m, *a, gap, NULL));
        struct gram *rest = gram_seq(m->g, gram_list(m->g, GRAM_ALT, keys.at, keys.n),
                                     gram_call(m->g, arguments), gap, gram_text(m->g, "}"));
        for (size_t k = 0; k < output_head_count; k++)
            gram_push(m->g, &heads[output_heads[k].depth],
                      free_pattern(m, output_heads[k].text, free_white(m), free_name(m, i)));
        gram_push(m->g, &all, gram_seq(m->g, gram_list(m->g, GRAM_ALT, heads[1].at, heads[1].n), rest));
        gram_push(m->g, &all,
                  gram_seq(m->g, gram_list(m->g, GRAM_ALT, heads[2].at, heads[2].n), rest, gap,
                           gram_text(m->g, "}")));
    }
    return gram_list(m->g, GRAM_ALT, all.at, all.n);
}

/* An object, or a list of them. */
static struct gram *free_json(struct maker *m)
{
    uint32_t one = grammar_rule(m->g), most = m->rule->many ? GRAMMAR_MOST : 0;
    struct gram *call = gram_call(m->g, one), *gap = free_gap(m);
    grammar_define(m->g, one, free_object(m));
    struct gram *more = gram_rep(m->g, gram_seq(m->g, gap, gram_text(m->g, ","), gap, call), 0, most);
    return gram_alt(m->g, call,
                    gram_seq(m->g, gram_text(m->g, "["), free_white(m), call, more, gap, gram_text(m->g, "]")));
}

static struct gram *free_code(struct maker *m, const struct reply_wrap *w)
{
    m->wrap = w;
    struct gram *call = maker_any(m);
    return gram_alt(m->g, call, gram_seq(m->g, gram_text(m->g, "print("), call, gram_text(m->g, ")")));
}

/* Blocks of them. */
static struct gram *free_blocks(struct maker *m, const struct reply_wrap *w)
{
    uint32_t one = grammar_rule(m->g);
    struct gram *body = w->shape == SHAPE_CODE ? free_code(m, w) : free_json(m), *gap = free_gap(m);
    grammar_define(m->g, one,
                   gram_seq(m->g, gram_text(m->g, w->open), free_white(m), body, gap, gram_text(m->g, w->close)));
    return gram_seq(m->g, gram_call(m->g, one),
                    gram_rep(m->g, gram_seq(m->g, gap, gap, gram_call(m->g, one)), 0,
                             m->rule->many ? GRAMMAR_MOST : 0));
}

/* ---- all of it ---- */

/* Is there a wrap before this one with the same mark? Then a model writes this one only where it is code. */
static bool free_is_other(const struct reply_form *f, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (!strcmp(f->wraps[k].open, f->wraps[i].open))
            return f->wraps[i].shape != SHAPE_CODE;
    return false;
}

/* Every way to write calls behind a mark; what begins them goes to `begin`. */
static void free_wraps(struct maker *m, struct gram_items *calls, struct gram_items *begin)
{
    const struct reply_form *f = m->form;
    for (size_t i = 0; i < REPLY_WRAPS && f->wraps[i].open; i++) {
        const struct reply_wrap *w = &f->wraps[i];
        struct gram *open = gram_text(m->g, w->open);
        if (free_is_other(f, i))
            continue;
        gram_push(m->g, begin, w->known ? gram_seq(m->g, open, free_begin(m, w)) : open);
        if (w->known)
            gram_push(m->g, calls, free_blocks(m, w));
        else {
            m->wrap = w;
            gram_push(m->g, calls, maker_calls(m));
        }
    }
    m->wrap = &f->wraps[0];
    for (size_t i = 0; i < 4 && f->section[i]; i += 2) {
        gram_push(m->g, begin, gram_text(m->g, f->section[i]));
        gram_push(m->g, calls,
                  gram_seq(m->g, gram_text(m->g, f->section[i]), m->space, maker_calls(m), m->space,
                           gram_text(m->g, f->section[i + 1])));
    }
}

struct gram *maker_free(struct maker *m)
{
    static const struct reply_wrap bare = {.shape = SHAPE_JSON};
    const struct reply_thought *t = m->rule->thought;
    struct gram_items calls = {0}, begin = {0};
    struct gram *nothing = gram_text(m->g, ""), *white = free_white(m);
    free_wraps(m, &calls, &begin);
    if (t)
        gram_push(m->g, &begin, gram_text(m->g, t->open));
    struct gram *never =
        gram_seq(m->g, gram_any(m->g), gram_list(m->g, GRAM_ALT, begin.at, begin.n));
    if (m->form->bare)
        never = gram_alt(m->g, never, free_begin(m, &bare));
    uint32_t stretch = grammar_rule(m->g);
    grammar_define(m->g, stretch, gram_dfa(m->g, dfa_never(m->g, never)));
    struct gram *text = gram_call(m->g, stretch), *reason = t ? gram_until(m->g, t->close) : nothing;
    struct gram *aside = t ? gram_seq(m->g, gram_text(m->g, t->open), reason, gram_text(m->g, t->close)) : NULL;
    struct gram *end = gram_alt(m->g, nothing,
                                gram_seq(m->g, gram_list(m->g, GRAM_ALT, calls.at, calls.n), m->space));
    if (t)
        end = gram_alt(m->g, end, gram_seq(m->g, gram_text(m->g, t->open), reason));
    struct gram *all = gram_seq(
        m->g, t ? gram_rep(m->g, gram_seq(m->g, text, aside), 0, GRAMMAR_MOST) : nothing, text, end);
    if (m->form->bare) /* nothing but reasoning may stand before it */
        all = gram_alt(m->g, all,
                       gram_seq(m->g, t ? gram_rep(m->g, gram_seq(m->g, white, aside), 0, GRAMMAR_MOST) : nothing,
                                white, free_json(m), m->space));
    if (m->rule->thinking)
        all = gram_alt(m->g, reason, gram_seq(m->g, reason, gram_text(m->g, t->close), all));
    return all;
}
