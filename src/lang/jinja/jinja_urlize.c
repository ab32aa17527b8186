/* The filter urlize: what looks like a link becomes one. Words are cut at white space; brackets and marks
 * around a word stay outside of its link, as far as they balance. */
#include "lang/jinja/jinja_filter.h"

#define PCRE2_CODE_UNIT_WIDTH 8

#include "base/size.h"
#include "lang/jinja/jinja_op.h"
#include "lang/jinja/jinja_text.h"

#include <pcre2.h>
#include <pthread.h>
#include <string.h>

#define MATCH_LIMIT 100000

static const char url_pattern[] =
    "^((https?://"
    "|www\\.)(([\\w%-]+\\.)+)?([a-z]{2,63}|xn--[\\w%]{2,59})|([\\w%-]{2,63}\\.)+(com|net|int|edu|gov|org|"
    "info|mil)"
    "|(https?://)((([\\d]{1,3})(\\.[\\d]{1,3}){3})|(\\[([\\da-f]{0,4}:){2}([\\da-f]{0,4}:?){1,6}])))"
    "(?::[\\d]{1,5})?(?:[/?#]\\S*)?$";
static const char mail_pattern[] = "^\\S+@\\w[\\w.-]*\\.\\w+$";

static pcre2_code *url_code, *mail_code; /* compiled once, then only read */
static pthread_once_t compiled = PTHREAD_ONCE_INIT;

static void compile_patterns(void)
{
    int error;
    PCRE2_SIZE at;
    uint32_t flags = PCRE2_UTF | PCRE2_UCP;
    url_code = pcre2_compile((PCRE2_SPTR)url_pattern, PCRE2_ZERO_TERMINATED, flags | PCRE2_CASELESS, &error,
                             &at, NULL);
    mail_code = pcre2_compile((PCRE2_SPTR)mail_pattern, PCRE2_ZERO_TERMINATED, flags, &error, &at, NULL);
}

static bool matches(struct jrt *rt, const pcre2_code *code, const struct jstr *s)
{
    if (!code)
        jfail_limit(rt, "urlize: out of memory");
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    int result = PCRE2_ERROR_NOMEMORY;
    if (context && data) {
        pcre2_set_match_limit(context, MATCH_LIMIT);
        result = pcre2_match(code, (PCRE2_SPTR)s->s, s->n, 0, 0, data, context);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    jcharge(rt, s->n);
    if (result == PCRE2_ERROR_MATCHLIMIT || result == PCRE2_ERROR_NOMEMORY)
        jfail_limit(rt, "urlize: a word is too long");
    return result >= 0;
}

struct jurlize {
    struct jrt *rt;
    struct jsb out;
    int64_t trim;                    /* characters of a shown URL, -1 = all */
    const struct jstr *rel, *target; /* escaped, or NULL */
    const struct jlist *schemes;
};

static bool starts(const struct jstr *s, const char *lit)
{
    size_t n = strlen(lit);
    return s->n >= n && !memcmp(s->s, lit, n);
}

static size_t count(const struct jstr *s, const char *lit)
{
    struct jstr sub = {.s = lit, .n = strlen(lit)};
    size_t found = 0;
    for (size_t at = 0; (at = jtext_find(s, &sub, at, s->n)) != SIZE_MAX; at += sub.n)
        found++;
    return found;
}

/* The opening brackets in front, and the marks behind. */
static size_t head_length(const struct jstr *w)
{
    size_t n = 0;
    while (n < w->n) {
        if (w->s[n] == '(' || w->s[n] == '<')
            n++;
        else if (w->n - n >= 4 && !memcmp(w->s + n, "&lt;", 4))
            n += 4;
        else
            break;
    }
    return n;
}

static size_t tail_length(const struct jstr *w)
{
    size_t end = w->n;
    while (end) {
        if (strchr(")>.,\n", w->s[end - 1]) && w->s[end - 1])
            end--;
        else if (end >= 4 && !memcmp(w->s + end - 4, "&gt;", 4))
            end -= 4;
        else
            break;
    }
    return w->n - end;
}

/* Gives closing brackets of the tail back to the middle while the middle has too few. */
static size_t balance(struct jrt *rt, const struct jstr *rest, size_t middle)
{
    static const char *const pair[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    for (size_t i = 0; i < 3; i++) {
        struct jstr *m = jstr_sub(rt, rest, 0, middle), *tail = jstr_sub(rt, rest, middle, rest->n - middle);
        size_t opened = count(m, pair[i][0]);
        if (opened <= count(m, pair[i][1]))
            continue;
        struct jstr close = {.s = pair[i][1], .n = strlen(pair[i][1])};
        for (size_t k = size_min(opened, count(tail, pair[i][1])); k; k--)
            middle = jtext_find(rest, &close, middle, rest->n) + close.n;
    }
    return middle;
}

static void link_add(struct jurlize *u, const char *scheme, const struct jstr *href, const struct jstr *shown,
                     bool attributes)
{
    struct jsb *b = &u->out;
    jsb_lit(b, "<a href=\"", false);
    jsb_lit(b, scheme, false);
    jsb_str(b, href);
    jsb_lit(b, "\"", false);
    if (attributes && u->rel) {
        jsb_lit(b, " rel=\"", false);
        jsb_str(b, u->rel);
        jsb_lit(b, "\"", false);
    }
    if (attributes && u->target) {
        jsb_lit(b, " target=\"", false);
        jsb_str(b, u->target);
        jsb_lit(b, "\"", false);
    }
    jsb_lit(b, ">", false);
    jsb_str(b, shown);
    jsb_lit(b, "</a>", false);
}

static void url_add(struct jurlize *u, const struct jstr *m)
{
    struct jstr *shown = jstr_sub(u->rt, m, 0, m->n);
    if (u->trim >= 0 && (int64_t)m->chars > u->trim)
        shown = jstr_concat(u->rt, jstr_sub(u->rt, m, 0, jstr_offset(m, (size_t)u->trim)),
                            jstr_lit(u->rt, "..."));
    link_add(u, starts(m, "https://") || starts(m, "http://") ? "" : "https://", m, shown, true);
}

static void fim_add(struct jurlize *u, const struct jstr *m)
{
    struct jrt *rt = u->rt;
    if (matches(rt, url_code, m)) {
        url_add(u, m);
        return;
    }
    if (starts(m, "mailto:") && matches(rt, mail_code, jstr_sub(rt, m, 7, m->n - 7))) {
        link_add(u, "", m, jstr_sub(rt, m, 7, m->n - 7), false);
        return;
    }
    if (count(m, "@") && !starts(m, "www.") && !starts(m, "@") && !count(m, ":") &&
        matches(rt, mail_code, m)) {
        link_add(u, "mailto:", m, m, false);
        return;
    }
    for (size_t i = 0; u->schemes && i < u->schemes->n; i++) {
        const struct jstr *scheme = jarg_str(rt, u->schemes->v[i], "a scheme");
        if (m->n > scheme->n && !memcmp(m->s, scheme->s, scheme->n)) {
            link_add(u, "", m, m, true);
            return;
        }
    }
    jsb_str(&u->out, m);
}

static void word_add(struct jurlize *u, const struct jstr *w)
{
    size_t head = head_length(w);
    struct jstr *rest = jstr_sub(u->rt, w, head, w->n - head);
    size_t middle = balance(u->rt, rest, rest->n - tail_length(rest));
    jsb_sub(&u->out, w, 0, head);
    fim_add(u, jstr_sub(u->rt, rest, 0, middle));
    jsb_sub(&u->out, rest, middle, rest->n - middle);
}

/* rel: the words given, with nofollow and jinja2's own noopener, sorted. */
static const struct jstr *rel_of(struct jrt *rt, struct jv rel, bool nofollow)
{
    struct jlist *words =
        jarg_given(rel) ? jtext_split(rt, jarg_str(rt, rel, "rel"), NULL, -1) : jlist_new(rt, 2);
    if (nofollow)
        jlist_add(rt, words, jv_lit(rt, "nofollow"));
    jlist_add(rt, words, jv_lit(rt, "noopener"));
    struct jcall none = {.name = "sort"},
                 join = {.name = "join", .npos = 1, .pos = (struct jv[]){jv_lit(rt, " ")}};
    struct jv sorted = jfunc_run(rt, jfilter_find("sort", 4), jv_list(words), &none);
    struct jv unique = jfunc_run(rt, jfilter_find("unique", 6), sorted, &none);
    return jop_escape(rt, jfunc_run(rt, jfilter_find("join", 4), unique, &join));
}

struct jv jurlize_filter(struct jrt *rt, struct jv v, struct jv *arg)
{
    pthread_once(&compiled, compile_patterns);
    struct jurlize u = {.rt = rt,
                        .out = {.rt = rt},
                        .trim = jarg_given(arg[0]) ? jarg_int(rt, arg[0], -1, "trim_url_limit") : -1};
    u.rel = rel_of(rt, arg[3], jv_true(arg[1]));
    u.target = jarg_given(arg[2]) ? jop_escape(rt, arg[2]) : NULL;
    u.schemes = jarg_given(arg[4]) ? jiter_list(rt, arg[4]) : NULL;
    const struct jstr *s = jop_escape(rt, v);
    for (size_t i = 0; i < s->n;) {
        size_t from = i, at = i;
        while (i < s->n && !jtext_space(jtext_next(s, &i)))
            at = i;
        if (at > from)
            word_add(&u, jstr_sub(rt, s, from, at - from));
        for (i = at; at < s->n && jtext_space(jtext_next(s, &i)); at = i)
            jsb_sub(&u.out, s, at, i - at);
        i = at;
    }
    return jv_str(jsb_done(&u.out));
}
