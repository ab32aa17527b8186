/* The known pre-tokenizer patterns as data: a pass is a list of alternatives, tried in order at each
 * position, each of one of a few shapes over sets of characters. What no alternative matches stays together
 * as a piece of its own, as when a regular expression splits a text and the gaps are kept. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scan_set {
    uint32_t any;                /* classes (UC_*) */
    const char *extra;           /* further ASCII characters */
    const uint32_t (*ranges)[2]; /* further code points, sorted, ends with {0, 0} */
    bool neg;                    /* all but these */
    signed char han;             /* +1: of these only the script Han, -1: all but it */
};

enum scan_shape {
    SCAN_RUN,         /* b{min,max}; max 0 = no limit */
    SCAN_PREFIXED,    /* a?b+ */
    SCAN_TAILED,      /* a?b+c* */
    SCAN_CAMEL_LOW,   /* a?b*c+ and a contraction behind where `ci` */
    SCAN_CAMEL_UP,    /* a?b+c* likewise */
    SCAN_CONTRACTION, /* 's 't 're 've 'm 'll 'd; any case where `ci` */
    SCAN_PAIR,        /* a b+ */
    SCAN_NEWLINES,    /* \s*[\r\n]+ */
    SCAN_SPACES_KEEP, /* \s+(?!\S) */
    SCAN_SPACES,      /* \s+ */
    SCAN_SPACES_END,  /* \s+$ */
    SCAN_TRIPLES      /* a run of b cut in threes from its end; `ci`: only where no word character follows */
};

struct scan_alt {
    enum scan_shape shape;
    struct scan_set a, b, c;
    int min, max;
    bool ci;
};

struct scan_pass {
    const struct scan_alt *alts; /* ends with an alternative whose min is -1 */
};

/* The memo of one scan over a text, so that long runs of digits are walked once. Zero it for each text. */
struct scan_memo {
    size_t end; /* of a run that was walked */
    bool fits;  /* and may be cut in threes */
};

/* End of what pass matches at `at` in s (n bytes), or `at` where it matches nothing. A text is scanned forwards. */
size_t scan_match(const struct scan_pass *p, struct scan_memo *memo, const char *s, size_t n, size_t at);

/* The pass that does the same as this regular expression; NULL = none of ours. */
const struct scan_pass *scan_for_regex(const char *regex, size_t n);

/* What tokenizer.ggml.pre can name. */
struct scan_model {
    const char *name;
    const struct scan_pass *passes[6]; /* one after the other, NULL-terminated */
    const char *regex;                 /* instead: a pattern for the general engine, passes follow it */
    unsigned flags;                    /* SCAN_* */
};
enum {
    SCAN_IGNORE_MERGES = 1, /* a word that is a token is that token */
    SCAN_ADD_BOS = 2,       /* unless the file says otherwise */
    SCAN_NO_BOS = 8,        /* has no default BOS */
    SCAN_CHARS = 16,        /* characters, not bytes; spaces become U+2581 */
    SCAN_NFC = 4,   /* tiktoken files of this family: the text is composed first (a GGUF never says so) */
    SCAN_WORDS = 32 /* characters, words between spaces */
};
const struct scan_model *scan_for_name(const char *name, size_t n);
/* A name that stands for these passes, with or without SCAN_IGNORE_MERGES; NULL = none does. */
const char *scan_name_for(const struct scan_pass *const passes[6], bool ignore_merges);
extern const struct scan_pass scan_gpt2;
