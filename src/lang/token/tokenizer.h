/* Tokenizers: text to ids and back, as the model's own tokenizer does it. One pipeline serves every source
 * (GGUF keys, tokenizer.json, tokenizer.model, vocab.json with merges.txt, tiktoken ranks):
 *
 *   text -> added tokens cut out -> normaliser -> added tokens cut out -> pre-tokenizer -> model -> ids
 *
 * A tokenizer is read-only once it is open and can be shared between threads: what an encode needs beyond
 * it belongs to the call. Bytes that are not UTF-8 are taken as U+FFFD, one for each maximal broken sequence. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;
struct tokenizer;

/* A growable list of token ids; the caller's, zero it first. With `most`, adding more fails and sets `over`, and a text
 * that cannot become so few tokens is not even read to its end. */
struct ids {
    int32_t *data;
    size_t len, cap;
    size_t most; /* 0 = any number */
    bool over;
};

void ids_free(struct ids *ids);
int ids_add(struct ids *ids, int32_t id, struct err *e);

int tokenizer_open(struct tokenizer **out, const struct store *s, struct err *e);
/* A tokenizer that is a file by itself: a folder with one of the files below, or tokenizer.json,
 * tokenizer.model, tekken.json, *.tiktoken. */
int tokenizer_open_file(struct tokenizer **out, const char *path, struct err *e);
void tokenizer_close(struct tokenizer *t);

enum {
    TOK_SPECIAL = 1, /* control tokens in the text are parsed; user-defined ones always are */
    TOK_ADD = 2      /* add what the model's metadata says: BOS, EOS, CLS, SEP */
};

/* Appends to out. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, struct ids *out,
                     struct err *e);

/* The same over spans that are one text: a control token is parsed only where all of its bytes lie in
 * trusted spans; everything else (normaliser, pre-tokenizer, merges) sees the concatenation. */
struct tok_span {
    const char *text;
    size_t n;
    bool trusted;
};
int tokenizer_encode_spans(const struct tokenizer *t, const struct tok_span *spans, size_t count,
                           unsigned flags, struct ids *out, struct err *e);

enum tok_attr { TOK_NORMAL, TOK_CONTROL, TOK_USER, TOK_UNKNOWN, TOK_BYTE, TOK_UNUSED };

const char *tokenizer_kind(
    const struct tokenizer *t); /* "gpt2", "llama", "t5", "bert", "rwkv", "wordlevel", "tiktoken" */
int32_t tokenizer_vocab(const struct tokenizer *t); /* ids are below it */
/* The raw vocabulary string; NULL for an id outside the vocabulary, length 0 for a hole in it. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n);
/* The bytes it stands for in running text (no leading-space rule, see the decoder). Thread-safe. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n);
enum tok_attr tokenizer_attr(const struct tokenizer *t, int32_t id);
/* The id whose vocabulary string is exactly this; -1 = none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);

enum tok_role {
    TOK_BOS,
    TOK_EOS,
    TOK_EOT,
    TOK_EOM,
    TOK_UNK,
    TOK_SEP,
    TOK_PAD,
    TOK_CLS,
    TOK_MASK,
    TOK_FIM_PRE,
    TOK_FIM_SUF,
    TOK_FIM_MID,
    TOK_FIM_PAD, /* ends what was filled in */
    TOK_FIM_REP, /* the name of a repository follows */
    TOK_FIM_SEP, /* the name of a file follows */
    TOK_ROLES
};
int32_t tokenizer_id(const struct tokenizer *t, enum tok_role role); /* -1 = none */
/* Does it end a generation: EOS, EOT, EOM and the well-known end-of-turn tokens. */
bool tokenizer_is_eog(const struct tokenizer *t, int32_t id);
/* Does encoding with TOK_ADD put a BOS (or CLS) in front, an EOS (or SEP) behind. */
bool tokenizer_adds_bos(const struct tokenizer *t);
bool tokenizer_adds_eos(const struct tokenizer *t);
/* Whether the texts of a pair have two tokens between them (roberta), not one (bert). */
bool tokenizer_doubles_sep(const struct tokenizer *t);

/* Ids back to text, one at a time. What comes out is whole characters; bytes that can never become one
 * come out as they are, so that nothing is lost. Zero it, set `t`, feed, flush. For text that continues a
 * prompt set `started`: some tokenizers drop a space at the very beginning of a text. */
struct tok_decoder {
    const struct tokenizer *t;
    bool skip_special; /* control tokens give no text */
    bool started;
    unsigned char n; /* bytes in `held` */
    char held[4];    /* the beginning of a character */
};

/* Appends to out what is complete now. An id outside the vocabulary is an error. */
int tok_decoder_feed(struct tok_decoder *d, int32_t id, struct buf *out, struct err *e);
void tok_decoder_flush(struct tok_decoder *d, struct buf *out);
/* All at once. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     struct buf *out, struct err *e);
