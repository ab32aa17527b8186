/* The parser, statements. */
#include "lang/jinja/jinja_ast.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -- tokens */

void jparse_fail(struct jparser *p, int line, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->rt->line = line;
    jfail(p->rt, "%s", text);
}

struct jtok *jparse_take(struct jparser *p)
{
    struct jtok *t = p->t;
    if (t->kind != JT_EOF)
        p->t++;
    return t;
}

bool jparse_is(const struct jparser *p, enum jtok_kind kind)
{
    return p->t->kind == kind;
}

bool jparse_is_name(const struct jparser *p, const char *name)
{
    return p->t->kind == JT_NAME && jstr_is(p->t->v.s, name);
}

bool jparse_skip(struct jparser *p, enum jtok_kind kind)
{
    if (p->t->kind != kind)
        return false;
    jparse_take(p);
    return true;
}

bool jparse_skip_name(struct jparser *p, const char *name)
{
    if (!jparse_is_name(p, name))
        return false;
    jparse_take(p);
    return true;
}

static _Noreturn void jparse_expected(struct jparser *p, const char *what)
{
    if (jparse_is(p, JT_EOF))
        jparse_fail(p, p->t->line, "unexpected end of template, expected '%s'.", what);
    jparse_fail(p, p->t->line, "expected token '%s', got '%s'", what, jtok_describe(p->rt, p->t));
}

struct jtok *jparse_expect(struct jparser *p, enum jtok_kind kind)
{
    if (p->t->kind != kind)
        jparse_expected(p, jtok_describe(p->rt, &(struct jtok){.kind = kind}));
    return jparse_take(p);
}

static void jparse_expect_name(struct jparser *p, const char *name)
{
    if (!jparse_skip_name(p, name))
        jparse_expected(p, name);
}

struct jnode *jnode_new(struct jparser *p, enum jnode_kind kind, int line)
{
    struct jnode *n = jalloc(p->rt, 1, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

struct jnode **jnode_append(struct jnode **tail, struct jnode *n)
{
    *tail = n;
    return &n->next;
}

/* -- bodies */

static struct jnode *jparse_statement(struct jparser *p);

static bool jparse_at_end(const struct jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (jparse_is_name(p, *ends))
            return true;
    return false;
}

/* "Unexpected end of template. Jinja was looking for the following tags: ..." */
static _Noreturn void jparse_lost(struct jparser *p, const char *unknown, int line)
{
    char looking[120] = "";
    const char *const *ends = p->nends ? p->ends[p->nends - 1] : NULL;
    for (size_t n = 0; ends && *ends && n < sizeof looking; ends++)
        n += (size_t)snprintf(looking + n, sizeof looking - n, "%s'%s'", n ? " or " : "", *ends);
    const char *hint = *looking ? " Jinja was looking for the following tags: " : "";
    if (unknown)
        jparse_fail(p, line, "Encountered unknown tag '%s'.%s%s", unknown, hint, looking);
    jparse_fail(p, line, "Unexpected end of template.%s%s", hint, looking);
}

/* Data, output and statements up to one of the end tags, which becomes current (NULL: to the end). */
static struct jnode *jparse_until(struct jparser *p, const char *const *ends)
{
    struct jnode *first = NULL, **tail = &first, *output = NULL, **out = NULL;
    if (p->nends == sizeof p->ends / sizeof p->ends[0])
        jparse_fail(p, p->t->line, "blocks are nested too deeply");
    p->ends[p->nends++] = ends;
    while (!jparse_is(p, JT_EOF)) {
        struct jtok *t = jparse_take(p);
        if (t->kind == JT_BLOCK_BEGIN) {
            output = NULL;
            if (jparse_at_end(p, ends))
                break;
            tail = jnode_append(tail, jparse_statement(p));
            jparse_expect(p, JT_BLOCK_END);
            continue;
        }
        if (!output) {
            output = jnode_new(p, JN_OUTPUT, t->line);
            out = &output->list;
            tail = jnode_append(tail, output);
        }
        struct jnode *item;
        if (t->kind == JT_DATA) {
            item = jnode_new(p, JN_CONST, t->line);
            item->value = t->v;
        } else {
            item = jparse_tuple(p, true, NULL);
            jparse_expect(p, JT_VAR_END);
        }
        out = jnode_append(out, item);
    }
    if (ends && jparse_is(p, JT_EOF))
        jparse_lost(p, NULL, p->t->line);
    p->nends--;
    return first;
}

/* The body of a block, behind its opening tag; the end tag becomes current. */
static struct jnode *jparse_body(struct jparser *p, const char *const *ends)
{
    jparse_skip(p, JT_COLON);
    jparse_expect(p, JT_BLOCK_END);
    jdeeper(p->rt);
    struct jnode *n = jparse_until(p, ends);
    jshallower(p->rt);
    return n;
}

static struct jnode *jparse_body_to(struct jparser *p, const char *end)
{
    const char **ends = jalloc(p->rt, 2, sizeof *ends);
    ends[0] = end;
    struct jnode *n = jparse_body(p, ends);
    jparse_take(p);
    return n;
}

/* -- statements; each is called with its keyword current */

static struct jnode *jparse_for(struct jparser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jnode *n = jnode_new(p, JN_FOR, jparse_take(p)->line);
    n->a = jparse_target(p, "in", false);
    jparse_expect_name(p, "in");
    n->b = jparse_tuple(p, false, "recursive");
    if (jparse_skip_name(p, "if"))
        n->c = jparse_expression(p);
    n->recursive = jparse_skip_name(p, "recursive");
    unsigned outside = p->uses;
    p->uses = 0;
    n->body = jparse_body(p, ends);
    n->uses = (uint8_t)p->uses;
    p->uses |= outside;
    if (jstr_is(jparse_take(p)->v.s, "else"))
        n->other = jparse_body_to(p, "endfor");
    return n;
}

static struct jnode *jparse_if(struct jparser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode *n = jnode_new(p, JN_IF, jparse_take(p)->line), *branch = n, **tail = &n->list;
    for (;;) {
        branch->a = jparse_tuple(p, false, NULL);
        branch->body = jparse_body(p, ends);
        struct jtok *t = jparse_take(p);
        if (jstr_is(t->v.s, "elif")) {
            branch = jnode_new(p, JN_IF, p->t->line);
            tail = jnode_append(tail, branch);
            continue;
        }
        if (jstr_is(t->v.s, "else"))
            n->other = jparse_body_to(p, "endif");
        return n;
    }
}

static struct jnode *jparse_set(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_SET, jparse_take(p)->line);
    n->a = jparse_target(p, NULL, true);
    if (jparse_skip(p, JT_ASSIGN)) {
        n->b = jparse_tuple(p, true, NULL);
        return n;
    }
    n->kind = JN_SET_BLOCK;
    n->b = jparse_filters(p, NULL, false);
    n->body = jparse_body_to(p, "endset");
    return n;
}

static struct jnode *jparse_param(struct jparser *p)
{
    struct jtok *t = jparse_expect(p, JT_NAME);
    struct jnode *n = jnode_new(p, JN_NAME, t->line);
    n->name = t->v.s;
    n->store = true;
    static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < 6; i++)
        if (jstr_is(n->name, fixed[i]))
            jparse_fail(p, t->line, "can't assign to 'name'");
    return n;
}

static void jparse_signature(struct jparser *p, struct jnode *n)
{
    struct jnode **params = &n->list, **defaults = &n->list2;
    jparse_expect(p, JT_LPAREN);
    while (!jparse_is(p, JT_RPAREN)) {
        if (n->count)
            jparse_expect(p, JT_COMMA);
        struct jnode *param = jparse_param(p);
        if (jparse_skip(p, JT_ASSIGN))
            defaults = jnode_append(defaults, jparse_expression(p));
        else if (n->list2)
            jparse_fail(p, p->t->line, "non-default argument follows default argument");
        params = jnode_append(params, param);
        n->count++;
    }
    jparse_expect(p, JT_RPAREN);
}

/* The body of a macro, with what it mentions. */
static void jparse_macro_body(struct jparser *p, struct jnode *n, const char *end)
{
    unsigned outside = p->uses;
    p->uses = 0;
    n->body = jparse_body_to(p, end);
    n->uses = (uint8_t)p->uses;
    p->uses |= outside;
}

static struct jnode *jparse_macro(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_MACRO, jparse_take(p)->line);
    n->name = jparse_param(p)->name;
    jparse_signature(p, n);
    jparse_macro_body(p, n, "endmacro");
    return n;
}

static struct jnode *jparse_call_block(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_CALL_BLOCK, jparse_take(p)->line);
    if (jparse_is(p, JT_LPAREN))
        jparse_signature(p, n);
    n->a = jparse_expression(p);
    if (n->a->kind != JN_CALL)
        jparse_fail(p, n->line, "expected call");
    jparse_macro_body(p, n, "endcall");
    return n;
}

/* {% generation %} marks what the model writes: its body goes out as it is, in a scope of its own. */
static struct jnode *jparse_generation(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_CALL_BLOCK, jparse_take(p)->line);
    jparse_macro_body(p, n, "endgeneration");
    return n;
}

static struct jnode *jparse_filter_block(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_FILTER_BLOCK, jparse_take(p)->line);
    n->b = jparse_filters(p, NULL, true);
    n->body = jparse_body_to(p, "endfilter");
    return n;
}

static struct jnode *jparse_with(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_WITH, jparse_take(p)->line), **targets = &n->list, **values = &n->list2;
    while (!jparse_is(p, JT_BLOCK_END)) {
        if (n->count++)
            jparse_expect(p, JT_COMMA);
        targets = jnode_append(targets, jparse_target(p, NULL, false));
        jparse_expect(p, JT_ASSIGN);
        values = jnode_append(values, jparse_expression(p));
    }
    n->body = jparse_body_to(p, "endwith");
    return n;
}

static struct jnode *jparse_autoescape(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_SCOPE, jparse_take(p)->line);
    n->a = jparse_expression(p);
    n->body = jparse_body_to(p, "endautoescape");
    return n;
}

static struct jnode *jparse_block(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_BLOCK, jparse_take(p)->line);
    n->name = jparse_expect(p, JT_NAME)->v.s;
    jparse_skip_name(p, "scoped");
    if (jparse_skip_name(p, "required"))
        jparse_fail(p, n->line, "required blocks are not supported: there is no other template");
    n->body = jparse_body_to(p, "endblock");
    if (jparse_is(p, JT_NAME) && jstr_eq(p->t->v.s, n->name))
        jparse_take(p);
    return n;
}

static struct jnode *jparse_print(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_OUTPUT, jparse_take(p)->line), **tail = &n->list;
    while (!jparse_is(p, JT_BLOCK_END)) {
        if (n->list)
            jparse_expect(p, JT_COMMA);
        tail = jnode_append(tail, jparse_expression(p));
    }
    return n;
}

static struct jnode *jparse_loop_control(struct jparser *p)
{
    struct jtok *t = jparse_take(p);
    return jnode_new(p, jstr_is(t->v.s, "break") ? JN_BREAK : JN_CONTINUE, t->line);
}

/* include, extends, import, from: there is no other template to find. They fail where they are reached. */
static struct jnode *jparse_no_loader(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_NO_LOADER, jparse_take(p)->line);
    n->a = jparse_expression(p);
    while (!jparse_is(p, JT_BLOCK_END) && !jparse_is(p, JT_EOF))
        jparse_take(p);
    return n;
}

static struct jnode *jparse_statement(struct jparser *p)
{
    static const struct {
        const char *name;
        struct jnode *(*parse)(struct jparser *p);
    } table[] = {
        {"for", jparse_for},
        {"if", jparse_if},
        {"set", jparse_set},
        {"macro", jparse_macro},
        {"call", jparse_call_block},
        {"filter", jparse_filter_block},
        {"with", jparse_with},
        {"generation", jparse_generation},
        {"break", jparse_loop_control},
        {"continue", jparse_loop_control},
        {"block", jparse_block},
        {"print", jparse_print},
        {"autoescape", jparse_autoescape},
        {"include", jparse_no_loader},
        {"extends", jparse_no_loader},
        {"import", jparse_no_loader},
        {"from", jparse_no_loader},
    };
    if (!jparse_is(p, JT_NAME))
        jparse_fail(p, p->t->line, "tag name expected");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (jparse_is_name(p, table[i].name))
            return table[i].parse(p);
    jparse_lost(p, jstr_c(p->rt, p->t->v.s), p->t->line);
}

struct jnode *jparse(struct jrt *rt, const char *text, size_t n, struct jdict *names)
{
    struct jparser p = {.rt = rt, .t = jlex(rt, text, n).t, .names = names};
    struct jnode *root = jnode_new(&p, JN_BLOCK, 1);
    root->body = jparse_until(&p, NULL);
    return root;
}
