#include "hub/go_template.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Variables ($x) and what the translation itself needs are attributes of one namespace, so that loops can set them. Control
 * tags are {%+ +%}: their lines stay, as in Go. */
enum { GO_DEPTH = 32, GO_MOST = 1 << 20, GO_EXPRESSION = 8192, GO_NEST = 16 };

struct go {
    const char *at, *end; /* of an action, while one is read */
    struct buf out;
    struct go_block {
        bool loop;
        char dot[32];
    } block[GO_DEPTH];
    unsigned depth, names, nest;
    bool head;     /* ends with the response */
    bool finished; /* the response was there: only what is open is closed */
    struct err *e;
};

struct go_text {
    char s[GO_EXPRESSION];
    size_t n;
};

static void go_wrong(struct go *g, const char *what)
{
    if (!g->e->code)
        err_set(g->e, ERR_DATA, "%s", what);
}

static void go_fail(struct go *g, const char *what, const char *at, size_t n)
{
    if (!g->e->code)
        err_set(g->e, ERR_DATA, "%s '%s' is not known here", what, log_safe_n(at, n));
}

static void text_add(struct go *g, struct go_text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > sizeof t->s) {
        go_wrong(g, "an expression is too long");
        return;
    }
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
}

static void text_str(struct go *g, struct go_text *t, const char *s)
{
    text_add(g, t, s, strlen(s));
}

/* ---- expressions ---- */

static void go_blanks(struct go *g)
{
    while (g->at < g->end && isspace((unsigned char)*g->at))
        g->at++;
}

static size_t go_name(const struct go *g)
{
    size_t n = 0;
    while (g->at + n < g->end && (isalnum((unsigned char)g->at[n]) || g->at[n] == '_'))
        n++;
    return n;
}

static bool go_is(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && !memcmp(s, word, n);
}

static const char *go_dot(const struct go *g)
{
    return g->depth ? g->block[g->depth - 1].dot : "";
}

/* ToolCallID to tool_call_id. */
static void go_snake(struct go *g, struct go_text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool upper = isupper((unsigned char)s[i]), after = i && islower((unsigned char)s[i - 1]);
        char c[2] = {'_', (char)tolower((unsigned char)s[i])};
        text_add(g, t, upper && after ? c : c + 1, upper && after ? 2 : 1);
    }
}

/* A field of the root. */
static void go_root(struct go *g, struct go_text *t, const char *s, size_t n)
{
    static const struct {
        const char *name, *jinja;
    } known[] = {{"Messages", "messages"},
                 {"Tools", "(tools or [])"},
                 {"System", "gv.System"},
                 {"Prompt", "gv.Prompt"},
                 {"Response", "gv.Response"},
                 {"Suffix", "''"},
                 {"Think", "(enable_thinking or false)"},
                 {"IsThinkSet", "(enable_thinking is defined)"},
                 {"ThinkLevel", "(reasoning_effort or '')"},
                 {"Thinking", "''"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (go_is(s, n, known[i].name)) {
            text_str(g, t, known[i].jinja);
            return;
        }
    go_fail(g, "the field", s, n);
}

/* .A.B of what t has; an empty t is the root. */
static void go_fields(struct go *g, struct go_text *t)
{
    while (g->at + 1 < g->end && *g->at == '.' && isalpha((unsigned char)g->at[1])) {
        g->at++;
        size_t n = go_name(g);
        if (!t->n)
            go_root(g, t, g->at, n);
        else {
            text_str(g, t, ".");
            if (go_is(g->at, n, "Thinking"))
                text_str(g, t, "reasoning_content");
            else if (go_is(g->at, n, "ToolName"))
                text_str(g, t, "name");
            else
                go_snake(g, t, g->at, n);
        }
        g->at += n;
    }
}

static void go_string(struct go *g, struct go_text *t)
{
    char quote = *g->at++;
    text_str(g, t, "\"");
    for (; g->at < g->end && *g->at != quote; g->at++) {
        if (quote == '"' && *g->at == '\\' && g->at + 1 < g->end) {
            text_add(g, t, g->at++, 1);
            text_add(g, t, g->at, 1);
        } else if (*g->at == '\n')
            text_str(g, t, "\\n");
        else {
            if (*g->at == '"' || *g->at == '\\')
                text_str(g, t, "\\");
            text_add(g, t, g->at, 1);
        }
    }
    if (g->at == g->end)
        go_wrong(g, "a quote is not closed");
    else
        g->at++;
    text_str(g, t, "\"");
}

static void go_pipeline(struct go *g, struct go_text *out, bool *plain);

/* false: there is none */
static bool go_operand(struct go *g, struct go_text *t)
{
    go_blanks(g);
    t->n = 0;
    t->s[0] = 0;
    if (g->at == g->end || *g->at == ')' || *g->at == '|' || *g->at == ',' || g->e->code)
        return false;
    char c = *g->at;
    if (c == '"' || c == '`')
        go_string(g, t);
    else if (c == '(') {
        bool plain;
        struct go_text inner = {0};
        g->at++;
        if (++g->nest > GO_NEST)
            go_wrong(g, "parentheses are nested too deep");
        else
            go_pipeline(g, &inner, &plain);
        g->nest--;
        go_blanks(g);
        if (g->at == g->end || *g->at != ')')
            go_wrong(g, "a parenthesis is not closed");
        else
            g->at++;
        text_str(g, t, "(");
        text_add(g, t, inner.s, inner.n);
        text_str(g, t, ")");
        go_fields(g, t);
    } else if (c == '$') {
        g->at++;
        size_t n = go_name(g);
        if (n) {
            text_str(g, t, "gv.v_");
            text_add(g, t, g->at, n);
        }
        g->at += n;
        go_fields(g, t);
    } else if (c == '.') {
        text_str(g, t, go_dot(g));
        if (g->at + 1 < g->end && isalpha((unsigned char)g->at[1]))
            go_fields(g, t);
        else
            g->at++;
    } else if (isdigit((unsigned char)c) || c == '-') {
        do
            text_add(g, t, g->at++, 1);
        while (g->at < g->end && (isdigit((unsigned char)*g->at) || *g->at == '.'));
    } else {
        size_t n = go_name(g);
        if (go_is(g->at, n, "nil"))
            text_str(g, t, "none");
        else if (go_is(g->at, n, "true") || go_is(g->at, n, "false"))
            text_add(g, t, g->at, n);
        else
            go_fail(g, "the function or value", g->at, n ? n : 1);
        g->at += n;
    }
    if (!t->n) /* all of the data */
        go_fail(g, "the value", &c, 1);
    return !g->e->code;
}

/* How a function is written: %1 to %3 are its values; or all values with `again` between them. */
static const struct go_function {
    const char *name, *form, *again;
    unsigned least, most;
} go_functions[] = {
    {"eq", "(%1 == %2)", NULL, 2, 2},    {"ne", "(%1 != %2)", NULL, 2, 2},
    {"lt", "(%1 < %2)", NULL, 2, 2},     {"le", "(%1 <= %2)", NULL, 2, 2},
    {"gt", "(%1 > %2)", NULL, 2, 2},     {"ge", "(%1 >= %2)", NULL, 2, 2},
    {"and", NULL, " and ", 1, 8},        {"or", NULL, " or ", 1, 8},
    {"not", "(not %1)", NULL, 1, 1},     {"len", "(%1 | length)", NULL, 1, 1},
    {"index", "%1[%2]", NULL, 2, 2},     {"json", "(%1 | tojson)", NULL, 1, 1},
    {"slice", "%1[%2:%3]", NULL, 2, 3},  {"currentDate", "strftime_now('%Y-%m-%d')", NULL, 0, 0},
    {"trim", "(%1 | trim)", NULL, 1, 1},
};

static const struct go_function *go_function(const struct go *g, size_t n)
{
    for (size_t i = 0; i < sizeof go_functions / sizeof *go_functions; i++)
        if (go_is(g->at, n, go_functions[i].name))
            return &go_functions[i];
    return NULL;
}

/* Puts the values into the form. */
static void go_apply(struct go *g, const struct go_function *f, const struct go_text *value, unsigned count,
                     struct go_text *out)
{
    if (count < f->least || count > f->most) {
        go_fail(g, "the number of values of", f->name, strlen(f->name));
        return;
    }
    if (f->again) {
        text_str(g, out, "(");
        for (unsigned i = 0; i < count; i++) {
            text_str(g, out, i ? f->again : "");
            text_add(g, out, value[i].s, value[i].n);
        }
        text_str(g, out, ")");
        return;
    }
    for (const char *c = f->form; *c; c++)
        if (*c == '%' && c[1] >= '1' && c[1] <= '3') {
            unsigned i = (unsigned)(*++c - '1');
            if (i < count)
                text_add(g, out, value[i].s, value[i].n);
        } else
            text_add(g, out, c, 1);
}

/* A function with its values, or one value. last: what came through a pipe; n 0 = nothing. plain: a value as it is. */
static void go_command(struct go *g, const struct go_text *last, struct go_text *out, bool *plain)
{
    enum { VALUES = 8 };
    go_blanks(g);
    size_t n = go_name(g);
    const struct go_function *f = go_function(g, n);
    struct go_text *value;
    *plain = !f;
    if (!f) {
        if (!go_operand(g, out) && !g->e->code)
            go_wrong(g, "a value is missing");
        return;
    }
    if (!(value = mem_zalloc(VALUES + 1, sizeof *value))) {
        err_memory(g->e, "a template", VALUES * sizeof *value);
        return;
    }
    unsigned count = 0;
    g->at += n;
    while (count < VALUES && go_operand(g, &value[count]))
        count++;
    if (last->n && count < VALUES)
        value[count++] = *last;
    if (!g->e->code)
        go_apply(g, f, value, count, out);
    mem_free(value);
}

static void go_pipeline(struct go *g, struct go_text *out, bool *plain)
{
    struct go_text *last = mem_zalloc(1, sizeof *last);
    if (!last) {
        err_memory(g->e, "a template", sizeof *last);
        return;
    }
    go_command(g, last, out, plain);
    for (go_blanks(g); g->at < g->end && *g->at == '|' && !g->e->code; go_blanks(g)) {
        g->at++;
        *last = *out;
        out->n = 0;
        out->s[0] = 0;
        go_command(g, last, out, plain);
        if (*plain)
            go_wrong(g, "no function follows a pipe");
    }
    mem_free(last);
}

/* ---- actions ---- */

static bool go_word(struct go *g, const char *word)
{
    go_blanks(g);
    if (!go_is(g->at, go_name(g), word))
        return false;
    g->at += strlen(word);
    go_blanks(g);
    return true;
}

static void go_rest(struct go *g)
{
    go_blanks(g);
    if (g->at < g->end)
        go_fail(g, "the end of an action", g->at, (size_t)(g->end - g->at));
}

static void go_open(struct go *g, bool loop, const char *dot)
{
    if (g->depth == GO_DEPTH) {
        go_wrong(g, "blocks are nested too deep");
        return;
    }
    struct go_block *b = &g->block[g->depth++];
    b->loop = loop;
    snprintf(b->dot, sizeof b->dot, "%s", dot);
}

/* "$i, $m :=": how many names; they are skipped. */
static unsigned go_variables(struct go *g, struct go_text name[2])
{
    const char *start = g->at;
    unsigned count = 0;
    for (; count < 2 && g->at < g->end && *g->at == '$'; count++) {
        g->at++;
        size_t n = go_name(g);
        text_add(g, &name[count], g->at, n);
        g->at += n;
        go_blanks(g);
        if (g->at < g->end && *g->at == ',')
            g->at++;
        go_blanks(g);
    }
    bool sets = g->end - g->at > 1 && (!memcmp(g->at, ":=", 2) || (*g->at == '=' && g->at[1] != '='));
    if (!sets) {
        g->at = start;
        return 0;
    }
    g->at += *g->at == ':' ? 2 : 1;
    return count;
}

static void go_range(struct go *g)
{
    bool plain;
    struct go_text *t = mem_zalloc(3, sizeof *t);
    char dot[32];
    unsigned number = ++g->names;
    if (!t) {
        err_memory(g->e, "a template", 3 * sizeof *t);
        return;
    }
    unsigned count = go_variables(g, t + 1);
    go_pipeline(g, t, &plain);
    go_rest(g);
    snprintf(dot, sizeof dot, "gv.d%u", number);
    buf_printf(&g->out,
               "{%%+ set gv.r%u = %s +%%}{%%+ for it%u in (gv.r%u.items() if gv.r%u is mapping else gv.r%u) "
               "+%%}{%%+ set %s = it%u[1] if gv.r%u is mapping else it%u +%%}",
               number, t[0].s, number, number, number, number, dot, number, number, number);
    if (count == 2)
        buf_printf(&g->out, "{%%+ set gv.v_%s = it%u[0] if gv.r%u is mapping else loop.index0 +%%}", t[1].s,
                   number, number);
    if (count)
        buf_printf(&g->out, "{%%+ set gv.v_%s = %s +%%}", t[count].s, dot);
    go_open(g, true, dot);
    mem_free(t);
}

/* if, else if, with. */
static void go_if(struct go *g, const char *tag, bool with)
{
    bool plain;
    struct go_text *t = mem_zalloc(1, sizeof *t);
    char dot[32];
    if (!t) {
        err_memory(g->e, "a template", sizeof *t);
        return;
    }
    snprintf(dot, sizeof dot, "%s", go_dot(g));
    go_pipeline(g, t, &plain);
    go_rest(g);
    if (with) {
        snprintf(dot, sizeof dot, "gv.d%u", ++g->names);
        buf_printf(&g->out, "{%%+ set %s = %s +%%}{%%+ if %s +%%}", dot, t->s, dot);
    } else
        buf_printf(&g->out, "{%%+ %s %s +%%}", tag, t->s);
    if (!strcmp(tag, "if"))
        go_open(g, false, dot);
    mem_free(t);
}

/* A value that is printed: texts as they are, the rest as JSON. */
static void go_print(struct go *g)
{
    bool plain, response;
    struct go_text *t = mem_zalloc(3, sizeof *t);
    if (!t) {
        err_memory(g->e, "a template", 3 * sizeof *t);
        return;
    }
    unsigned count = *g->at == '$' ? go_variables(g, t + 1) : 0;
    go_pipeline(g, t, &plain);
    go_rest(g);
    response = !strcmp(t->s, "gv.Response");
    if (count)
        buf_printf(&g->out, "{%%+ set gv.v_%s = %s +%%}", t[1].s, t->s);
    else if (response || !plain || !strncmp(t->s, "gv.System", 9) || !strncmp(t->s, "gv.Prompt", 9))
        buf_printf(&g->out, "{{ %s }}", t->s);
    else
        buf_printf(&g->out, "{{ %s if %s is string else '' if not %s else %s | tojson }}", t->s, t->s, t->s,
                   t->s);
    g->finished |= response && g->head;
    mem_free(t);
}

static void go_end(struct go *g)
{
    if (!g->depth)
        go_wrong(g, "there is an end without a beginning");
    else
        buf_str(&g->out, g->block[--g->depth].loop ? "{%+ endfor +%}" : "{%+ endif +%}");
}

static void go_action(struct go *g)
{
    go_blanks(g);
    if (g->at == g->end || !memcmp(g->at, "/*", g->end - g->at > 1 ? 2 : 1))
        return;
    if (g->finished && !go_is(g->at, go_name(g), "end"))
        return;
    if (go_word(g, "end"))
        go_end(g);
    else if (go_word(g, "else")) {
        if (go_word(g, "if"))
            go_if(g, "elif", false);
        else
            buf_str(&g->out, "{%+ else +%}");
    } else if (go_word(g, "if"))
        go_if(g, "if", false);
    else if (go_word(g, "with"))
        go_if(g, "if", true);
    else if (go_word(g, "range"))
        go_range(g);
    else if (go_word(g, "break"))
        buf_str(&g->out, "{%+ break +%}");
    else if (go_word(g, "continue"))
        buf_str(&g->out, "{%+ continue +%}");
    else
        go_print(g);
}

/* Text between actions; a brace that would begin a tag of Jinja's is written as a value. */
static void go_plain(struct go *g, const char *s, size_t n)
{
    for (size_t i = 0; i < n && !g->finished; i++)
        if (s[i] == '{' && (i + 1 == n || strchr("{%#", s[i + 1])))
            buf_str(&g->out, "{{ '{' }}");
        else
            buf_char(&g->out, s[i]);
}

/* The whole template, once. */
static void go_body(struct go *g, const char *text)
{
    g->depth = 0;
    g->finished = false;
    for (bool trim = false; *text && !g->e->code;) {
        const char *open = strstr(text, "{{"), *stop = open ? open : text + strlen(text);
        const char *from = text, *to = stop;
        bool before = open && open[2] == '-' && isspace((unsigned char)open[3]);
        while (trim && from < to && isspace((unsigned char)*from))
            from++;
        while (before && to > from && isspace((unsigned char)to[-1]))
            to--;
        go_plain(g, from, (size_t)(to - from));
        if (!open)
            break;
        const char *close = strstr(open, "}}");
        if (!close) {
            go_wrong(g, "an action is not closed");
            break;
        }
        trim = close[-1] == '-' && close - open > 3 && isspace((unsigned char)close[-2]);
        g->at = open + 2 + before;
        g->end = close - trim;
        text = close + 2;
        go_action(g);
    }
    /* the response ends what is generated: what is open is closed */
    while (g->finished && g->depth)
        go_end(g);
    if (g->depth)
        go_wrong(g, "an end is missing");
}

/* A turn for every answer, and one that the model answers. */
static void go_turns(struct go *g, const char *text)
{
    buf_str(&g->out,
            "{%+ for it0 in messages +%}{%+ if (it0.role == 'system' and (gv.Prompt or gv.Response)) or "
            "(it0.role == 'user' and gv.Response) +%}");
    go_body(g, text);
    buf_str(
        &g->out,
        "{%+ set gv.System = '' +%}{%+ set gv.Prompt = '' +%}{%+ set gv.Response = '' +%}{%+ endif +%}"
        "{%+ if it0.role == 'system' +%}{%+ set gv.System = it0.content +%}{%+ elif it0.role == 'user' +%}"
        "{%+ set gv.Prompt = it0.content +%}{%+ elif it0.role == 'assistant' +%}"
        "{%+ set gv.Response = it0.content +%}{%+ endif +%}{%+ endfor +%}");
    g->head = true;
    go_body(g, text);
}

json_t *go_template(const char *text, struct err *e)
{
    struct go g = {.e = e, .out = {.max = GO_MOST}};
    json_t *out = NULL;
    buf_str(&g.out, "{%+ set gv = namespace(System='', Prompt='', Response='') +%}");
    if (!strstr(text, ".Messages")) /* the template is one turn */
        go_turns(&g, text);
    else {
        buf_str(&g.out, "{%+ for it0 in messages +%}{%+ if it0.role == 'system' +%}{%+ set gv.System = "
                        "(gv.System + '\\n\\n' + it0.content) if gv.System else it0.content +%}{%+ endif +%}"
                        "{%+ endfor +%}");
        go_body(&g, text);
    }
    buf_str(&g.out, "{{ '' }}"); /* a line break at the end stays */
    if (!e->code && g.out.failed)
        err_memory(e, "a template", GO_MOST);
    if (!e->code && !(out = json_stringn(g.out.data, g.out.len)))
        err_set(e, ERR_DATA, "the template is not valid UTF-8");
    buf_free(&g.out);
    return out;
}

bool go_template_is(const char *text)
{
    static const char *const words[] = {".",      "$",      "if .",   "if (",  "if $",
                                        "if and", "if or",  "if not", "if eq", "if gt",
                                        "range",  "with .", "end",    "/*",    "json ."};
    for (const char *at = text; (at = strstr(at, "{{"));) {
        at += 2 + (at[2] == '-');
        while (isspace((unsigned char)*at))
            at++;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (!strncmp(at, words[i], strlen(words[i])))
                return true;
    }
    return false;
}
