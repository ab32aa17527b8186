/* Strings of JSON schema: lengths, patterns, formats. A string under a pattern is written in its shortest form
 * (raw wherever JSON allows that), so that one text has one writing and patterns can be intersected. */
#include "lang/grammar/schema.h"

#include "base/buf.h"

#include <string.h>

/* Each format of the draft as a pattern: all of it, or a part of it that is certain to be right. F_LEAP is the 29th of
 * February; IDN_ is a choice of scripts whose letters need no context. */
#define F_YEAR "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define F_LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
#define F_DATE                                                                                               \
    "(" F_YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"              \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" F_LEAP ")"
#define F_CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,15})?"
#define F_ZONE  "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define F_N     "[0-9]{1,9}"
#define F_SPAN  "T(" F_N "H(" F_N "M(" F_N "S)?)?|" F_N "M(" F_N "S)?|" F_N "S)"
#define F_LABEL "([A-Za-z0-9]{1,63}|[A-Za-z0-9](-?[A-Za-z0-9]){0,31})"
#define F_HOST  "(" F_LABEL "\\.){0,3}[0-9]{0,8}[A-Za-z](-?[A-Za-z0-9]){0,20}"
#define IDN_LETTER                                                                                           \
    "a-z0-9\\u00e0-\\u00f6\\u03b1-\\u03c9\\u0430-\\u044f\\u3042-\\u3082\\u4e00-\\u9fa5\\uac00-\\ud7a3"
#define IDN_HOST "[" IDN_LETTER "]{1,8}(\\.[" IDN_LETTER "]{1,8}){0,4}\\.?[a-z\\u4e00-\\u9fa5\\uac00-\\ud7a3]"
#define F_BYTE   "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define F_IPV4   F_BYTE "(\\." F_BYTE "){3}"
#define F_WORD   "[0-9a-fA-F]{1,4}"
#define F_MORE   "(:" F_WORD ")"
#define F_LESS   "(" F_WORD ":)"
#define F_IPV6                                                                                               \
    "(" F_LESS "{7}(:|" F_WORD ")|::(" F_WORD F_MORE "{0,6})?|" F_LESS "{1}" F_MORE "{1,6}|" F_LESS          \
    "{2}" F_MORE "{1,5}|" F_LESS "{3}" F_MORE "{1,4}|" F_LESS "{4}" F_MORE "{1,3}|" F_LESS "{5}" F_MORE      \
    "{1,2}|" F_LESS "{6}" F_MORE "|" F_LESS "{1,6}:|(" F_LESS "{6}|::" F_LESS "{0,5}|" F_LESS "{1}:" F_LESS  \
    "{0,4}|" F_LESS "{2}:" F_LESS "{0,3}|" F_LESS "{3}:" F_LESS "{0,2}|" F_LESS "{4}:" F_LESS "?|" F_LESS    \
    "{5}:)" F_IPV4 ")"

/* RFC 3986, with `more` beside the characters that a name may have. */
#define F_HEX            "|%[0-9A-Fa-f]{2})"
#define F_PLAIN          "A-Za-z0-9._~!$&'()*+,;=\\-"
#define F_CHAR(more)     "([" F_PLAIN ":@" more "]" F_HEX
#define F_SEGMENTS(more) "(/" F_CHAR(more) "*)*"
#define F_ABSOLUTE(more) "/(" F_CHAR(more) "+" F_SEGMENTS(more) ")?"
#define F_AUTHORITY(more)                                                                                    \
    "//(([" F_PLAIN ":" more "]" F_HEX "*@)?(([" F_PLAIN more "]" F_HEX "*|\\[" F_IPV6 "\\])(:[0-9]{0,5})?"
#define F_TAIL(more)   "(\\?([" F_PLAIN ":@/?" more "]" F_HEX "*)?(#([" F_PLAIN ":@/?" more "]" F_HEX "*)?"
#define F_ROOTED(more) F_AUTHORITY(more) F_SEGMENTS(more) "|" F_ABSOLUTE(more)
#define F_URI(more)                                                                                          \
    "[A-Za-z][A-Za-z0-9+.-]*:(" F_ROOTED(more) "|" F_CHAR(more) "+" F_SEGMENTS(more) ")" F_TAIL(more)
#define F_REFERENCE(more)                                                                                    \
    F_URI(more) "|(" F_ROOTED(more) "|(([" F_PLAIN "@" more "]" F_HEX "+" F_SEGMENTS(more) ")?)" F_TAIL(more)
#define F_IRI "\\u00c0-\\u1fff\\u2030-\\u205e\\u2070-\\ud7ff\\u{10000}-\\u{1fffd}"

#define F_ATOM     "A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-"
#define F_VARIABLE "[A-Za-z0-9_](\\.?([A-Za-z0-9_]" F_HEX ")*(:[1-9][0-9]{0,2}|\\*)?"
#define F_PIECE                                                                                              \
    "(([A-Za-z0-9 _,:;=@/.-]|\\\\[dDwWsS.*+?()|$^\\\\]|\\[\\^?(a-z|A-Z|0-9|[a-zA-Z0-9_ "                     \
    "])+\\])([*+?]|\\{[1-9]\\})?)"

/* NULL = a format that only describes. */
static const char *schema_format(const char *name)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", F_DATE},
        {"time", F_CLOCK F_ZONE},
        {"date-time", F_DATE "T" F_CLOCK F_ZONE},
        {"duration",
         "P(" F_N "W|(" F_N "D|" F_N "M(" F_N "D)?|" F_N "Y(" F_N "M(" F_N "D)?)?)(" F_SPAN ")?|" F_SPAN ")"},
        {"email", "[" F_ATOM "]{1,20}(\\.[" F_ATOM "]{1,20}){0,2}@" F_HOST},
        {"idn-email", "[" F_ATOM F_IRI "]{1,9}(\\.[" F_ATOM F_IRI "]{1,9})?@(" F_HOST "|" IDN_HOST ")"},
        {"hostname", F_HOST},
        {"idn-hostname", F_HOST "|" IDN_HOST},
        {"ipv4", F_IPV4},
        {"ipv6", F_IPV6},
        {"uri", F_URI("")},
        {"iri", F_URI(F_IRI)},
        {"uri-template", "([" F_PLAIN ":@/?#\\[\\]" F_IRI "]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?" F_VARIABLE
                         "(," F_VARIABLE ")*\\})*"},
        {"uri-reference", F_REFERENCE("")},
        {"iri-reference", F_REFERENCE(F_IRI)},
        {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
        {"json-pointer", "(/([^/~]|~[01])*)*"},
        {"relative-json-pointer", "(0|[1-9]{1,3}0?)(#|(/([^/~]|~[01])*)*)"},
        {"regex", "\\^?(" F_PIECE "|\\((\\?:)?" F_PIECE "+(\\|" F_PIECE "+)*\\)[*+?]?)*\\$?"},
    };
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name))
            return formats[i].pattern;
    return NULL;
}

void schema_quote(struct buf *out, const char *text, size_t n)
{
    static const char control[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)text[i];
        const char *known = c ? strchr(control, c) : NULL;
        if (known)
            buf_printf(out, "\\%c", letter[known - control]);
        else if (c < 0x20)
            buf_printf(out, "\\u%04x", c);
        else
            buf_char(out, (char)c);
    }
}

/* Any character of a string, in its shortest form. */
static struct gram *string_character(struct grammar *g)
{
    struct ranges all = {0};
    ranges_invert(g, &all);
    return gram_class(g, &all, true);
}

const struct dfa *schema_keys(struct schema *s)
{
    if (!s->keys)
        s->keys = dfa_make(s->g, gram_rep(s->g, string_character(s->g), 0, GRAMMAR_MOST));
    return s->keys;
}

const struct dfa *schema_pattern_dfa(struct schema *s, const char *pattern, enum pattern_kind kind)
{
    const uint32_t most = sizeof s->patterns / sizeof *s->patterns;
    for (uint32_t i = 0; i < most; i++)
        if (s->patterns[i].pattern == pattern && s->patterns[i].kind == kind)
            return s->patterns[i].dfa;
    const struct dfa *d = dfa_make(s->g, pattern_read(s->g, pattern, strlen(pattern), kind));
    s->patterns[s->pattern_next].pattern = pattern;
    s->patterns[s->pattern_next].kind = kind;
    s->patterns[s->pattern_next].dfa = d;
    s->pattern_next = (s->pattern_next + 1) % most;
    s->work += 100;
    return d;
}

static struct gram *format_tree(struct schema *s, const char *pattern)
{
    struct buf whole = {0};
    buf_printf(&whole, "^(%s)$", pattern);
    struct gram *node = gram_fail(s->g);
    if (whole.failed)
        err_memory(&s->g->err, "a format", 256);
    else
        node = pattern_read(s->g, whole.data, whole.len, PATTERN_QUOTED);
    buf_free(&whole);
    return node;
}

/* The trees of all patterns and formats, those that must not match, and the bounds of the length. */
struct texts {
    struct gram_items trees, never;
    uint32_t min, max;
};

static void texts_of(struct schema *s, const struct conj *c, struct texts *t)
{
    *t = (struct texts){.min = conj_least(s, c, "minLength", 0),
                        .max = conj_most(s, c, "maxLength", GRAMMAR_MOST)};
    for (uint32_t i = 0; i < c->n && !schema_stop(s); i++) {
        const json_t *pattern = json_object_get(c->part[i].s, "pattern");
        const json_t *format = json_object_get(c->part[i].s, "format");
        const char *known = schema_format(json_string_value(format));
        if (pattern && !json_is_string(pattern))
            schema_refuse(s, "pattern is a string");
        else if (pattern)
            gram_push(
                s->g, &t->trees,
                pattern_read(s->g, json_string_value(pattern), json_string_length(pattern), PATTERN_QUOTED));
        if (known) {
            gram_push(s->g, &t->trees, format_tree(s, known));
            schema_leave_out(s, "format");
        }
        const json_t *refused = json_object_get(c->part[i].s, SCHEMA_NOT_PATTERN);
        if (json_is_string(refused))
            gram_push(s->g, &t->never,
                      pattern_read(s->g, json_string_value(refused), json_string_length(refused),
                                   PATTERN_POSSIBLE));
        size_t k;
        json_t *v;
        json_array_foreach(json_object_get(c->part[i].s, SCHEMA_NOT_ENUM), k, v)
        {
            struct buf text = {0};
            schema_quote(&text, json_string_value(v), json_string_length(v));
            gram_push(s->g, &t->never, gram_bytes(s->g, text.len ? text.data : "", text.len));
            buf_free(&text);
        }
    }
}

const struct dfa *schema_string_dfa(struct schema *s, const struct conj *c)
{
    struct texts t;
    const struct dfa *all = NULL;
    s->work += 100;
    texts_of(s, c, &t);
    for (uint32_t i = 0; i < t.trees.n && !schema_stop(s); i++) {
        const struct dfa *one = dfa_make(s->g, t.trees.at[i]);
        all = i ? dfa_combine(s->g, all, one, DFA_AND) : one;
    }
    if ((t.min || t.max != GRAMMAR_MOST) && !schema_stop(s))
        all = dfa_counted(s->g, all ? all : schema_keys(s), dfa_make(s->g, string_character(s->g)), t.min,
                          t.max);
    if (t.never.n && !schema_stop(s))
        all = dfa_combine(s->g, all ? all : schema_keys(s),
                          dfa_make(s->g, gram_list(s->g, GRAM_ALT, t.never.at, t.never.n)), DFA_MINUS);
    return all;
}

struct gram *schema_string(struct schema *s, const struct conj *c)
{
    struct texts t;
    struct gram *quote = gram_text(s->g, "\""), *inside;
    texts_of(s, c, &t);
    bool bounded = t.min || t.max != GRAMMAR_MOST;
    if (!t.trees.n && !t.never.n && !bounded)
        return gram_call(s->g, s->string);
    if (t.never.n)
        inside = gram_dfa(s->g, schema_string_dfa(s, c));
    else if (!t.trees.n)
        inside = gram_rep(s->g, s->character, t.min, t.max);
    else if (t.trees.n == 1 && !bounded)
        inside = t.trees.at[0];
    else
        inside = gram_dfa(s->g, schema_string_dfa(s, c));
    return gram_seq(s->g, quote, inside, quote);
}
