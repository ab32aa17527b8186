/* Ids back to text. */
#include "lang/token/tok.h"

#include "base/utf8.h"

#include <string.h>

/* Appends bytes, but holds back the beginning of a character until the rest of it comes. */
static void put_bytes(struct tok_decoder *d, struct buf *out, const char *s, size_t n)
{
    while (d->n && n) { /* complete, or find broken, what is held */
        char text[5];
        memcpy(text, d->held, d->n);
        text[d->n] = *s;
        size_t len = d->n + 1u;
        uint32_t cp;
        if (utf8_decode(text, len, &cp)) {
            buf_add(out, text, len);
            d->n = 0;
        } else if (utf8_partial(text, len) == len) {
            d->held[d->n++] = *s;
        } else {
            buf_add(out, d->held, d->n);
            d->n = 0;
            continue;
        }
        s++;
        n--;
    }
    size_t keep = n ? utf8_partial(s, n) : 0;
    buf_add(out, s, n - keep);
    if (keep) {
        memcpy(d->held, s + n - keep, keep);
        d->n = (unsigned char)keep;
    }
}

static bool starts(const char *s, size_t n, const char *with)
{
    size_t m = strlen(with);
    return n >= m && !memcmp(s, with, m);
}

/* WordPiece: does a space stand before this token. */
static bool begins_word(const struct tokenizer *t, int32_t id, const char **s, size_t *n)
{
    const struct tok_str *p = t->word_prefix.n ? &t->word_prefix : &t->joiner;
    bool has = p->n && *n >= p->n && !memcmp(*s, p->s, p->n);
    if (has) {
        *s += p->n;
        *n -= p->n;
    }
    bool begins = t->word_prefix.n ? has || t->attr[id] != TOK_NORMAL : !has;
    if (!begins || !t->dec_cleanup)
        return begins;
    static const char *const glued[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; i < sizeof glued / sizeof *glued; i++)
        if (starts(*s, *n, glued[i]))
            return false;
    return true;
}

int tok_decoder_feed(struct tok_decoder *d, int32_t id, struct buf *out, struct err *e)
{
    const struct tokenizer *t = d->t;
    if (id < 0 || id >= t->n)
        return err_set(e, ERR_DATA, "token %d is outside the vocabulary of %d", id, t->n);
    if (d->skip_special && t->attr[id] == TOK_CONTROL)
        return 0;
    const char *s = t->bytes[id].s;
    size_t n = t->bytes[id].n;
    bool first = !d->started;
    d->started = true;
    if (t->dec == DEC_WORDS) {
        const char *whole = s;
        size_t whole_n = n;
        if (begins_word(t, id, &s, &n) && !first)
            put_bytes(d, out, " ", 1);
        if (first && !t->word_prefix.n) /* the joiner of the first token is text */
            s = whole, n = whole_n;
    } else if (t->dec == DEC_SPACED && !first) {
        put_bytes(d, out, " ", 1);
    } else if (first && t->dec_strip_first && n && *s == ' ') {
        s++;
        n--;
    }
    put_bytes(d, out, s, n);
    return out->failed ? err_memory(e, "decoded text", out->len) : 0;
}

void tok_decoder_flush(struct tok_decoder *d, struct buf *out)
{
    buf_add(out, d->held, d->n);
    d->n = 0;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     struct buf *out, struct err *e)
{
    struct tok_decoder d = {.t = t, .skip_special = skip_special};
    for (size_t i = 0; i < n; i++)
        if (tok_decoder_feed(&d, ids[i], out, e))
            return -1;
    tok_decoder_flush(&d, out);
    return 0;
}
