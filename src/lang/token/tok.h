/* The internals of a tokenizer: the pipeline to which all sources are compiled. Private to tok*.c and
 * pretok.c. Strings point into what `own` keeps alive (a JSON text, the GGUF mapping, `strings`). */
#pragma once

#include "base/buf.h"
#include "base/mem.h"
#include "lang/token/pretok_scan.h"
#include "lang/token/regex.h"
#include "lang/token/tok_json.h"
#include "lang/token/tokenizer.h"

struct tok_str {
    const char *s;
    uint32_t n;
};

/* ---- tok_vocab.c: strings to ids ------------------------------------------------------------- */

/* Open addressing over ids, the strings are an array elsewhere. Power-of-two size, at most half full. */
struct tok_slot {
    uint32_t hash;
    int32_t id; /* -1 = empty */
};
struct tok_map {
    struct tok_slot *slots;
    uint32_t mask;
};

/* Fetches the memory that a look-up will want: step 0 the slot, 1 the string's place, 2 the string. */
void tok_map_prefetch(const struct tok_map *m, const struct tok_str *strs, const struct tok_str *s, int step);

static inline uint64_t tok_hash(const char *s, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, w;
    for (; n >= 8; s += 8, n -= 8) {
        __builtin_memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    w = 0;
    __builtin_memcpy(&w, s, n);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 29;
}

/* What the model itself knows under this string, -1 = nothing. */
int32_t tok_model_find(const struct tokenizer *t, const char *s, size_t n);
int tok_map_open(struct tok_map *m, size_t count, struct err *e);
/* Keeps the id that was there first and returns it, or id. */
int32_t tok_map_add(struct tok_map *m, const struct tok_str *strs, int32_t id);
int32_t tok_map_find(const struct tok_map *m, const struct tok_str *strs, const char *s, size_t n);
void tok_map_close(struct tok_map *m);

/* ---- tok_vocab.c: longest and all prefixes --------------------------------------------------- */

/* Edges (node, byte) -> node in a hash table; node 0 is the root. */
struct tok_trie {
    uint64_t *keys; /* node << 8 | byte, + 1; 0 = empty */
    uint32_t *to;
    int32_t *value; /* by node, -1 = none */
    uint32_t mask, edges, nodes, cap;
    uint32_t first[256]; /* the root's edges, 0 = none */
};

int tok_trie_open(struct tok_trie *t, size_t expect, struct err *e);
int tok_trie_add(struct tok_trie *t, const char *s, size_t n, int32_t value, struct err *e);
void tok_trie_close(struct tok_trie *t);
/* The node below `node` by a byte, 0 = none. */
static inline uint32_t tok_trie_step(const struct tok_trie *t, uint32_t node, unsigned char c)
{
    if (!node)
        return t->first[c];
    uint64_t key = ((uint64_t)node << 8 | c) + 1;
    for (uint32_t i = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & t->mask;; i = (i + 1) & t->mask) {
        if (t->keys[i] == key)
            return t->to[i];
        if (!t->keys[i])
            return 0;
    }
}

/* ---- the steps of the pipeline --------------------------------------------------------------- */

enum tok_norm_kind {
    NORM_FORM, /* NFC.. in `form` */
    NORM_LOWER,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_NMT,
    NORM_BERT,
    NORM_BYTES,       /* the byte-level alphabet */
    NORM_PRECOMPILED, /* a charsmap, by grapheme, as Hugging Face applies it */
    NORM_SPM          /* SentencePiece's own normaliser: charsmap, spaces */
};

/* A charsmap of SentencePiece: a double array of words, then the replacements, each NUL-terminated. */
struct charsmap {
    const unsigned char *units; /* little-endian words, `count` of them */
    size_t count;
    const char *strings;
    size_t strings_n;
};

struct norm_step {
    enum tok_norm_kind kind;
    int form;                            /* enum unicode_form */
    struct tok_str from, to;             /* REPLACE (a literal), PREPEND */
    struct regex *regex;                 /* REPLACE by pattern */
    bool left, right;                    /* STRIP */
    bool clean, chinese, accents, lower; /* BERT */
    bool first_only;                     /* SPM: the text is one even where added tokens cut it */
    bool prefix, suffix, squeeze,
        escape; /* SPM: a space in front or behind, runs become one, space = U+2581 */
    struct charsmap map;
};

enum pre_kind {
    PRE_SCAN,
    PRE_REGEX,
    PRE_LITERAL,
    PRE_CHARS,     /* characters of `chars` */
    PRE_WORDS,     /* \w+|[^\w\s]+ */
    PRE_METASPACE, /* spaces become `to`, one in front; then split before each where `split` */
    PRE_BYTES,     /* the byte-level alphabet; `prefix`: a space in front */
    PRE_FIXED      /* pieces of `length` characters */
};
enum pre_chars { CHARS_NUMERIC, CHARS_PUNCT, CHARS_SPACE };
enum pre_behaviour { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum pre_scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

struct pre_step {
    enum pre_kind kind;
    const struct scan_pass *pass;
    struct regex *regex;
    struct tok_str literal, to;
    enum pre_chars chars;
    enum pre_behaviour behaviour;
    bool invert, split, prefix;
    enum pre_scheme scheme;
    size_t length;
};

enum tok_model { MODEL_BPE, MODEL_RANKED, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL, MODEL_GREEDY };

struct tok_merge {
    int32_t left, right; /* left -1 = empty slot */
    uint32_t rank;
    int32_t id;
};

struct added_token {
    struct tok_str text; /* what is matched; normalised where `normalized` */
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
};

enum dec_kind {
    DEC_PLAIN, /* the bytes as they are */
    DEC_WORDS, /* one space between tokens, `joiner` glues (WordPiece) */
    DEC_SPACED /* a space between all tokens (no decoder in tokenizer.json) */
};

#define TOK_STEPS 24

struct tokenizer {
    char kind[16], pre_name[48];

    int32_t n;
    struct tok_str *pieces; /* (n) */
    struct tok_str *bytes;  /* (n), what each stands for in text */
    uint8_t *attr;          /* (n) enum tok_attr */
    double *score;          /* (n) or NULL */
    bool *eog;              /* (n) */
    bool *outside;          /* (n), not of the model: a text never becomes it by merging */
    struct tok_map by_piece;
    int32_t roles[TOK_ROLES];

    struct added_token *added;
    size_t added_n, added_cap;
    struct tok_trie added_raw, added_norm; /* values: places in `added` */
    bool added_first[2][256];              /* bytes that such tokens start with */

    struct norm_step norm[TOK_STEPS];
    int norm_n;
    struct pre_step pre[TOK_STEPS];
    int pre_n;

    enum tok_model model;
    bool byte_level;  /* words reach the model as bytes, not as characters */
    bool whole_words; /* a word that is a token is that token (ignore_merges) */
    bool whole_lines; /* so is a word of newlines */
    bool byte_fallback, fuse_unk;
    bool from_end; /* a unigram model that searches from the end of the text (plamo 2) */
    uint8_t
        *glue; /* (8192) bits by tok_glue: characters that a token has before U+2581; NULL = cut nowhere */
    int32_t byte_id[256]; /* byte -> token, -1 = none: of the alphabet, or <0xNN> */
    struct tok_str cont_prefix, word_suffix, word_prefix;
    struct tok_merge *merges; /* (merge_mask + 1), open addressing by (left, right) */
    uint32_t merge_mask;
    struct tok_map by_bytes; /* byte_level: by `bytes` */
    uint32_t *rank;          /* MODEL_RANKED: (n), least first */
    struct tok_trie trie;    /* unigram, greedy */
    double unk_score;
    size_t max_word; /* WordPiece: characters in a word */
    size_t
        reach; /* bytes of normalised text, of those with a token, that a token stands for at most; 0 = any number */

    int32_t *head, *tail; /* what TOK_ADD puts around a text */
    size_t head_n, tail_n;
    enum { TOK_SEP_UNKNOWN, TOK_SEP_ONCE, TOK_SEP_TWICE } sep; /* between the texts of a pair */

    enum dec_kind dec;
    struct tok_str joiner;
    bool dec_alphabet;                   /* pieces are in the byte-level alphabet */
    struct tok_str dec_mark, dec_suffix; /* what stands for a space in a piece; at its end */
    bool dec_cleanup;
    bool dec_strip_first; /* the first token loses one leading space */

    struct tj json;     /* kept for its strings */
    struct buf strings; /* decoded bytes of tokens; fixed once built */
    struct buf files[4];
};

/* ---- tok_setup.c: what all sources share ------------------------------------------------------ */

int tok_alloc_vocab(struct tokenizer *t, int64_t n, struct err *e);
#define TOK_ID_MOST (1 << 22)
/* After pieces, attr and roles are there: map, bytes of each, end-of-generation set, added tokens. */
int tok_finish(struct tokenizer *t, struct err *e);
int tok_add_added(struct tokenizer *t, const struct added_token *a, struct err *e);
int tok_set_around(int32_t **list, size_t *n, const int32_t *ids, size_t count, struct err *e);
void tok_find_byte_ids(struct tokenizer *t);
/* Every control, user-defined and unknown token becomes an added token (files without a list of them). */
int tok_add_by_attr(struct tokenizer *t, struct err *e);
int tok_build_map(struct tokenizer *t, struct err *e);
struct norm_step *tok_norm_add(struct tokenizer *t, enum tok_norm_kind kind, struct err *e);
struct pre_step *tok_pre_add(struct tokenizer *t, enum pre_kind kind, struct err *e);
int tok_charsmap(struct charsmap *m, const void *data, size_t n, struct err *e);
/* Byte-level alphabet: the character of a byte, and the byte of a character (-1 = none). */
uint32_t tok_byte_char(unsigned char b);
int tok_char_byte(uint32_t cp);
/* "<0xNN>" -> the byte, -1 = it is not one. */
int tok_byte_name(const char *s, size_t n);
/* SentencePiece BPE: pairs merge by the score of what they make; tokens that are no text never do. */
int tok_rank_by_score(struct tokenizer *t, struct err *e);
static inline uint32_t tok_glue(uint32_t cp)
{
    return (cp * 0x9e3779b1u) >> 16;
}
#define TOK_SPACE_MARK "\xe2\x96\x81"

/* ---- tok_bpe.c --------------------------------------------------------------------------------- */

int tok_merges_open(struct tokenizer *t, size_t count, struct err *e);
/* Merges by their strings, in order of rank; those with a part or a whole that is not in the vocabulary are
 * left out. They are looked up many at a time, so that the memory of one is fetched during another. */
#define TOK_FEED 32
struct tok_feed {
    struct tokenizer *t;
    struct tok_str a[TOK_FEED], b[TOK_FEED];
    uint32_t rank; /* of the first that is held */
    int n;
    int32_t last; /* the token that the merge before made: the next is often the one behind it */
};
void tok_feed_merge(struct tok_feed *f, const char *a, size_t an, const char *b, size_t bn);
void tok_feed_end(struct tok_feed *f);

/* ---- encoding ------------------------------------------------------------------------------------ */

struct tok_cache_line; /* 64 bytes: a word and its ids */

/* What one call of encode works with. */
struct tok_work {
    const struct tokenizer *t;
    struct ids *out;
    struct err *e;
    struct tok_cache_line *cache;
    uint32_t cache_mask;
    struct regex_run *run;
    struct buf norm[2];          /* ping and pong of the normalisers */
    struct buf level[TOK_STEPS]; /* rewritten text of each pre-tokenizer step */
    size_t total;                /* bytes of the whole text */
    size_t spare;                /* bytes that the steps may still add to it: tok_spare */
    bool at_start, at_end;       /* the piece that is being normalised begins, ends the text */
    void *room;                  /* of the model: symbols, heap, lattice */
    size_t room_bytes;
};

void *tok_room(struct tok_work *w, size_t count, size_t size);
/* Steps come with the model, and a few of them could make gigabytes of a short text: together they may add 32 bytes for
 * each of the text, and a little more. (The longest decomposition of Unicode and the byte-level alphabet make 22 of 1.) */
static inline size_t tok_spare(size_t total)
{
    enum { LITTLE = 64 << 10, MOST = 256 << 20 };
    return total < MOST / 32 ? 32 * total + LITTLE : MOST;
}
/* Before a step writes to `out` what it makes of n bytes, and after it: -1 where that is too much. */
void tok_grow_begin(const struct tok_work *w, struct buf *out, size_t n);
int tok_grow_end(struct tok_work *w, const struct buf *out, size_t n);
int tok_norm_apply(struct tok_work *w, const struct norm_step *steps, int n, const char **s, size_t *len);
/* Runs the pre-tokenizer over a piece and the model over each word. */
int tok_pre_run(struct tok_work *w, int step, const char *s, size_t n, bool first);
int tok_model_word(struct tok_work *w, const char *s, size_t n);
int tok_bpe_word(struct tok_work *w, const char *s, size_t n);
int tok_unknown(struct tok_work *w, const char *s, size_t n);

/* ---- sources ------------------------------------------------------------------------------------- */

struct gguf;
int tok_from_gguf(struct tokenizer *t, const struct gguf *g, struct err *e);
int tok_from_json(struct tokenizer *t, const char *path, struct err *e);
int tok_from_spm(struct tokenizer *t, const char *path, struct err *e);
int tok_from_vocab_merges(struct tokenizer *t, const char *vocab, const char *merges, struct err *e);
int tok_from_tiktoken(struct tokenizer *t, const char *path, struct err *e);
int tok_from_tekken(struct tokenizer *t, const char *path, struct err *e);
int tok_from_lines(struct tokenizer *t, const char *path, struct err *e);
int tok_from_wordlist(struct tokenizer *t, const char *path, struct err *e);
/* BOS, EOS and their kin, and further added tokens, from tokenizer_config.json; `path` may be NULL. */
int tok_apply_config(struct tokenizer *t, const char *path, struct err *e);
/* A string of the file by a typed getter; "" where it is absent. */
struct tok_str tok_json_str(const struct tj *j, const struct tj_node *o, const char *key);
/* A token's id; -1 and an error where it is none. */
int32_t tok_json_id(const struct tj *j, const struct tj_node *n);
/* One normaliser or pre-tokenizer of a tokenizer.json (tok_hf_steps.c). */
int tok_hf_normalizer(struct tokenizer *t, const struct tj *j, const struct tj_node *n, int depth,
                      struct err *e);
int tok_hf_pretokenizer(struct tokenizer *t, const struct tj *j, const struct tj_node *n, int depth,
                        struct err *e);
int tok_hf_decoder(struct tokenizer *t, const struct tj *j, const struct tj_node *n, int depth,
                   struct err *e);
