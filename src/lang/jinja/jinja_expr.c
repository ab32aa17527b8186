/* The parser, expressions: one function per level of precedence, as in jinja2. */
#include "lang/jinja/jinja_ast.h"

#include <string.h>

static struct jnode *jexpr_or(struct jparser *p);
static struct jnode *jexpr_unary(struct jparser *p, bool filters);

static struct jnode *jexpr_pair(struct jparser *p, enum jnode_kind kind, int line, struct jnode *a,
                                struct jnode *b)
{
    struct jnode *n = jnode_new(p, kind, line);
    n->a = a;
    n->b = b;
    return n;
}

struct jnode *jparse_expression(struct jparser *p)
{
    jdeeper(p->rt);
    int line = p->t->line;
    struct jnode *expr = jexpr_or(p);
    while (jparse_skip_name(p, "if")) {
        struct jnode *test = jexpr_or(p);
        struct jnode *cond = jexpr_pair(p, JN_COND, line, test, expr);
        if (jparse_skip_name(p, "else"))
            cond->c = jparse_expression(p);
        expr = cond;
        line = p->t->line;
    }
    jshallower(p->rt);
    return expr;
}

static struct jnode *jexpr_compare(struct jparser *p);

static struct jnode *jexpr_not(struct jparser *p)
{
    if (!jparse_is_name(p, "not"))
        return jexpr_compare(p);
    jdeeper(p->rt);
    int line = jparse_take(p)->line;
    struct jnode *n = jexpr_pair(p, JN_NOT, line, jexpr_not(p), NULL);
    jshallower(p->rt);
    return n;
}

static struct jnode *jexpr_and(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *left = jexpr_not(p);
    while (jparse_skip_name(p, "and")) {
        left = jexpr_pair(p, JN_AND, line, left, jexpr_not(p));
        line = p->t->line;
    }
    return left;
}

static struct jnode *jexpr_or(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *left = jexpr_and(p);
    while (jparse_skip_name(p, "or")) {
        left = jexpr_pair(p, JN_OR, line, left, jexpr_and(p));
        line = p->t->line;
    }
    return left;
}

static struct jnode *jexpr_pow(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *left = jexpr_unary(p, true);
    while (jparse_skip(p, JT_POW)) {
        left = jexpr_pair(p, JN_BINARY, line, left, jexpr_unary(p, true));
        left->op = JBIN_POW;
        line = p->t->line;
    }
    return left;
}

/* op of a token of the class (first: + -; else: * / // %), or -1 */
static int jexpr_binary_op(const struct jparser *p, bool additive)
{
    switch (p->t->kind) {
    case JT_ADD:
        return additive ? JBIN_ADD : -1;
    case JT_SUB:
        return additive ? JBIN_SUB : -1;
    case JT_MUL:
        return additive ? -1 : JBIN_MUL;
    case JT_DIV:
        return additive ? -1 : JBIN_DIV;
    case JT_FLOORDIV:
        return additive ? -1 : JBIN_FLOORDIV;
    case JT_MOD:
        return additive ? -1 : JBIN_MOD;
    default:
        return -1;
    }
}

static struct jnode *jexpr_math2(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *left = jexpr_pow(p);
    for (int op; (op = jexpr_binary_op(p, false)) >= 0; line = p->t->line) {
        jparse_take(p);
        left = jexpr_pair(p, JN_BINARY, line, left, jexpr_pow(p));
        left->op = (uint8_t)op;
    }
    return left;
}

static struct jnode *jexpr_concat(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *first = jexpr_math2(p);
    if (!jparse_is(p, JT_TILDE))
        return first;
    struct jnode *n = jnode_new(p, JN_CONCAT, line), **tail = &n->list;
    tail = jnode_append(tail, first);
    while (jparse_skip(p, JT_TILDE))
        tail = jnode_append(tail, jexpr_math2(p));
    return n;
}

static struct jnode *jexpr_math1(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *left = jexpr_concat(p);
    for (int op; (op = jexpr_binary_op(p, true)) >= 0; line = p->t->line) {
        jparse_take(p);
        left = jexpr_pair(p, JN_BINARY, line, left, jexpr_concat(p));
        left->op = (uint8_t)op;
    }
    return left;
}

static int jexpr_compare_op(struct jparser *p)
{
    static const struct {
        enum jtok_kind kind;
        enum jcmp op;
    } table[] = {{JT_EQ, JCMP_EQ}, {JT_NE, JCMP_NE}, {JT_LT, JCMP_LT},
                 {JT_LE, JCMP_LE}, {JT_GT, JCMP_GT}, {JT_GE, JCMP_GE}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (jparse_skip(p, table[i].kind))
            return table[i].op;
    if (jparse_skip_name(p, "in"))
        return JCMP_IN;
    if (jparse_is_name(p, "not") && p->t[1].kind == JT_NAME && jstr_is(p->t[1].v.s, "in")) {
        p->t += 2;
        return JCMP_NOTIN;
    }
    return -1;
}

static struct jnode *jexpr_compare(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *first = jexpr_math1(p), *n = NULL, **tail = NULL;
    for (int op; (op = jexpr_compare_op(p)) >= 0;) {
        if (!n) {
            n = jexpr_pair(p, JN_COMPARE, line, first, NULL);
            tail = &n->list;
        }
        struct jnode *operand = jnode_new(p, JN_OPERAND, p->t->line);
        operand->op = (uint8_t)op;
        operand->a = jexpr_math1(p);
        tail = jnode_append(tail, operand);
    }
    return n ? n : first;
}

/* -- primaries */

static struct jnode *jexpr_const(struct jparser *p, int line, struct jv v)
{
    struct jnode *n = jnode_new(p, JN_CONST, line);
    n->value = v;
    return n;
}

static void jexpr_note_name(struct jparser *p, struct jstr *name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } special[] = {
        {"loop", JUSES_LOOP}, {"caller", JUSES_CALLER}, {"kwargs", JUSES_KWARGS}, {"varargs", JUSES_VARARGS}};
    for (size_t i = 0; i < 4; i++)
        if (jstr_is(name, special[i].name))
            p->uses |= special[i].bit;
    jdict_set(p->rt, p->names, jv_str(name), jv_bool(true));
}

static struct jnode *jexpr_name(struct jparser *p, bool with_namespace)
{
    struct jtok *t = jparse_take(p);
    struct jstr *name = t->v.s;
    if (jstr_is(name, "true") || jstr_is(name, "True"))
        return jexpr_const(p, t->line, jv_bool(true));
    if (jstr_is(name, "false") || jstr_is(name, "False"))
        return jexpr_const(p, t->line, jv_bool(false));
    if (jstr_is(name, "none") || jstr_is(name, "None"))
        return jexpr_const(p, t->line, jv_none());
    struct jnode *n = jnode_new(p, JN_NAME, t->line);
    n->name = name;
    if (with_namespace && jparse_skip(p, JT_DOT)) {
        n->kind = JN_NSREF;
        n->value = jparse_expect(p, JT_NAME)->v;
    } else {
        jexpr_note_name(p, name);
    }
    return n;
}

static struct jnode *jexpr_strings(struct jparser *p)
{
    struct jtok *t = jparse_take(p);
    if (!jparse_is(p, JT_STRING))
        return jexpr_const(p, t->line, t->v);
    struct jsb b = {.rt = p->rt};
    jsb_str(&b, t->v.s);
    while (jparse_is(p, JT_STRING))
        jsb_str(&b, jparse_take(p)->v.s);
    struct jstr *s = jsb_done(&b);
    s->buf = NULL;
    return jexpr_const(p, t->line, jv_str(s));
}

static struct jnode *jexpr_list(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_LIST, jparse_take(p)->line), **tail = &n->list;
    while (!jparse_is(p, JT_RBRACKET)) {
        if (n->count)
            jparse_expect(p, JT_COMMA);
        if (jparse_is(p, JT_RBRACKET))
            break;
        tail = jnode_append(tail, jparse_expression(p));
        n->count++;
    }
    jparse_expect(p, JT_RBRACKET);
    return n;
}

static struct jnode *jexpr_dict(struct jparser *p)
{
    struct jnode *n = jnode_new(p, JN_DICT, jparse_take(p)->line), **tail = &n->list;
    while (!jparse_is(p, JT_RBRACE)) {
        if (n->count)
            jparse_expect(p, JT_COMMA);
        if (jparse_is(p, JT_RBRACE))
            break;
        struct jnode *key = jparse_expression(p);
        jparse_expect(p, JT_COLON);
        tail = jnode_append(tail, jexpr_pair(p, JN_PAIR, key->line, key, jparse_expression(p)));
        n->count++;
    }
    jparse_expect(p, JT_RBRACE);
    return n;
}

static struct jnode *jexpr_primary(struct jparser *p, bool with_namespace)
{
    struct jtok *t = p->t;
    struct jnode *n;
    switch (t->kind) {
    case JT_NAME:
        return jexpr_name(p, with_namespace);
    case JT_STRING:
        return jexpr_strings(p);
    case JT_INT:
    case JT_FLOAT:
        jparse_take(p);
        return jexpr_const(p, t->line, t->v);
    case JT_LPAREN:
        jparse_take(p);
        n = jparse_parenthesized(p);
        jparse_expect(p, JT_RPAREN);
        return n;
    case JT_LBRACKET:
        return jexpr_list(p);
    case JT_LBRACE:
        return jexpr_dict(p);
    default:
        jparse_fail(p, t->line, "unexpected '%s'", jtok_describe(p->rt, t));
    }
}

enum jtuple_items { JTUPLE_FULL, JTUPLE_NO_COND, JTUPLE_SIMPLE, JTUPLE_NAMESPACE };

static struct jnode *jexpr_tuple(struct jparser *p, enum jtuple_items items, const char *end,
                                 bool parenthesized)
{
    struct jnode *n = jnode_new(p, JN_TUPLE, p->t->line), **tail = &n->list;
    bool is_tuple = false;
    for (;;) {
        if (n->count)
            jparse_expect(p, JT_COMMA);
        if (jparse_is(p, JT_VAR_END) || jparse_is(p, JT_BLOCK_END) || jparse_is(p, JT_RPAREN) ||
            (end && jparse_is_name(p, end)))
            break;
        struct jnode *item = items == JTUPLE_FULL      ? jparse_expression(p)
                             : items == JTUPLE_NO_COND ? jexpr_or(p)
                                                       : jexpr_primary(p, items == JTUPLE_NAMESPACE);
        tail = jnode_append(tail, item);
        n->count++;
        if (!jparse_is(p, JT_COMMA))
            break;
        is_tuple = true;
    }
    if (is_tuple)
        return n;
    if (n->count)
        return n->list;
    if (!parenthesized)
        jparse_fail(p, p->t->line, "Expected an expression, got '%s'", jtok_describe(p->rt, p->t));
    return n;
}

struct jnode *jparse_tuple(struct jparser *p, bool condexpr, const char *end)
{
    return jexpr_tuple(p, condexpr ? JTUPLE_FULL : JTUPLE_NO_COND, end, false);
}

struct jnode *jparse_parenthesized(struct jparser *p)
{
    return jexpr_tuple(p, JTUPLE_FULL, NULL, true);
}

static void jexpr_assignable(struct jparser *p, struct jnode *n)
{
    static const char *const what[] = {[JN_CONST] = "const", [JN_LIST] = "list", [JN_DICT] = "dict"};
    n->store = true;
    if (n->kind == JN_TUPLE) {
        jdeeper(p->rt);
        for (struct jnode *item = n->list; item; item = item->next)
            jexpr_assignable(p, item);
        jshallower(p->rt);
    } else if (n->kind != JN_NAME && n->kind != JN_NSREF) {
        jparse_fail(p, n->line, "can't assign to '%s'",
                    n->kind <= JN_DICT && what[n->kind] ? what[n->kind] : "expression");
    }
}

struct jnode *jparse_target(struct jparser *p, const char *end, bool with_namespace)
{
    struct jnode *n = jexpr_tuple(p, with_namespace ? JTUPLE_NAMESPACE : JTUPLE_SIMPLE, end, false);
    jexpr_assignable(p, n);
    return n;
}

/* -- what follows a primary */

static struct jargs *jexpr_args(struct jparser *p)
{
    int line = jparse_expect(p, JT_LPAREN)->line;
    struct jargs *a = jalloc(p->rt, 1, sizeof *a);
    struct jnode **pos = &a->pos, **kw = &a->kw;
    bool comma = false, ok = true;
    while (!jparse_is(p, JT_RPAREN)) {
        if (comma) {
            jparse_expect(p, JT_COMMA);
            if (jparse_is(p, JT_RPAREN))
                break;
        }
        if (jparse_skip(p, JT_MUL)) {
            ok = !a->more && !a->more_kw;
            a->more = jparse_expression(p);
        } else if (jparse_skip(p, JT_POW)) {
            ok = !a->more_kw;
            a->more_kw = jparse_expression(p);
        } else if (jparse_is(p, JT_NAME) && p->t[1].kind == JT_ASSIGN) {
            ok = !a->more_kw;
            struct jnode *n = jnode_new(p, JN_KEYWORD, p->t->line);
            n->name = jparse_take(p)->v.s;
            jparse_take(p);
            n->a = jparse_expression(p);
            kw = jnode_append(kw, n);
            a->nkw++;
        } else {
            ok = !a->more && !a->more_kw && !a->kw;
            pos = jnode_append(pos, jparse_expression(p));
            a->npos++;
        }
        if (!ok)
            jparse_fail(p, line, "invalid syntax for function call expression");
        comma = true;
    }
    jparse_expect(p, JT_RPAREN);
    return a;
}

static struct jnode *jexpr_call(struct jparser *p, struct jnode *callee)
{
    struct jnode *n = jexpr_pair(p, JN_CALL, p->t->line, callee, NULL);
    n->args = jexpr_args(p);
    return n;
}

/* A slice, where a colon stands; an expression otherwise. */
static struct jnode *jexpr_subscribed(struct jparser *p)
{
    int line = p->t->line;
    struct jnode *part[3] = {NULL, NULL, NULL};
    if (!jparse_is(p, JT_COLON)) {
        part[0] = jparse_expression(p);
        if (!jparse_is(p, JT_COLON))
            return part[0];
    }
    jparse_take(p);
    if (!jparse_is(p, JT_COLON) && !jparse_is(p, JT_RBRACKET) && !jparse_is(p, JT_COMMA))
        part[1] = jparse_expression(p);
    if (jparse_skip(p, JT_COLON) && !jparse_is(p, JT_RBRACKET) && !jparse_is(p, JT_COMMA))
        part[2] = jparse_expression(p);
    struct jnode *n = jnode_new(p, JN_SLICE, line), **tail = &n->list;
    for (int i = 0; i < 3; i++)
        tail = jnode_append(tail, part[i] ? part[i] : jexpr_const(p, line, jv_none()));
    return n;
}

static struct jnode *jexpr_subscript(struct jparser *p, struct jnode *obj)
{
    struct jtok *t = jparse_take(p);
    struct jnode *n;
    if (t->kind == JT_DOT) {
        struct jtok *attr = jparse_take(p);
        if (attr->kind == JT_NAME) {
            n = jexpr_pair(p, JN_ATTR, t->line, obj, NULL);
            n->name = attr->v.s;
            return n;
        }
        if (attr->kind != JT_INT)
            jparse_fail(p, attr->line, "expected name or number");
        return jexpr_pair(p, JN_ITEM, t->line, obj, jexpr_const(p, attr->line, attr->v));
    }
    struct jnode *tuple = jnode_new(p, JN_TUPLE, t->line), **tail = &tuple->list;
    while (!jparse_is(p, JT_RBRACKET)) {
        if (tuple->count)
            jparse_expect(p, JT_COMMA);
        tail = jnode_append(tail, jexpr_subscribed(p));
        tuple->count++;
    }
    jparse_expect(p, JT_RBRACKET);
    struct jnode *arg = tuple->count == 1 ? tuple->list : tuple;
    for (struct jnode *i = tuple->list; tuple->count > 1 && i; i = i->next)
        if (i->kind == JN_SLICE)
            jparse_fail(p, t->line, "slices of several dimensions are not supported");
    if (arg->kind == JN_SLICE) {
        arg->a = obj;
        return arg;
    }
    return jexpr_pair(p, JN_ITEM, t->line, obj, arg);
}

static struct jnode *jexpr_postfix(struct jparser *p, struct jnode *n)
{
    for (;;) {
        if (jparse_is(p, JT_DOT) || jparse_is(p, JT_LBRACKET))
            n = jexpr_subscript(p, n);
        else if (jparse_is(p, JT_LPAREN))
            n = jexpr_call(p, n);
        else
            return n;
    }
}

/* The dotted name of a filter or a test. */
static struct jstr *jexpr_dotted(struct jparser *p)
{
    struct jstr *name = jparse_expect(p, JT_NAME)->v.s;
    while (jparse_skip(p, JT_DOT)) {
        struct jstr *part = jparse_expect(p, JT_NAME)->v.s;
        name = jstr_concat(p->rt, jstr_concat(p->rt, name, jstr_lit(p->rt, ".")), part);
    }
    return name;
}

struct jnode *jparse_filters(struct jparser *p, struct jnode *node, bool start_inline)
{
    while (start_inline || jparse_is(p, JT_PIPE)) {
        if (!start_inline)
            jparse_take(p);
        start_inline = false;
        struct jnode *n = jexpr_pair(p, JN_FILTER, p->t->line, node, NULL);
        n->name = jexpr_dotted(p);
        n->args = jparse_is(p, JT_LPAREN) ? jexpr_args(p) : jalloc(p->rt, 1, sizeof *n->args);
        node = n;
    }
    return node;
}

static bool jexpr_test_arg(const struct jparser *p)
{
    switch (p->t->kind) {
    case JT_NAME:
        return !jparse_is_name(p, "else") && !jparse_is_name(p, "or") && !jparse_is_name(p, "and");
    case JT_STRING:
    case JT_INT:
    case JT_FLOAT:
    case JT_LBRACKET:
    case JT_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct jnode *jexpr_test(struct jparser *p, struct jnode *node)
{
    int line = jparse_take(p)->line;
    bool negated = jparse_skip_name(p, "not");
    struct jnode *n = jexpr_pair(p, JN_TEST, line, node, NULL);
    n->name = jexpr_dotted(p);
    if (jparse_is(p, JT_LPAREN)) {
        n->args = jexpr_args(p);
    } else {
        n->args = jalloc(p->rt, 1, sizeof *n->args);
        if (jexpr_test_arg(p)) {
            if (jparse_is_name(p, "is"))
                jparse_fail(p, p->t->line, "You cannot chain multiple tests with is");
            n->args->pos = jexpr_postfix(p, jexpr_primary(p, false));
            n->args->npos = 1;
        }
    }
    return negated ? jexpr_pair(p, JN_NOT, line, n, NULL) : n;
}

static struct jnode *jexpr_unary(struct jparser *p, bool filters)
{
    struct jtok *t = p->t;
    struct jnode *n;
    jdeeper(p->rt);
    if (t->kind == JT_SUB || t->kind == JT_ADD) {
        jparse_take(p);
        n = jexpr_pair(p, t->kind == JT_SUB ? JN_NEG : JN_POS, t->line, jexpr_unary(p, false), NULL);
    } else {
        n = jexpr_primary(p, false);
    }
    n = jexpr_postfix(p, n);
    while (filters) {
        if (jparse_is(p, JT_PIPE))
            n = jparse_filters(p, n, false);
        else if (jparse_is_name(p, "is"))
            n = jexpr_test(p, n);
        else if (jparse_is(p, JT_LPAREN))
            n = jexpr_call(p, n);
        else
            break;
    }
    jshallower(p->rt);
    return n;
}
