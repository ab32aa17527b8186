/* Byte-pair encoding: of all neighbours that may merge, the pair of least rank goes first, the leftmost of
 * equals. Which may merge, and with what rank, is either a table of pairs (merges), or the rank of the
 * token that the two make together (SentencePiece's scores, tiktoken's ranks).
 *
 * Short words are merged in place, by a scan for the least rank; long ones with a heap, in n log n. */
#include "lang/token/tok.h"

#include "base/size.h"
#include "lang/token/unicode.h"

#include <string.h>

#define NO_RANK    UINT32_MAX
#define SHORT_WORD 40
#define LINE_KEY   22
#define LINE_IDS   8

struct tok_cache_line {
    uint64_t hash;
    uint8_t n, count; /* n = 0: empty */
    char key[LINE_KEY];
    int32_t ids[LINE_IDS];
};

/* ---- merges ---- */

static uint32_t pair_hash(int32_t a, int32_t b)
{
    uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    key *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(key >> 32) ^ (uint32_t)(key >> 12);
}

int tok_merges_open(struct tokenizer *t, size_t count, struct err *e)
{
    size_t size = 64, bytes;
    while (size < count + count / 2)
        size *= 2;
    if (size > 1u << 28 || !size_mul(size, sizeof *t->merges, &bytes))
        return err_set(e, ERR_DATA, "%zu merges are too many", count);
    t->merges = mem_alloc(size, sizeof *t->merges);
    if (!t->merges)
        return err_memory(e, "the merges", bytes);
    memset(t->merges, 0xff, bytes);
    t->merge_mask = (uint32_t)(size - 1);
    return 0;
}

static void add_merge(struct tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint32_t i = pair_hash(left, right) & t->merge_mask;
    while (t->merges[i].left >= 0) {
        if (t->merges[i].left == left && t->merges[i].right == right)
            return;
        i = (i + 1) & t->merge_mask;
    }
    t->merges[i] = (struct tok_merge){left, right, rank, id};
}

/* The token that a and b make together. */
static int32_t made_of(const struct tok_feed *f, const struct tok_str *a, const struct tok_str *b)
{
    const struct tokenizer *t = f->t;
    char both[4096];
    uint32_t skip = 0;
    if (t->cont_prefix.n && b->n >= t->cont_prefix.n && !memcmp(b->s, t->cont_prefix.s, t->cont_prefix.n))
        skip = t->cont_prefix.n;
    uint32_t n = a->n + b->n - skip;
    int32_t guess = f->last + 1;
    if (guess < t->n && t->pieces[guess].n == n && !memcmp(t->pieces[guess].s, a->s, a->n) &&
        !memcmp(t->pieces[guess].s + a->n, b->s + skip, b->n - skip))
        return guess;
    if (n > sizeof both)
        return -1;
    memcpy(both, a->s, a->n);
    memcpy(both + a->n, b->s + skip, b->n - skip);
    return tokenizer_find(t, both, n);
}

void tok_feed_end(struct tok_feed *f)
{
    struct tokenizer *t = f->t;
    int32_t left[TOK_FEED], right[TOK_FEED];
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < f->n; i++) {
            tok_map_prefetch(&t->by_piece, t->pieces, &f->a[i], step);
            tok_map_prefetch(&t->by_piece, t->pieces, &f->b[i], step);
        }
    for (int i = 0; i < f->n; i++) {
        left[i] = tokenizer_find(t, f->a[i].s, f->a[i].n);
        right[i] = tokenizer_find(t, f->b[i].s, f->b[i].n);
        __builtin_prefetch(&t->merges[pair_hash(left[i], right[i]) & t->merge_mask], 1);
    }
    for (int i = 0; i < f->n; i++) {
        int32_t id = left[i] < 0 || right[i] < 0 ? -1 : made_of(f, &f->a[i], &f->b[i]);
        if (id < 0)
            continue;
        add_merge(t, left[i], right[i], f->rank + (uint32_t)i, id);
        f->last = id;
    }
    f->rank += (uint32_t)f->n;
    f->n = 0;
}

void tok_feed_merge(struct tok_feed *f, const char *a, size_t an, const char *b, size_t bn)
{
    f->a[f->n] = (struct tok_str){a, (uint32_t)an};
    f->b[f->n] = (struct tok_str){b, (uint32_t)bn};
    if (++f->n == TOK_FEED)
        tok_feed_end(f);
}

static const struct tok_merge *find_merge(const struct tokenizer *t, int32_t a, int32_t b)
{
    for (uint32_t i = pair_hash(a, b) & t->merge_mask; t->merges[i].left >= 0; i = (i + 1) & t->merge_mask)
        if (t->merges[i].left == a && t->merges[i].right == b)
            return &t->merges[i];
    return NULL;
}

/* ---- symbols ---- */

/* A symbol is a token, or (id -1) a character that is none. */
struct bpe_symbol {
    int32_t id;
    uint32_t at, n;     /* its bytes in the word */
    uint32_t rank;      /* of the merge with its right neighbour */
    int32_t next, prev; /* places, -1 = none; a symbol that was merged away has n = 0 */
};

struct word {
    const struct tokenizer *t;
    const char *s;
    struct bpe_symbol *syms;
    size_t count;
};

/* What the neighbours i and j make: the rank and *id. */
static uint32_t pair_rank(const struct word *w, const struct bpe_symbol *a, const struct bpe_symbol *b,
                          int32_t *id)
{
    const struct tokenizer *t = w->t;
    if (t->model == MODEL_BPE) {
        if (a->id < 0 || b->id < 0)
            return NO_RANK;
        const struct tok_merge *m = find_merge(t, a->id, b->id);
        *id = m ? m->id : -1;
        return m ? m->rank : NO_RANK;
    }
    *id = t->byte_level ? tok_map_find(&t->by_bytes, t->bytes, w->s + a->at, a->n + b->n)
                        : tok_map_find(&t->by_piece, t->pieces, w->s + a->at, a->n + b->n);
    return *id < 0 ? NO_RANK : t->rank[*id];
}

static void push_symbol(struct word *w, int32_t id, size_t at, size_t n)
{
    w->syms[w->count++] = (struct bpe_symbol){.id = id, .at = (uint32_t)at, .n = (uint32_t)n};
}

/* The id of one character, with the prefix and suffix that the model wants around it. */
static int32_t char_id(const struct tokenizer *t, const char *s, size_t at, size_t len, bool last)
{
    char text[256];
    if (!t->cont_prefix.n && !t->word_suffix.n)
        return tok_model_find(t, s + at, len);
    size_t n = 0;
    if (at) {
        memcpy(text, t->cont_prefix.s, t->cont_prefix.n);
        n += t->cont_prefix.n;
    }
    memcpy(text + n, s + at, len);
    n += len;
    if (last) {
        memcpy(text + n, t->word_suffix.s, t->word_suffix.n);
        n += t->word_suffix.n;
    }
    return tok_model_find(t, text, n);
}

/* Characters of the word as symbols. Those that are no token become byte tokens, or the unknown token
 * (one for a run of them where fuse_unk), or, where there is neither, nothing. */
static void init_chars(struct word *w, size_t n)
{
    const struct tokenizer *t = w->t;
    int32_t unk = t->roles[TOK_UNK];
    bool ranked = t->model == MODEL_RANKED, was_unk = false;
    for (size_t at = 0, len; at < n; at += len) {
        unicode_next(w->s + at, &len);
        int32_t id = char_id(t, w->s, at, len, at + len == n);
        if (id >= 0 || ranked) {
            push_symbol(w, id, at, len);
            was_unk = false;
            continue;
        }
        bool bytes = t->byte_fallback;
        for (size_t i = 0; bytes && i < len; i++)
            bytes = t->byte_id[(unsigned char)w->s[at + i]] >= 0;
        for (size_t i = 0; bytes && i < len; i++)
            push_symbol(w, t->byte_id[(unsigned char)w->s[at + i]], at + i, 1);
        if (!bytes && unk >= 0) {
            if (was_unk && t->fuse_unk)
                w->syms[w->count - 1].n += (uint32_t)len;
            else
                push_symbol(w, unk, at, len);
            was_unk = true;
        }
    }
}

static void init_bytes(struct word *w, size_t n)
{
    const struct tokenizer *t = w->t;
    int32_t unk = t->roles[TOK_UNK];
    for (size_t at = 0; at < n; at++) {
        int32_t id = t->byte_id[(unsigned char)w->s[at]];
        if (id >= 0 || t->model == MODEL_RANKED || unk >= 0)
            push_symbol(w, id >= 0 || t->model == MODEL_RANKED ? id : unk, at, 1);
    }
}

/* ---- short words: an array that closes over each merge ---- */

static void merge_short(struct word *w)
{
    struct bpe_symbol *s = w->syms;
    int32_t made[SHORT_WORD]; /* what symbol i makes with i + 1 */
    for (size_t i = 0; i + 1 < w->count; i++)
        s[i].rank = pair_rank(w, &s[i], &s[i + 1], &made[i]);
    while (w->count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < w->count; i++)
            if (s[i].rank < s[best].rank)
                best = i;
        if (s[best].rank == NO_RANK)
            return;
        s[best].id = made[best];
        s[best].n += s[best + 1].n;
        size_t rest = w->count - best - 2;
        memmove(&s[best + 1], &s[best + 2], rest * sizeof *s);
        memmove(&made[best + 1], &made[best + 2], rest * sizeof *made);
        w->count--;
        if (best + 1 < w->count)
            s[best].rank = pair_rank(w, &s[best], &s[best + 1], &made[best]);
        if (best)
            s[best - 1].rank = pair_rank(w, &s[best - 1], &s[best], &made[best - 1]);
    }
}

/* ---- long words: a linked list and a heap of (rank, place) ---- */

struct heap {
    uint64_t *item; /* rank << 32 | place; least on top */
    size_t n;
};

static void heap_down(struct heap *h, size_t i)
{
    uint64_t v = h->item[i];
    for (size_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && h->item[c + 1] < h->item[c])
            c++;
        if (h->item[c] >= v)
            break;
        h->item[i] = h->item[c];
    }
    h->item[i] = v;
}

static void heap_push(struct heap *h, uint64_t v)
{
    size_t i = h->n++;
    for (; i && h->item[(i - 1) / 2] > v; i = (i - 1) / 2)
        h->item[i] = h->item[(i - 1) / 2];
    h->item[i] = v;
}

static void rerank_pair(struct word *w, struct heap *h, int32_t i, bool push)
{
    struct bpe_symbol *s = &w->syms[i];
    int32_t id;
    s->rank = s->next < 0 ? NO_RANK : pair_rank(w, s, &w->syms[s->next], &id);
    if (s->rank == NO_RANK)
        return;
    uint64_t v = (uint64_t)s->rank << 32 | (uint32_t)i;
    if (push)
        heap_push(h, v);
    else
        h->item[h->n++] = v;
}

/* A merge takes one pair away and makes at most two: the heap never holds more than two a symbol. */
static void merge_long(struct word *w, struct heap *h)
{
    struct bpe_symbol *s = w->syms;
    for (size_t i = 0; i < w->count; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < w->count ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < w->count; i++)
        rerank_pair(w, h, (int32_t)i, false);
    for (size_t i = h->n / 2; i-- > 0;)
        heap_down(h, i);
    while (h->n) {
        int32_t i = (int32_t)(uint32_t)h->item[0];
        uint32_t rank = (uint32_t)(h->item[0] >> 32);
        h->item[0] = h->item[--h->n];
        if (h->n)
            heap_down(h, 0);
        if (!s[i].n || s[i].rank != rank || s[i].next < 0)
            continue; /* stale: the pair is merged already */
        int32_t j = s[i].next, id;
        pair_rank(w, &s[i], &s[j], &id);
        s[i].id = id;
        s[i].n += s[j].n;
        s[j].n = 0;
        s[i].next = s[j].next;
        if (s[j].next >= 0)
            s[s[j].next].prev = i;
        rerank_pair(w, h, i, true);
        if (s[i].prev >= 0)
            rerank_pair(w, h, s[i].prev, true);
    }
}

/* ---- words ---- */

static int merge_and_emit(struct tok_work *work, const char *s, size_t n)
{
    size_t room;
    if (n > UINT32_MAX / 2 || !size_mul(n, sizeof(struct bpe_symbol) + 2 * sizeof(uint64_t), &room))
        return err_set(work->e, ERR_RESOURCE, "a word of %zu bytes is too long to tokenize", n);
    struct word w = {.t = work->t, .s = s};
    struct bpe_symbol local[SHORT_WORD];
    bool is_short = n <= SHORT_WORD;
    w.syms = is_short ? local : tok_room(work, room, 1);
    if (!w.syms)
        return -1;
    if (work->t->byte_level)
        init_bytes(&w, n);
    else
        init_chars(&w, n);
    struct heap heap = {.item = is_short ? NULL : (uint64_t *)(w.syms + n)};
    if (w.count <= SHORT_WORD)
        merge_short(&w);
    else
        merge_long(&w, &heap);
    for (size_t i = 0; i < w.count; i++) {
        const struct bpe_symbol *sym = &w.syms[i];
        if (!sym->n)
            continue;
        if (sym->id >= 0 ? ids_add(work->out, sym->id, work->e) : tok_unknown(work, s + sym->at, sym->n))
            return -1;
    }
    return 0;
}

static int bpe_one(struct tok_work *w, const char *s, size_t n)
{
    const struct tokenizer *t = w->t;
    struct tok_cache_line *line = NULL;
    uint64_t hash = 0;
    if (w->cache && n <= LINE_KEY) {
        hash = tok_hash(s, n);
        line = &w->cache[hash & w->cache_mask];
        if (line->hash == hash && line->n == n && !memcmp(line->key, s, n)) {
            for (int i = 0; i < line->count; i++)
                if (ids_add(w->out, line->ids[i], w->e))
                    return -1;
            return 0;
        }
    }
    size_t from = w->out->len;
    if (t->whole_words || (t->whole_lines && *s == '\n')) {
        int32_t id = t->byte_level ? tok_map_find(&t->by_bytes, t->bytes, s, n) : tok_model_find(t, s, n);
        if (id >= 0)
            return ids_add(w->out, id, w->e);
    }
    if (merge_and_emit(w, s, n))
        return -1;
    size_t count = w->out->len - from;
    if (line && count && count <= LINE_IDS) {
        line->hash = hash;
        line->n = (uint8_t)n;
        line->count = (uint8_t)count;
        memcpy(line->key, s, n);
        memcpy(line->ids, w->out->data + from, count * sizeof *line->ids);
    }
    return 0;
}

int tok_bpe_word(struct tok_work *w, const char *s, size_t n)
{
    const uint8_t *glue = w->t->glue;
    if (!glue)
        return bpe_one(w, s, n);
    /* nothing merges across the beginning of a run of marks, but behind a few characters: cut there, so that
     * words repeat */
    size_t from = 0;
    uint32_t before = 0x2581;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp = unicode_next(s + at, &len), bit = tok_glue(before);
        if (cp == 0x2581 && before != 0x2581 && !(glue[bit >> 3] >> (bit & 7) & 1)) {
            if (bpe_one(w, s + from, at - from))
                return -1;
            from = at;
        }
        before = cp;
    }
    return from < n ? bpe_one(w, s + from, n - from) : 0;
}
