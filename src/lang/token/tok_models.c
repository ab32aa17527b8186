/* The models beside BPE: unigram (the best path by Viterbi), WordPiece and whole words, and the greedy
 * longest match of RWKV. */
#include "lang/token/tok.h"

#include "base/size.h"
#include "lang/token/unicode.h"

#include <math.h>
#include <string.h>

/* A text that the model has no token for: its bytes where there are byte tokens, else the unknown token. */
int tok_unknown(struct tok_work *w, const char *s, size_t n)
{
    const struct tokenizer *t = w->t;
    bool bytes = t->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++)
        bytes = t->byte_id[(unsigned char)s[i]] >= 0;
    for (size_t i = 0; bytes && i < n; i++)
        if (ids_add(w->out, t->byte_id[(unsigned char)s[i]], w->e))
            return -1;
    if (bytes || t->roles[TOK_UNK] < 0)
        return 0;
    return ids_add(w->out, t->roles[TOK_UNK], w->e);
}

/* ---- unigram ---- */

struct lattice_node { /* the best path that ends here */
    double score;
    int32_t id;    /* of the last token, -1 = unknown, -2 = no path */
    uint32_t from; /* where that token starts */
};

static void offer(struct lattice_node *to, double score, int32_t id, size_t from)
{
    if (to->id == -2 || score > to->score)
        *to = (struct lattice_node){score, id, (uint32_t)from};
}

static void best_paths(const struct tokenizer *t, struct lattice_node *nodes, const char *s, size_t n)
{
    for (size_t i = 0; i <= n; i++)
        nodes[i].id = -2;
    nodes[0] = (struct lattice_node){0, -1, 0};
    for (size_t at = 0, len; at < n; at += len) {
        unicode_next(s + at, &len);
        bool whole = false;
        uint32_t node = 0;
        for (size_t end = at; end < n;) {
            node = tok_trie_step(&t->trie, node, (unsigned char)s[end++]);
            if (!node)
                break;
            int32_t id = t->trie.value[node];
            if (id < 0)
                continue;
            offer(&nodes[end], nodes[at].score + t->score[id], id, at);
            whole |= end - at == len;
        }
        if (!whole)
            offer(&nodes[at + len], nodes[at].score + t->unk_score, -1, at);
    }
}

static int tok_unigram_word(struct tok_work *w, const char *s, size_t n)
{
    size_t count;
    if (n >= UINT32_MAX || !size_add(n, 1, &count))
        return err_set(w->e, ERR_RESOURCE, "a text of %zu bytes is too long to tokenize", n);
    struct lattice_node *nodes = tok_room(w, count, sizeof *nodes);
    if (!nodes)
        return -1;
    best_paths(w->t, nodes, s, n);
    /* turn the chain of predecessors round: nodes[from] gets the token that starts there and its end */
    size_t end = n, from = nodes[n].from;
    int32_t id = nodes[n].id;
    while (end) {
        struct lattice_node before = nodes[from];
        nodes[from].from = (uint32_t)end;
        nodes[from].id = id;
        end = from;
        from = before.from;
        id = before.id;
    }
    for (size_t at = 0; at < n;) {
        size_t to = nodes[at].from;
        if (nodes[at].id >= 0) {
            if (ids_add(w->out, nodes[at].id, w->e))
                return -1;
        } else {
            while (to < n && nodes[to].id < 0) /* a run of unknown characters is one token */
                to = nodes[to].from;
            if (tok_unknown(w, s + at, to - at))
                return -1;
        }
        at = to;
    }
    return 0;
}

/* ---- unigram from the end ---- */

struct suffix_node { /* the best path from here to the end */
    int64_t cost;
    int32_t id;  /* of its first token, -1 = the bytes of a character, -2 = no character begins here */
    uint32_t to; /* where that token ends; at first where the character does */
};

/* Scores are integers here; what a character without a token costs. */
static const int64_t BYTES_COST = 10000000;

static int64_t piece_cost(double score)
{
    return -(int64_t)round(fmin(fmax(score * 1e4, -1e9), 1e9));
}

/* Of paths that cost the same, the one whose first token is longest counts. */
static void best_suffix(const struct tokenizer *t, struct suffix_node *nodes, const char *s, size_t n,
                        size_t at)
{
    struct suffix_node best = {INT64_MAX, -1, 0}, bytes = nodes[at];
    uint32_t node = 0;
    for (size_t end = at; end < n;) {
        node = tok_trie_step(&t->trie, node, (unsigned char)s[end++]);
        if (!node)
            break;
        const int32_t id = t->trie.value[node];
        if (id < 0 || nodes[end].id == -2)
            continue;
        const int64_t cost = nodes[end].cost + piece_cost(t->score[id]);
        if (cost <= best.cost)
            best = (struct suffix_node){cost, id, (uint32_t)end};
    }
    bytes.cost = nodes[bytes.to].cost + BYTES_COST;
    nodes[at] = bytes.cost < best.cost ? bytes : best;
}

static int tok_suffix_word(struct tok_work *w, const char *s, size_t n)
{
    size_t count, from = n >= 3 && !memcmp(s, "\xef\xbb\xbf", 3) ? 3 : 0; /* a byte order mark is no text */
    if (n >= UINT32_MAX || !size_add(n, 1, &count))
        return err_set(w->e, ERR_RESOURCE, "a text of %zu bytes is too long to tokenize", n);
    struct suffix_node *nodes = tok_room(w, count, sizeof *nodes);
    if (!nodes)
        return -1;
    for (size_t i = 0; i <= n; i++)
        nodes[i] = (struct suffix_node){0, i < n ? -2 : -1, (uint32_t)n};
    for (size_t at = from, len; at < n; at += len) {
        unicode_next(s + at, &len);
        nodes[at].id = -1;
        nodes[at].to = (uint32_t)(at + len);
    }
    for (size_t at = n; at-- > from;)
        if (nodes[at].id != -2)
            best_suffix(w->t, nodes, s, n, at);
    for (size_t at = from; at < n; at = nodes[at].to)
        if (nodes[at].id >= 0 ? ids_add(w->out, nodes[at].id, w->e)
                              : tok_unknown(w, s + at, nodes[at].to - at))
            return -1;
    return 0;
}

/* ---- WordPiece ---- */

enum { PIECE_MOST = 1024 }; /* bytes of a piece that is looked for: a file may allow words of any length */

static int32_t find_with_prefix(const struct tokenizer *t, const struct tok_str *prefix, const char *s,
                                size_t n)
{
    char text[PIECE_MOST];
    if (!prefix->n)
        return tok_model_find(t, s, n);
    if (prefix->n + n > sizeof text)
        return -1;
    memcpy(text, prefix->s, prefix->n);
    memcpy(text + prefix->n, s, n);
    return tok_model_find(t, text, prefix->n + n);
}

static int tok_wordpiece_word(struct tok_work *w, const char *s, size_t n)
{
    const struct tokenizer *t = w->t;
    size_t from = w->out->len, chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xc0) != 0x80;
    if (chars > t->max_word)
        return ids_add(w->out, t->roles[TOK_UNK], w->e);
    for (size_t at = 0; at < n;) {
        size_t end = at + size_min(n - at, PIECE_MOST);
        int32_t id = -1;
        for (; end > at; end--) {
            if (end < n && ((unsigned char)s[end] & 0xc0) == 0x80)
                continue;
            id = find_with_prefix(t, at ? &t->cont_prefix : &t->word_prefix, s + at, end - at);
            if (id >= 0)
                break;
        }
        if (id < 0) {
            w->out->len = from;
            return t->roles[TOK_UNK] >= 0 ? ids_add(w->out, t->roles[TOK_UNK], w->e) : 0;
        }
        if (ids_add(w->out, id, w->e))
            return -1;
        at = end;
    }
    return 0;
}

/* ---- the longest token, again and again ---- */

static int tok_greedy_word(struct tok_work *w, const char *s, size_t n)
{
    const struct tokenizer *t = w->t;
    for (size_t at = 0; at < n;) {
        uint32_t node = 0;
        size_t best = 0;
        int32_t id = -1;
        for (size_t end = at; end < n;) {
            node = tok_trie_step(&t->trie, node, (unsigned char)s[end++]);
            if (!node)
                break;
            if (t->trie.value[node] >= 0) {
                id = t->trie.value[node];
                best = end;
            }
        }
        if (id >= 0 ? ids_add(w->out, id, w->e) : tok_unknown(w, s + at, 1))
            return -1;
        at = id >= 0 ? best : at + 1;
    }
    return 0;
}

int tok_model_word(struct tok_work *w, const char *s, size_t n)
{
    if (!n)
        return 0;
    switch (w->t->model) {
    case MODEL_BPE:
    case MODEL_RANKED:
        return tok_bpe_word(w, s, n);
    case MODEL_UNIGRAM:
        return w->t->from_end ? tok_suffix_word(w, s, n) : tok_unigram_word(w, s, n);
    case MODEL_WORDPIECE:
        return tok_wordpiece_word(w, s, n);
    case MODEL_GREEDY:
        return tok_greedy_word(w, s, n);
    case MODEL_WORDLEVEL:
        break;
    }
    int32_t id = tok_model_find(w->t, s, n);
    return id >= 0 ? ids_add(w->out, id, w->e) : tok_unknown(w, s, n);
}
