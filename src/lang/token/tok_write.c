/* A tokenizer into the keys of a GGUF file: the reverse of tok_gguf.c. */
#include "lang/token/tok_write.h"

#include "base/log.h"
#include "lang/token/tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY "tokenizer.ggml."

/* Types of tokens, as GGUF numbers them. */
static int32_t type_of(enum tok_attr a)
{
    static const int32_t types[] = {[TOK_NORMAL] = 1, [TOK_UNKNOWN] = 2, [TOK_CONTROL] = 3,
                                    [TOK_USER] = 4,   [TOK_UNUSED] = 5,  [TOK_BYTE] = 6};
    return types[a];
}

static void put_text(struct gguf_writer *w, const char *name, const char *text)
{
    gguf_put_str(w, name, text, strlen(text));
}

/* The i-th piece. WordPiece marks words there, and continuations here. */
static void put_piece(struct gguf_writer *w, const struct tokenizer *t, int32_t i, struct buf *room)
{
    const struct tok_str *p = &t->pieces[i];
    bool wordpiece = t->model == MODEL_WORDPIECE && !t->word_prefix.n && t->attr[i] == TOK_NORMAL;
    buf_clear(room);
    if (!p->n)
        buf_printf(room, "[PAD%d]", i); /* a hole */
    else if (wordpiece && p->n > t->cont_prefix.n && !memcmp(p->s, t->cont_prefix.s, t->cont_prefix.n))
        buf_add(room, p->s + t->cont_prefix.n, p->n - t->cont_prefix.n);
    else if (wordpiece)
        buf_printf(room, TOK_SPACE_MARK "%.*s", (int)p->n, p->s);
    else
        buf_add(room, p->s, p->n);
    gguf_add_string(w, room->data ? room->data : "", room->len);
}

/* Tokens and their types; rows of the embedding that have no token are filled up. */
static int put_tokens(struct gguf_writer *w, const struct tokenizer *t, int32_t rows, struct err *e)
{
    struct buf room = {0};
    int32_t *types = mem_alloc((size_t)rows, sizeof *types);
    if (!types)
        return err_memory(e, "the vocabulary", (size_t)rows * sizeof *types);
    if (gguf_put_strings(w, KEY "tokens", (uint64_t)rows))
        for (int32_t i = 0; i < rows; i++) {
            char pad[24];
            if (i < t->n) {
                put_piece(w, t, i, &room);
                types[i] = t->pieces[i].n ? type_of((enum tok_attr)t->attr[i]) : type_of(TOK_UNUSED);
                continue;
            }
            snprintf(pad, sizeof pad, "[PAD%d]", i);
            gguf_add_string(w, pad, strlen(pad));
            types[i] = type_of(TOK_UNUSED);
        }
    gguf_put_items(w, KEY "token_type", GGUF_I32, types, (uint64_t)rows);
    bool failed = room.failed;
    buf_free(&room);
    mem_free(types);
    return failed ? err_memory(e, "the vocabulary", (size_t)rows) : 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct tok_merge *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* The merges in order of rank; *n of them, to be freed. */
static struct tok_merge *sorted_merges(const struct tokenizer *t, size_t *n)
{
    size_t room = t->merges ? (size_t)t->merge_mask + 1 : 0;
    struct tok_merge *all = mem_alloc(room + 1, sizeof *all);
    *n = 0;
    for (size_t i = 0; all && i < room; i++)
        if (t->merges[i].left >= 0)
            all[(*n)++] = t->merges[i];
    if (all)
        qsort(all, *n, sizeof *all, by_rank);
    return all;
}

static int put_merges(struct gguf_writer *w, const struct tokenizer *t, struct err *e)
{
    size_t n;
    struct buf room = {0};
    struct tok_merge *all = sorted_merges(t, &n);
    if (!all)
        return err_memory(e, "the merges", t->merge_mask);
    if (gguf_put_strings(w, KEY "merges", n))
        for (size_t i = 0; i < n; i++) {
            const struct tok_str *a = &t->pieces[all[i].left], *b = &t->pieces[all[i].right];
            buf_clear(&room);
            buf_add(&room, a->s, a->n);
            buf_char(&room, ' ');
            buf_add(&room, b->s, b->n);
            gguf_add_string(w, room.data ? room.data : "", room.len);
        }
    buf_free(&room);
    mem_free(all);
    return 0;
}

/* Scores: the model's own, or those that make SentencePiece merge in the order of the merges. */
static int put_scores(struct gguf_writer *w, const struct tokenizer *t, int32_t rows, struct err *e)
{
    size_t n = 0;
    float *scores = mem_zalloc((size_t)rows, sizeof *scores);
    struct tok_merge *all = t->score ? NULL : sorted_merges(t, &n);
    if (!scores || (!t->score && !all)) {
        mem_free(scores);
        mem_free(all);
        return err_memory(e, "the scores", (size_t)rows * sizeof *scores);
    }
    for (int32_t i = 0; t->score && i < rows && i < t->n; i++)
        scores[i] = (float)t->score[i];
    for (size_t i = n; i-- > 0;)
        if (all[i].id >= 0 && all[i].id < rows)
            scores[all[i].id] = -(float)(i + 1);
    gguf_put_items(w, KEY "scores", GGUF_F32, scores, (uint64_t)rows);
    mem_free(scores);
    mem_free(all);
    return 0;
}

static void put_roles(struct gguf_writer *w, const struct tokenizer *t, int32_t rows)
{
    static const struct {
        const char *name;
        enum tok_role role;
    } keys[] = {{"bos", TOK_BOS},         {"eos", TOK_EOS},         {"eot", TOK_EOT},
                {"eom", TOK_EOM},         {"unknown", TOK_UNK},     {"seperator", TOK_SEP},
                {"padding", TOK_PAD},     {"cls", TOK_CLS},         {"mask", TOK_MASK},
                {"fim_pre", TOK_FIM_PRE}, {"fim_suf", TOK_FIM_SUF}, {"fim_mid", TOK_FIM_MID}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int32_t id = t->roles[keys[i].role];
        char name[64];
        snprintf(name, sizeof name, KEY "%s_token_id", keys[i].name);
        if (id >= 0 && id < rows)
            gguf_put_u32(w, name, (uint32_t)id);
    }
    gguf_put_bool(w, KEY "add_bos_token", t->head_n > 0);
    gguf_put_bool(w, KEY "add_eos_token", t->tail_n > 0);
}

/* Is a space put in front of a text. */
static bool prefixes(const struct tokenizer *t)
{
    for (int i = 0; i < t->norm_n; i++)
        if (t->norm[i].kind == NORM_PREPEND || (t->norm[i].kind == NORM_SPM && t->norm[i].prefix))
            return true;
    for (int i = 0; i < t->pre_n; i++)
        if (t->pre[i].kind == PRE_METASPACE && t->pre[i].scheme != PREPEND_NEVER)
            return true;
    return false;
}

static void put_charsmap(struct gguf_writer *w, const struct charsmap *m, struct buf *room)
{
    uint32_t bytes = (uint32_t)(m->count * 4);
    if (!m->count)
        return;
    buf_add(room, &bytes, sizeof bytes);
    buf_add(room, m->units, bytes);
    buf_add(room, m->strings, m->strings_n);
    gguf_put_items(w, KEY "precompiled_charsmap", GGUF_U8, room->data, room->len);
    buf_clear(room);
}

/* What normalises the text, as far as GGUF can say it. */
static void put_normaliser(struct gguf_writer *w, const struct tokenizer *t)
{
    struct buf room = {0};
    bool squeeze = false;
    for (int i = 0; i < t->norm_n; i++) {
        const struct norm_step *s = &t->norm[i];
        if (s->kind == NORM_SPM || s->kind == NORM_PRECOMPILED)
            put_charsmap(w, &s->map, &room);
        if (s->kind == NORM_BERT && !s->lower)
            gguf_put_bool(w, KEY "normalizer.lowercase", false);
        squeeze =
            squeeze || s->squeeze || s->regex; /* " {2,}" -> " " is the only pattern that such files have */
    }
    if (t->model == MODEL_UNIGRAM && !t->from_end)
        gguf_put_bool(w, KEY "remove_extra_whitespaces", squeeze);
    if (t->model == MODEL_UNIGRAM || !strcmp(t->kind, "llama"))
        gguf_put_bool(w, KEY "add_space_prefix", prefixes(t));
    buf_free(&room);
}

/* The name of the pre-tokenizer: the one that cuts as these steps do. */
static const char *pre_name(const struct tokenizer *t)
{
    const struct scan_pass *passes[6] = {0};
    int n = 0;
    if (t->pre_name[0])
        return t->pre_name;
    for (int i = 0; i < t->pre_n; i++) {
        const struct pre_step *s = &t->pre[i];
        if (n == 5)
            return NULL;
        if (s->kind == PRE_SCAN && s->behaviour == SPLIT_ISOLATED)
            passes[n++] = s->pass;
        else if (s->kind == PRE_CHARS && s->chars == CHARS_NUMERIC && s->behaviour == SPLIT_ISOLATED)
            passes[n++] = scan_for_regex("\\p{N}", 5);
        else
            return NULL;
    }
    return scan_name_for(passes, t->whole_words);
}

int tokenizer_write(const struct tokenizer *t, struct gguf_writer *w, uint32_t vocab, struct err *e)
{
    int32_t rows = vocab ? (int32_t)vocab : t->n;
    bool bpe = !strcmp(t->kind, "gpt2"),
         scored = !strcmp(t->kind, "llama") || !strcmp(t->kind, "t5") || t->from_end;
    if (!(bpe && t->merges) && !scored && strcmp(t->kind, "bert"))
        return err_set(e, ERR_DATA, "a tokenizer of kind '%s'%s cannot be written into a GGUF file", t->kind,
                       bpe ? " that has ranks and no merges" : "");
    const char *pre = bpe ? pre_name(t) : "default";
    if (!pre)
        return err_set(e, ERR_DATA,
                       "GGUF has no name for the way in which this tokenizer cuts a text before it merges");
    if (t->n > rows)
        log_warn("the tokenizer has %d tokens and the model %d: the file gets those of the model", t->n,
                 rows);
    put_text(w, KEY "model", t->kind);
    put_text(w, KEY "pre", pre);
    if (put_tokens(w, t, rows, e) || (scored && put_scores(w, t, rows, e)) || (bpe && put_merges(w, t, e)))
        return -1;
    put_roles(w, t, rows);
    put_normaliser(w, t);
    return 0;
}
