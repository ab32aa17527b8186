/* The tokenizer's front: opening by source, encoding a text through the pipeline, and what callers ask. */
#include "lang/token/tokenizer.h"

#include "base/log.h"
#include "base/size.h"
#include "base/utf8.h"
#include "format/store.h"
#include "lang/token/tok.h"
#include "lang/token/unicode.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- lists of ids ---- */

void ids_free(struct ids *ids)
{
    mem_free(ids->data);
    *ids = (struct ids){0};
}

static int ids_set_over(struct ids *ids, struct err *e)
{
    ids->over = true;
    return err_set(e, ERR_DATA, "the text has more than %zu tokens", ids->most);
}

int ids_add(struct ids *ids, int32_t id, struct err *e)
{
    if (ids->most && ids->len >= ids->most)
        return ids_set_over(ids, e);
    if (ids->len == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *grown = mem_realloc(ids->data, cap, sizeof *grown);
        if (!grown)
            return err_memory(e, "a list of tokens", cap * sizeof *grown);
        ids->data = grown;
        ids->cap = cap;
    }
    ids->data[ids->len++] = id;
    return 0;
}

/* ---- encoding ---- */

void *tok_room(struct tok_work *w, size_t count, size_t size)
{
    size_t bytes = count * size; /* the callers have checked the product */
    if (bytes > w->room_bytes) {
        mem_free(w->room);
        w->room_bytes = 0;
        w->room = mem_alloc(bytes, 1);
        if (!w->room) {
            err_memory(w->e, "tokenizing", bytes);
            return NULL;
        }
        w->room_bytes = bytes;
    }
    return w->room;
}

void tok_grow_begin(const struct tok_work *w, struct buf *out, size_t n)
{
    buf_clear(out);
    out->max = n + w->spare ? n + w->spare : 1; /* 0 would be no limit */
}

int tok_grow_end(struct tok_work *w, const struct buf *out, size_t n)
{
    if (out->failed)
        return err_set(
            w->e, ERR_DATA,
            "the model's tokenizer makes too much of this text: its normalizer and pre-tokenizer may add "
            "%zu bytes to one of %zu, and would add more",
            tok_spare(w->total), w->total);
    w->spare -= out->len > n ? size_min(w->spare, out->len - n) : 0;
    return 0;
}

/* Where control tokens may be parsed: ends of the spans in the text, and whether each is trusted. */
struct trust {
    const struct tok_span *spans;
    const size_t *ends;
    size_t count;
    bool special; /* anywhere at all */
};

static bool trusted(const struct trust *tr, size_t from, size_t to)
{
    if (!tr->special)
        return false;
    size_t lo = 0, hi = tr->count;
    while (lo < hi) { /* the first span that ends behind `from` */
        size_t mid = (lo + hi) / 2;
        if (tr->ends[mid] <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < tr->count && from < to; from = tr->ends[lo++])
        if (!tr->spans[lo].trusted)
            return false;
    return true;
}

/* A text that is searched for added tokens; `base` is its place in the whole text, SIZE_MAX where places
 * are lost (it was normalised) and `all` says whether all of it is trusted. */
struct hay {
    const char *s;
    size_t n, base;
    bool all, normalized;
};

static bool fits(const struct added_token *a, const struct hay *h, const struct trust *tr, size_t from,
                 size_t to)
{
    if (a->special && !(h->base == SIZE_MAX ? h->all : trusted(tr, h->base + from, h->base + to)))
        return false;
    if (!a->single_word)
        return true;
    size_t len, at = from;
    while (at && ((unsigned char)h->s[--at] & 0xc0) == 0x80)
        ;
    if (from && unicode_is_word(unicode_next(h->s + at, &len)))
        return false;
    return to == h->n || !unicode_is_word(unicode_next(h->s + to, &len));
}

/* The next added token at or after `at`: the longest at the first place. NULL = none. */
static const struct added_token *next_added(const struct tokenizer *t, const struct hay *h,
                                            const struct trust *tr, size_t *at)
{
    const struct tok_trie *trie = h->normalized ? &t->added_norm : &t->added_raw;
    const bool *first = t->added_first[h->normalized];
    for (size_t i = *at; i < h->n; i++) {
        if (!first[(unsigned char)h->s[i]])
            continue;
        const struct added_token *best = NULL;
        uint32_t node = 0;
        for (size_t end = i; end < h->n;) {
            node = tok_trie_step(trie, node, (unsigned char)h->s[end++]);
            if (!node)
                break;
            if (trie->value[node] >= 0 && fits(&t->added[trie->value[node]], h, tr, i, end))
                best = &t->added[trie->value[node]];
        }
        if (best) {
            *at = i;
            return best;
        }
    }
    return NULL;
}

static int encode_text(struct tok_work *w, const struct trust *tr, const struct hay *h);

/* Cuts added tokens out and hands what is between them on. */
static int cut_added(struct tok_work *w, const struct trust *tr, const struct hay *h)
{
    const struct added_token *a;
    size_t from = 0, at = 0, len;
    while ((a = next_added(w->t, h, tr, &at))) {
        size_t start = at, end = at + a->text.n;
        while (a->lstrip && start > from) {
            size_t back = start - 1;
            while (back > from && ((unsigned char)h->s[back] & 0xc0) == 0x80)
                back--;
            if (!unicode_is_space(unicode_next(h->s + back, &len)))
                break;
            start = back;
        }
        while (a->rstrip && end < h->n && unicode_is_space(unicode_next(h->s + end, &len)))
            end += len;
        struct hay gap = {h->s + from, start - from, h->base == SIZE_MAX ? SIZE_MAX : h->base + from, h->all,
                          h->normalized};
        if (start > from && encode_text(w, tr, &gap))
            return -1;
        if (ids_add(w->out, a->id, w->e))
            return -1;
        from = at = end;
    }
    struct hay gap = {h->s + from, h->n - from, h->base == SIZE_MAX ? SIZE_MAX : h->base + from, h->all,
                      h->normalized};
    return from < h->n ? encode_text(w, tr, &gap) : 0;
}

/* Even if all of it became the longest of tokens, they would be too many. Bytes without a token may be dropped. */
static bool cannot_fit(const struct tok_work *w, const char *s, size_t n)
{
    size_t reach = w->t->reach, room = w->out->most - w->out->len, known = 0;
    if (!w->out->most || !reach || n / reach <= room)
        return false;
    for (size_t i = 0; i < n && known / reach <= room; i++)
        known += w->t->byte_id[(unsigned char)s[i]] >= 0;
    return known / reach > room;
}

/* Text without added tokens (of the raw kind, or of both once it is normalised). */
static int encode_text(struct tok_work *w, const struct trust *tr, const struct hay *h)
{
    if (h->normalized) {
        if (cannot_fit(w, h->s, h->n))
            return ids_set_over(w->out, w->e);
        bool first =
            h->base == SIZE_MAX ? h->s == w->norm[(w->t->norm_n - 1) & 1].data && w->at_start : !h->base;
        return tok_pre_run(w, 0, h->s, h->n, first);
    }
    struct hay next = *h;
    next.normalized = true;
    if (w->t->norm_n) {
        next.all = trusted(tr, h->base, h->base + h->n);
        next.base = SIZE_MAX;
        w->at_start = !h->base;
        w->at_end = h->base + h->n == w->total;
        if (tok_norm_apply(w, w->t->norm, w->t->norm_n, &next.s, &next.n))
            return -1;
    }
    return cut_added(w, tr, &next);
}

static int encode_whole(const struct tokenizer *t, const char *s, size_t n, const struct trust *tr,
                        unsigned flags, struct ids *out, struct err *e)
{
    struct tok_work w = {
        .t = t, .out = out, .e = e, .total = n, .spare = tok_spare(n), .run = regex_run_open()};
    int rc = w.run ? 0 : err_memory(e, "tokenizing", 256);
    if (n >= 1024 && (t->model == MODEL_BPE || t->model == MODEL_RANKED)) {
        uint32_t lines = 64;
        while (lines < n / 16 && lines < 1 << 15)
            lines *= 2;
        w.cache = mem_zalloc(lines, 64);
        w.cache_mask = lines - 1;
    }
    for (size_t i = 0; !rc && flags & TOK_ADD && i < t->head_n; i++)
        rc = ids_add(out, t->head[i], e);
    struct hay all = {.s = s, .n = n};
    if (!rc)
        rc = cut_added(&w, tr, &all);
    for (size_t i = 0; !rc && flags & TOK_ADD && i < t->tail_n; i++)
        rc = ids_add(out, t->tail[i], e);
    regex_run_close(w.run);
    mem_free(w.cache);
    mem_free(w.room);
    buf_free(&w.norm[0]);
    buf_free(&w.norm[1]);
    for (int i = 0; i < TOK_STEPS; i++)
        buf_free(&w.level[i]);
    return rc;
}

int tokenizer_encode_spans(const struct tokenizer *t, const struct tok_span *spans, size_t count,
                           unsigned flags, struct ids *out, struct err *e)
{
    struct buf text = {.max = (size_t)4 << 30};
    size_t *ends = mem_alloc(count ? count : 1, sizeof *ends);
    if (!ends)
        return err_memory(e, "tokenizing", count * sizeof *ends);
    const char *s = count == 1 ? spans[0].text : NULL;
    size_t n = count == 1 ? spans[0].n : 0;
    if (count == 1 && utf8_valid(s, n)) {
        ends[0] = n; /* the usual case: where it lies */
    } else {
        for (size_t i = 0; i < count; i++) {
            unicode_repair(&text, spans[i].text, spans[i].n);
            ends[i] = text.len;
        }
        s = text.data ? text.data : "";
        n = text.len;
    }
    struct trust tr = {spans, ends, count, flags & TOK_SPECIAL};
    int rc = text.failed ? err_memory(e, "tokenizing", text.len) : encode_whole(t, s, n, &tr, flags, out, e);
    mem_free(ends);
    buf_free(&text);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags, struct ids *out,
                     struct err *e)
{
    struct tok_span span = {text, n, true};
    return tokenizer_encode_spans(t, &span, 1, flags, out, e);
}

/* ---- opening ---- */

/* Files of a model: beside its tensors, or in a folder that has only the tokenizer. */
struct place {
    const struct store *store;
    const char *folder;
    char path[4096];
};

static const char *beside(struct place *p, const char *file)
{
    if (p->store)
        return store_beside(p->store, file);
    struct stat st;
    int n = snprintf(p->path, sizeof p->path, "%s/%s", p->folder, file);
    return n > 0 && (size_t)n < sizeof p->path && !stat(p->path, &st) && S_ISREG(st.st_mode) ? p->path : NULL;
}

static int open_place(struct tokenizer *t, struct place *p, struct err *e)
{
    const char *path;
    if ((path = beside(p, "tokenizer.json")))
        return tok_from_json(t, path, e);
    if ((path = beside(p, "tekken.json")))
        return tok_from_tekken(t, path, e);
    if ((path = beside(p, "tokenizer.model")))
        return tok_from_spm(t, path, e);
    char merges[sizeof p->path];
    if ((path = beside(p, "merges.txt")) && snprintf(merges, sizeof merges, "%s", path) > 0 &&
        (path = beside(p, "vocab.json")))
        return tok_from_vocab_merges(t, path, merges, e);
    if ((path = beside(p, "vocab.txt")))
        return tok_from_wordlist(t, path, e);
    if ((path = beside(p, "tokenizer.jsonl")))
        return tok_from_lines(t, path, e);
    static const char *const ranks[] = {"tiktoken.model", "qwen.tiktoken", "tokenizer.tiktoken"};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        if ((path = beside(p, ranks[i])))
            return tok_from_tiktoken(t, path, e);
    return err_set(e, ERR_DATA,
                   "there is none: tokenizer.json, tekken.json, tokenizer.model, vocab.json with merges.txt, "
                   "vocab.txt, tokenizer.jsonl or tiktoken.model was expected");
}

/* End tokens that config.json or generation_config.json name: a number or a list. */
static int more_eog(struct tokenizer *t, const json_t *config, const char *file, struct err *e)
{
    struct jsonread r = {config, file, e};
    const int64_t range[2] = {0, (int64_t)t->n - 1};
    const json_t *ids = jsonread_get(&r, config, "eos_token_id?", JSONREAD_IS_INT | JSONREAD_IS_ARRAY);
    size_t n = json_is_array(ids) ? json_array_size(ids) : ids != NULL;
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        const json_t *id = json_is_array(ids) ? jsonread_item(&r, ids, i, JSONREAD_IS_INT) : ids;
        if (!jsonread_whole(id, range, &v))
            continue;
        t->eog[v] = true;
        if (t->roles[TOK_EOS] < 0)
            t->roles[TOK_EOS] = (int32_t)v;
    }
    return e->code ? -1 : 0;
}

static struct tokenizer *new_tokenizer(struct err *e)
{
    struct tokenizer *t = mem_zalloc(1, sizeof *t);
    if (!t)
        err_memory(e, "a tokenizer", sizeof *t);
    return t;
}

int tokenizer_open(struct tokenizer **out, const struct store *s, struct err *e)
{
    struct tokenizer *t = new_tokenizer(e);
    if (!t)
        return -1;
    struct place p = {.store = s};
    int rc = s->kind == STORE_GGUF ? tok_from_gguf(t, s->gguf, e) : open_place(t, &p, e);
    if (!rc && s->kind != STORE_GGUF)
        rc = tok_apply_config(t, beside(&p, "tokenizer_config.json"), e);
    if (!rc)
        rc = tok_finish(t, e) || more_eog(t, s->generation, "generation_config.json", e) ||
             more_eog(t, s->config, "config.json", e);
    if (rc) {
        tokenizer_close(t);
        return err_prefix(e, "%s: tokenizer", log_safe(s->path));
    }
    *out = t;
    return 0;
}

static bool ends_with(const char *path, const char *tail)
{
    size_t n = strlen(path), m = strlen(tail);
    return n >= m && !strcmp(path + n - m, tail);
}

int tokenizer_open_file(struct tokenizer **out, const char *path, struct err *e)
{
    struct tokenizer *t = new_tokenizer(e);
    if (!t)
        return -1;
    struct place p = {.folder = path};
    struct stat st;
    bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    int rc = folder                         ? open_place(t, &p, e)
             : !strncmp(name, "tekken", 6)  ? tok_from_tekken(t, path, e)
             : ends_with(path, ".json")     ? tok_from_json(t, path, e)
             : ends_with(path, ".txt")      ? tok_from_wordlist(t, path, e)
             : ends_with(path, ".tiktoken") ? tok_from_tiktoken(t, path, e)
                                            : tok_from_spm(t, path, e);
    if (!rc && folder)
        rc = tok_apply_config(t, beside(&p, "tokenizer_config.json"), e);
    if (rc || tok_finish(t, e)) {
        tokenizer_close(t);
        return err_prefix(e, "%s: tokenizer", log_safe(path));
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->norm_n; i++)
        regex_close(t->norm[i].regex);
    for (int i = 0; i < t->pre_n; i++)
        regex_close(t->pre[i].regex);
    mem_free(t->pieces);
    mem_free(t->bytes);
    mem_free(t->attr);
    mem_free(t->score);
    mem_free(t->eog);
    mem_free(t->outside);
    mem_free(t->glue);
    mem_free(t->added);
    mem_free(t->merges);
    mem_free(t->rank);
    mem_free(t->head);
    mem_free(t->tail);
    tok_map_close(&t->by_piece);
    tok_map_close(&t->by_bytes);
    tok_trie_close(&t->added_raw);
    tok_trie_close(&t->added_norm);
    tok_trie_close(&t->trie);
    tj_close(&t->json);
    buf_free(&t->strings);
    for (int i = 0; i < 4; i++)
        buf_free(&t->files[i]);
    mem_free(t);
}

/* ---- questions ---- */

const char *tokenizer_kind(const struct tokenizer *t)
{
    return t->kind;
}

int32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->n;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->n)
        return NULL;
    *n = t->pieces[id].n;
    return t->pieces[id].s ? t->pieces[id].s : "";
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->n)
        return NULL;
    *n = t->bytes[id].n;
    return t->bytes[id].s;
}

enum tok_attr tokenizer_attr(const struct tokenizer *t, int32_t id)
{
    return id < 0 || id >= t->n ? TOK_UNUSED : (enum tok_attr)t->attr[id];
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n)
{
    return n ? tok_map_find(&t->by_piece, t->pieces, text, n) : -1;
}

int32_t tokenizer_id(const struct tokenizer *t, enum tok_role role)
{
    return t->roles[role];
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n && t->eog[id];
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->head_n;
}

bool tokenizer_adds_eos(const struct tokenizer *t)
{
    return t->tail_n;
}

bool tokenizer_doubles_sep(const struct tokenizer *t)
{
    int32_t sep = t->roles[TOK_SEP];
    if (t->sep != TOK_SEP_UNKNOWN)
        return t->sep == TOK_SEP_TWICE;
    return strcmp(t->kind, "bert") != 0 && tokenizer_find(t, "[SEP]", 5) != (sep < 0 ? -2 : sep);
}
