/* The parts of a tokenizer.json that are lists of steps: normaliser, pre-tokenizer, decoder. */
#include "lang/token/tok.h"

#include "base/base64.h"
#include "base/log.h"
#include "lang/token/unicode.h"

#include <string.h>

#define DEPTH 8

/* {"String": "..."} or {"Regex": "..."}: exactly one of the two is set. */
static int read_pattern(const struct tj *j, const struct tj_node *n, struct tok_str *literal,
                        struct tok_str *regex, struct err *e)
{
    const struct tj_node *p = tj_need(j, n, "pattern", JSONREAD_IS_STRING | JSONREAD_IS_OBJECT);
    bool object = p && p->type == TJ_OBJECT;
    *literal = object ? tok_json_str(j, p, "String") : tok_json_str(j, n, "pattern");
    *regex = object ? tok_json_str(j, p, "Regex") : (struct tok_str){"", 0};
    if (e->code)
        return -1;
    return literal->n || regex->n
               ? 0
               : err_set(e, ERR_DATA, "%s: a step of the tokenizer has no pattern", log_safe(j->file));
}

static int unknown(const struct tj *j, const char *what, const struct tj_node *type, struct err *e)
{
    return err_set(e, ERR_DATA, "%s: the %s '%s' is not known", log_safe(j->file), what,
                   type ? log_safe_n(type->s, type->n) : "");
}

static int
sequence(struct tokenizer *t, const struct tj *j, const struct tj_node *list, int depth, struct err *e,
         int (*one)(struct tokenizer *, const struct tj *, const struct tj_node *, int, struct err *))
{
    if (depth >= DEPTH)
        return err_set(e, ERR_DATA, "the tokenizer's sequences are nested more than %d deep", DEPTH);
    for (const struct tj_node *m = tj_first(j, list); m; m = tj_next(j, m))
        if (one(t, j, m, depth + 1, e))
            return -1;
    return e->code ? -1 : 0;
}

/* ---- normalisers ---- */

static int add_replace(struct tokenizer *t, const struct tj *j, const struct tj_node *n, struct err *e)
{
    struct tok_str literal, regex;
    struct norm_step *step = tok_norm_add(t, NORM_REPLACE, e);
    if (!step || read_pattern(j, n, &literal, &regex, e))
        return -1;
    step->from = literal;
    step->to = tok_json_str(j, n, "content");
    return literal.n ? 0 : regex_open(&step->regex, regex.s, regex.n, e);
}

static int add_precompiled(struct tokenizer *t, const struct tj *j, const struct tj_node *n, struct err *e)
{
    struct tok_str text = tok_json_str(j, n, "precompiled_charsmap?");
    struct norm_step *step = tok_norm_add(t, NORM_PRECOMPILED, e);
    struct buf *out = &t->files[2];
    if (!step)
        return -1;
    if (out->len)
        return err_set(e, ERR_DATA, "the tokenizer has two charsmaps");
    if (!base64_read(out, text.s, text.n))
        return err_set(e, ERR_DATA, "the tokenizer's charsmap is not base64");
    return tok_charsmap(&step->map, out->data, out->len, e);
}

static int add_bert(struct tokenizer *t, const struct tj *j, const struct tj_node *n, struct err *e)
{
    struct norm_step *step = tok_norm_add(t, NORM_BERT, e);
    if (!step)
        return -1;
    step->clean = tj_bool(j, n, "clean_text", true);
    step->chinese = tj_bool(j, n, "handle_chinese_chars", true);
    step->lower = tj_bool(j, n, "lowercase", true);
    step->accents = tj_bool(j, n, "strip_accents?", step->lower);
    return 0;
}

int tok_hf_normalizer(struct tokenizer *t, const struct tj *j, const struct tj_node *n, int depth,
                      struct err *e)
{
    static const struct {
        const char *name;
        enum tok_norm_kind kind;
        int form;
    } simple[] = {{"NFC", NORM_FORM, UNICODE_NFC},
                  {"NFD", NORM_FORM, UNICODE_NFD},
                  {"NFKC", NORM_FORM, UNICODE_NFKC},
                  {"NFKD", NORM_FORM, UNICODE_NFKD},
                  {"Lowercase", NORM_LOWER, 0},
                  {"StripAccents", NORM_STRIP_ACCENTS, 0},
                  {"Nmt", NORM_NMT, 0},
                  {"ByteLevel", NORM_BYTES, 0}};
    const struct tj_node *type = tj_need(j, n, "type", JSONREAD_IS_STRING);
    struct norm_step *step;
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (tj_is(type, simple[i].name)) {
            if ((step = tok_norm_add(t, simple[i].kind, e)))
                step->form = simple[i].form;
            return step ? 0 : -1;
        }
    if (tj_is(type, "Sequence"))
        return sequence(t, j, tj_need(j, n, "normalizers", JSONREAD_IS_ARRAY), depth, e, tok_hf_normalizer);
    if (tj_is(type, "Replace"))
        return add_replace(t, j, n, e);
    if (tj_is(type, "Precompiled"))
        return add_precompiled(t, j, n, e);
    if (tj_is(type, "BertNormalizer"))
        return add_bert(t, j, n, e);
    if (tj_is(type, "Prepend")) {
        if ((step = tok_norm_add(t, NORM_PREPEND, e)))
            step->to = tok_json_str(j, n, "prepend");
        return step ? 0 : -1;
    }
    if (tj_is(type, "Strip")) {
        if ((step = tok_norm_add(t, NORM_STRIP, e))) {
            step->left = tj_bool(j, n, "strip_left", true);
            step->right = tj_bool(j, n, "strip_right", true);
        }
        return step ? 0 : -1;
    }
    return unknown(j, "normalizer", type, e);
}

/* ---- pre-tokenizers ---- */

static int read_behaviour(const struct tj *j, const struct tj_node *n, enum pre_behaviour *out, struct err *e)
{
    static const char *const names[] = {[SPLIT_ISOLATED] = "Isolated",
                                        [SPLIT_REMOVED] = "Removed",
                                        [SPLIT_PREVIOUS] = "MergedWithPrevious",
                                        [SPLIT_NEXT] = "MergedWithNext",
                                        [SPLIT_CONTIGUOUS] = "Contiguous"};
    const struct tj_node *b = tj_get(j, n, "behavior", JSONREAD_IS_STRING);
    *out = SPLIT_ISOLATED;
    if (!b)
        return 0;
    for (int i = 0; i < 5; i++)
        if (tj_is(b, names[i])) {
            *out = (enum pre_behaviour)i;
            return 0;
        }
    return unknown(j, "behaviour of a pre-tokenizer", b, e);
}

static int add_split(struct tokenizer *t, const struct tj *j, const struct tj_node *n, struct err *e)
{
    struct tok_str literal, regex;
    struct pre_step *step = tok_pre_add(t, PRE_LITERAL, e);
    if (!step || read_pattern(j, n, &literal, &regex, e) || read_behaviour(j, n, &step->behaviour, e))
        return -1;
    step->invert = tj_bool(j, n, "invert", false);
    step->literal = literal;
    if (literal.n)
        return 0;
    step->pass = scan_for_regex(regex.s, regex.n);
    step->kind = step->pass ? PRE_SCAN : PRE_REGEX;
    return step->pass ? 0 : regex_open(&step->regex, regex.s, regex.n, e);
}

/* A space in front, the pattern of GPT-2, and then the alphabet: three steps, each where it is wanted. */
static int add_byte_level(struct tokenizer *t, const struct tj *j, const struct tj_node *n, struct err *e)
{
    struct pre_step *step;
    if (tj_bool(j, n, "add_prefix_space?", true)) {
        if (!(step = tok_pre_add(t, PRE_BYTES, e)))
            return -1;
        step->prefix = true;
    }
    if (tj_bool(j, n, "use_regex", true)) {
        if (!(step = tok_pre_add(t, PRE_SCAN, e)))
            return -1;
        step->pass = &scan_gpt2;
    }
    return tok_pre_add(t, PRE_BYTES, e) ? 0 : -1;
}

static int add_metaspace(struct tokenizer *t, const struct tj *j, const struct tj_node *n, struct err *e)
{
    const struct tj_node *scheme = tj_get(j, n, "prepend_scheme?", JSONREAD_IS_STRING);
    struct pre_step *step = tok_pre_add(t, PRE_METASPACE, e);
    if (!step)
        return -1;
    step->to = tok_json_str(j, n, "replacement");
    if (!step->to.n)
        step->to = (struct tok_str){TOK_SPACE_MARK, 3};
    step->split = tj_bool(j, n, "split?", true);
    step->scheme = tj_is(scheme, "never") || !tj_bool(j, n, "add_prefix_space?", true) ? PREPEND_NEVER
                   : tj_is(scheme, "first")                                            ? PREPEND_FIRST
                                                                                       : PREPEND_ALWAYS;
    return 0;
}

static int add_chars(struct tokenizer *t, enum pre_chars chars, enum pre_behaviour how, struct err *e)
{
    struct pre_step *step = tok_pre_add(t, PRE_CHARS, e);
    if (!step)
        return -1;
    step->chars = chars;
    step->behaviour = how;
    return 0;
}

static int add_words(struct tokenizer *t, struct err *e)
{
    struct pre_step *step = tok_pre_add(t, PRE_WORDS, e);
    if (!step)
        return -1;
    step->invert = true;
    step->behaviour = SPLIT_REMOVED;
    return 0;
}

int tok_hf_pretokenizer(struct tokenizer *t, const struct tj *j, const struct tj_node *n, int depth,
                        struct err *e)
{
    const struct tj_node *type = tj_need(j, n, "type", JSONREAD_IS_STRING);
    enum pre_behaviour how;
    struct pre_step *step;
    if (tj_is(type, "Sequence"))
        return sequence(t, j, tj_need(j, n, "pretokenizers", JSONREAD_IS_ARRAY), depth, e,
                        tok_hf_pretokenizer);
    if (tj_is(type, "Split"))
        return add_split(t, j, n, e);
    if (tj_is(type, "ByteLevel"))
        return add_byte_level(t, j, n, e);
    if (tj_is(type, "Metaspace"))
        return add_metaspace(t, j, n, e);
    if (tj_is(type, "Whitespace"))
        return add_words(t, e);
    if (tj_is(type, "WhitespaceSplit"))
        return add_chars(t, CHARS_SPACE, SPLIT_REMOVED, e);
    if (tj_is(type, "BertPreTokenizer"))
        return add_chars(t, CHARS_SPACE, SPLIT_REMOVED, e) || add_chars(t, CHARS_PUNCT, SPLIT_ISOLATED, e)
                   ? -1
                   : 0;
    if (tj_is(type, "Digits")) {
        bool each = tj_bool(j, n, "individual_digits", false);
        return add_chars(t, CHARS_NUMERIC, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, e);
    }
    if (tj_is(type, "Punctuation"))
        return read_behaviour(j, n, &how, e) || add_chars(t, CHARS_PUNCT, how, e) ? -1 : 0;
    if (tj_is(type, "CharDelimiterSplit")) {
        if (!(step = tok_pre_add(t, PRE_LITERAL, e)))
            return -1;
        step->literal = tok_json_str(j, n, "delimiter");
        step->behaviour = SPLIT_REMOVED;
        return 0;
    }
    if (tj_is(type, "FixedLength")) {
        const struct tj_node *length = tj_get(j, n, "length", JSONREAD_IS_INT);
        if (!(step = tok_pre_add(t, PRE_FIXED, e)))
            return -1;
        step->length = length ? (size_t)tj_whole(j, length, 1, INT32_MAX) : 5;
        return 0;
    }
    return unknown(j, "pre-tokenizer", type, e);
}

/* ---- decoders ---- */

int tok_hf_decoder(struct tokenizer *t, const struct tj *j, const struct tj_node *n, int depth, struct err *e)
{
    const struct tj_node *type = tj_need(j, n, "type", JSONREAD_IS_STRING);
    struct tok_str literal, regex;
    if (tj_is(type, "Sequence"))
        return sequence(t, j, tj_need(j, n, "decoders", JSONREAD_IS_ARRAY), depth, e, tok_hf_decoder);
    if (tj_is(type, "ByteLevel")) {
        t->dec_alphabet = true;
    } else if (tj_is(type, "Metaspace")) {
        t->dec_mark = tok_json_str(j, n, "replacement");
        t->dec_strip_first = !tj_is(tj_get(j, n, "prepend_scheme?", JSONREAD_IS_STRING), "never") &&
                             tj_bool(j, n, "add_prefix_space?", true);
    } else if (tj_is(type, "Replace")) {
        if (read_pattern(j, n, &literal, &regex, e))
            return -1;
        if (literal.n && tj_is(tj_get(j, n, "content", JSONREAD_IS_STRING), " "))
            t->dec_mark = literal;
    } else if (tj_is(type, "Strip")) {
        const struct tj_node *start = tj_get(j, n, "start", JSONREAD_IS_INT);
        t->dec_strip_first =
            tj_is(tj_get(j, n, "content", JSONREAD_IS_STRING), " ") && start && start->number >= 1;
    } else if (tj_is(type, "WordPiece")) {
        t->dec = DEC_WORDS;
        t->joiner = tok_json_str(j, n, "prefix");
        t->dec_cleanup = tj_bool(j, n, "cleanup", true);
    } else if (tj_is(type, "BPEDecoder")) {
        t->dec_suffix = tok_json_str(j, n, "suffix");
    } else if (!tj_is(type, "ByteFallback") && !tj_is(type, "Fuse") && !tj_is(type, "CTC")) {
        return unknown(j, "decoder", type, e);
    }
    return 0;
}
