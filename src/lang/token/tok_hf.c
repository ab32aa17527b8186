/* A tokenizer from Hugging Face's tokenizer.json, and what tokenizer_config.json adds. */
#include "lang/token/tok.h"

#include "base/log.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

int32_t tok_json_id(const struct tj *j, const struct tj_node *n)
{
    return (int32_t)tj_whole(j, n, 0, TOK_ID_MOST);
}

struct tok_str tok_json_str(const struct tj *j, const struct tj_node *o, const char *key)
{
    const struct tj_node *n = tj_get(j, o, key, JSONREAD_IS_STRING);
    return n ? (struct tok_str){n->s, n->n} : (struct tok_str){"", 0};
}

/* ---- vocabulary ---- */

/* [["piece", score], ...] */
static int read_scored(struct tokenizer *t, const struct tj *j, const struct tj_node *vocab, struct err *e)
{
    int32_t id = 0;
    t->score = mem_zalloc((size_t)t->n, sizeof *t->score);
    if (!t->score)
        return err_memory(e, "the scores", (unsigned long long)t->n * sizeof *t->score);
    for (const struct tj_node *m = tj_first(j, vocab); m; m = tj_next(j, m), id++) {
        const struct tj_node *piece = tj_expect(j, m, JSONREAD_IS_ARRAY) ? tj_first(j, m) : NULL,
                             *score = piece ? tj_next(j, piece) : NULL;
        if (!score || m->n != 2)
            return err_set(e, ERR_DATA, "token %d of the unigram vocabulary is not [piece, score]", id);
        if (!tj_expect(j, piece, JSONREAD_IS_STRING) || !tj_expect(j, score, JSONREAD_IS_NUMBER))
            return -1;
        t->pieces[id] = (struct tok_str){piece->s, piece->n};
        t->score[id] = score->number;
    }
    return 0;
}

/* {"piece": id, ...}, or for unigram a list, and the added tokens. */
static int read_vocab(struct tokenizer *t, const struct tj *j, const struct tj_node *vocab,
                      const struct tj_node *added, struct err *e)
{
    int32_t most = vocab->type == TJ_ARRAY ? (int32_t)size_min(vocab->n, TOK_ID_MOST + 1) - 1 : -1, id;
    if (vocab->type == TJ_ARRAY && vocab->n > TOK_ID_MOST)
        return err_set(e, ERR_DATA, "the vocabulary has %u tokens; at most %d are allowed", vocab->n,
                       TOK_ID_MOST);
    for (const struct tj_node *m = tj_first(j, vocab); vocab->type == TJ_OBJECT && m; m = tj_next(j, m)) {
        if ((id = tok_json_id(j, m)) < 0)
            return -1;
        most = id > most ? id : most;
    }
    for (const struct tj_node *m = tj_first(j, added); m; m = tj_next(j, m)) {
        if ((id = tok_json_id(j, tj_need(j, m, "id", JSONREAD_IS_INT))) < 0)
            return -1;
        most = id > most ? id : most;
    }
    if (tok_alloc_vocab(t, (int64_t)most + 1, e))
        return -1;
    if (vocab->type == TJ_ARRAY)
        return read_scored(t, j, vocab, e);
    for (const struct tj_node *m = tj_first(j, vocab); m; m = tj_next(j, m))
        t->pieces[(int32_t)m->number] = (struct tok_str){m->key, m->key_n};
    return 0;
}

/* {"content": ..., "special": ...}: all but its id. */
static struct added_token read_token(const struct tj *j, const struct tj_node *m)
{
    struct added_token a = {.text = tok_json_str(j, m, "content"),
                            .special = tj_bool(j, m, "special", false),
                            .lstrip = tj_bool(j, m, "lstrip", false),
                            .rstrip = tj_bool(j, m, "rstrip", false),
                            .single_word = tj_bool(j, m, "single_word", false)};
    a.normalized = tj_bool(j, m, "normalized", !a.special);
    return a;
}

static int read_added(struct tokenizer *t, const struct tj *j, const struct tj_node *list, struct err *e)
{
    for (const struct tj_node *m = tj_first(j, list); m; m = tj_next(j, m)) {
        struct added_token a = read_token(j, m);
        a.id = tok_json_id(j, tj_get(j, m, "id", JSONREAD_IS_INT));
        if (!tj_need(j, m, "content", JSONREAD_IS_STRING) || e->code)
            return -1;
        const struct tok_str *had = &t->pieces[a.id];
        t->outside[a.id] = had->n != a.text.n || memcmp(had->s, a.text.s, had->n);
        t->pieces[a.id] = a.text;
        t->attr[a.id] = a.special ? TOK_CONTROL : TOK_USER;
        if (tok_add_added(t, &a, e))
            return -1;
    }
    return 0;
}

/* ---- models ---- */

static int read_merges(struct tokenizer *t, const struct tj *j, const struct tj_node *list, struct err *e)
{
    struct tok_feed feed = {.t = t};
    uint32_t rank = 0;
    if (tok_merges_open(t, list ? list->n : 0, e))
        return -1;
    for (const struct tj_node *m = tj_first(j, list); m; m = tj_next(j, m), rank++) {
        if (m->type == TJ_STRING) {
            const char *cut = m->n > 1 ? memchr(m->s + 1, ' ', m->n - 1) : NULL;
            if (!cut)
                return err_set(e, ERR_DATA, "merge %u is not two pieces", rank);
            tok_feed_merge(&feed, m->s, (size_t)(cut - m->s), cut + 1, m->n - (size_t)(cut - m->s) - 1);
            continue;
        }
        const struct tj_node *a = tj_expect(j, m, JSONREAD_IS_STRING | JSONREAD_IS_ARRAY) ? tj_first(j, m)
                                                                                          : NULL,
                             *b = a ? tj_next(j, a) : NULL;
        if (!b || m->n != 2)
            return err_set(e, ERR_DATA, "merge %u is not two pieces", rank);
        if (!tj_expect(j, a, JSONREAD_IS_STRING) || !tj_expect(j, b, JSONREAD_IS_STRING))
            return -1;
        tok_feed_merge(&feed, a->s, a->n, b->s, b->n);
    }
    tok_feed_end(&feed);
    return 0;
}

static int read_bpe(struct tokenizer *t, const struct tj *j, const struct tj_node *m, struct err *e)
{
    t->model = MODEL_BPE;
    snprintf(t->kind, sizeof t->kind, "%s", t->byte_fallback ? "llama" : "gpt2");
    t->whole_words = tj_bool(j, m, "ignore_merges?", false);
    t->fuse_unk = tj_bool(j, m, "fuse_unk?", false);
    t->word_suffix = tok_json_str(j, m, "end_of_word_suffix?");
    return read_merges(t, j, tj_get(j, m, "merges", JSONREAD_IS_ARRAY), e);
}

static int read_unigram(struct tokenizer *t, const struct tj *j, const struct tj_node *m, struct err *e)
{
    const struct tj_node *id = tj_get(j, m, "unk_id?", JSONREAD_IS_INT);
    t->model = MODEL_UNIGRAM;
    snprintf(t->kind, sizeof t->kind, "t5");
    if (!t->score)
        tj_need(j, m, "vocab", JSONREAD_IS_ARRAY);
    if (id)
        t->roles[TOK_UNK] = (int32_t)tj_whole(j, id, 0, (int64_t)t->n - 1);
    return e->code ? -1 : 0;
}

static int read_wordpiece(struct tokenizer *t, const struct tj *j, const struct tj_node *m)
{
    const struct tj_node *most = tj_get(j, m, "max_input_chars_per_word", JSONREAD_IS_INT);
    t->model = MODEL_WORDPIECE;
    snprintf(t->kind, sizeof t->kind, "bert");
    t->max_word = 100;
    if (most)
        t->max_word = (size_t)tj_whole(j, most, 0, INT32_MAX);
    if (!tj_get(j, m, "continuing_subword_prefix?", JSONREAD_IS_STRING))
        t->cont_prefix = (struct tok_str){"##", 2};
    return 0;
}

/* Older files have no type: the fields identify it. */
static int read_model(struct tokenizer *t, const struct tj *j, const struct tj_node *m, struct err *e)
{
    const struct tj_node *type = tj_get(j, m, "type", JSONREAD_IS_STRING);
    struct tok_str unk = tok_json_str(j, m, "unk_token?");
    t->roles[TOK_UNK] = tokenizer_find(t, unk.s, unk.n);
    t->byte_fallback = tj_bool(j, m, "byte_fallback?", false);
    t->cont_prefix = tok_json_str(j, m, "continuing_subword_prefix?");
    if (t->score && type && !tj_is(type, "Unigram"))
        tj_need(j, m, "vocab", JSONREAD_IS_OBJECT); /* only unigram has a list */
    if (e->code)
        return -1;
    if (tj_is(type, "BPE") || (!type && tj_get(j, m, "merges", JSONREAD_IS_ARRAY)))
        return read_bpe(t, j, m, e);
    if (tj_is(type, "Unigram") || (!type && t->score))
        return read_unigram(t, j, m, e);
    if (tj_is(type, "WordPiece") || (!type && t->cont_prefix.n))
        return read_wordpiece(t, j, m);
    if (type && !tj_is(type, "WordLevel"))
        return err_set(e, ERR_DATA,
                       "%s: the model '%s' is not known; BPE, Unigram, WordPiece and WordLevel are",
                       log_safe(j->file), log_safe_n(type->s, type->n));
    t->model = MODEL_WORDLEVEL;
    snprintf(t->kind, sizeof t->kind, "wordlevel");
    return 0;
}

/* ---- what is put around a text ---- */

struct around {
    int32_t head[16], tail[16];
    size_t head_n, tail_n;
};

static int around_add(struct around *a, bool tail, int32_t id, const struct tokenizer *t, struct err *e)
{
    size_t *n = tail ? &a->tail_n : &a->head_n;
    if (id < 0 || id >= t->n || *n == 16)
        return err_set(e, ERR_DATA, "the post-processor names a token that is not in the vocabulary");
    (tail ? a->tail : a->head)[(*n)++] = id;
    return 0;
}

/* ["[SEP]", 102] */
static int32_t pair_id(const struct tj *j, const struct tj_node *o, const char *key)
{
    const struct tj_node *pair = tj_need(j, o, key, JSONREAD_IS_ARRAY), *text = tj_first(j, pair),
                         *id = text ? tj_next(j, text) : NULL;
    if (!pair || (text && !tj_expect(j, text, JSONREAD_IS_STRING)))
        return -1;
    if (!id)
        err_set(j->e, ERR_DATA, "%s: %s of the post-processor is not [token, id]", log_safe(j->file), key);
    return id ? tok_json_id(j, id) : -1;
}

/* "special_tokens": {"[CLS]": {"ids": [101]}, ...}: the ids of one. */
static const struct tj_node *special_ids(const struct tj *j, const struct tj_node *known, struct tok_str name)
{
    for (const struct tj_node *k = tj_first(j, known); k; k = tj_next(j, k))
        if (k->key_n == name.n && !memcmp(k->key, name.s, name.n))
            return tj_need(j, k, "ids", JSONREAD_IS_ARRAY);
    err_set(j->e, ERR_DATA, "%s: the post-processor's template names '%s', which it does not define",
            log_safe(j->file), log_safe_n(name.s, name.n));
    return NULL;
}

static int template(struct tokenizer *t, const struct tj *j, const struct tj_node *p, struct around *a,
                    struct err *e)
{
    bool behind = false;
    const struct tj_node *known = tj_get(j, p, "special_tokens", JSONREAD_IS_OBJECT);
    for (const struct tj_node *m = tj_first(j, tj_need(j, p, "single", JSONREAD_IS_ARRAY)); m;
         m = tj_next(j, m)) {
        const struct tj_node *special = tj_get(j, m, "SpecialToken", JSONREAD_IS_OBJECT);
        if (!special) {
            behind = true;
            continue;
        }
        const struct tj_node *name = tj_need(j, special, "id", JSONREAD_IS_STRING);
        const struct tj_node *ids = name ? special_ids(j, known, (struct tok_str){name->s, name->n}) : NULL;
        for (const struct tj_node *i = tj_first(j, ids); i; i = tj_next(j, i))
            if (around_add(a, behind, tok_json_id(j, i), t, e))
                return -1;
    }
    return e->code ? -1 : 0;
}

/* How many tokens the template has between the texts of a pair. */
static void template_pair(struct tokenizer *t, const struct tj *j, const struct tj_node *p)
{
    size_t texts = 0, between = 0;
    for (const struct tj_node *m = tj_first(j, tj_get(j, p, "pair?", JSONREAD_IS_ARRAY)); m;
         m = tj_next(j, m)) {
        bool special = tj_get(j, m, "SpecialToken", JSONREAD_IS_OBJECT) != NULL;
        texts += !special;
        between += special && texts == 1;
    }
    if (texts == 2)
        t->sep = between > 1 ? TOK_SEP_TWICE : TOK_SEP_ONCE;
}

static int post_processor(struct tokenizer *t, const struct tj *j, const struct tj_node *p, struct around *a,
                          int depth, struct err *e)
{
    const struct tj_node *type = tj_need(j, p, "type", JSONREAD_IS_STRING);
    if (p && !type)
        return -1;
    if (!p || tj_is(type, "ByteLevel"))
        return 0;
    if (tj_is(type, "TemplateProcessing")) {
        template_pair(t, j, p);
        return template(t, j, p, a, e);
    }
    bool roberta = tj_is(type, "RobertaProcessing");
    if (roberta)
        t->sep = TOK_SEP_TWICE;
    if (tj_is(type, "BertProcessing") || roberta)
        return around_add(a, false, pair_id(j, p, "cls"), t, e) ||
                       around_add(a, true, pair_id(j, p, "sep"), t, e)
                   ? -1
                   : 0;
    if (!tj_is(type, "Sequence") || depth > 4)
        return err_set(e, ERR_DATA, "%s: the post-processor '%s' is not known, or nested too deeply",
                       log_safe(j->file), log_safe_n(type->s, type->n));
    for (const struct tj_node *m = tj_first(j, tj_need(j, p, "processors", JSONREAD_IS_ARRAY)); m;
         m = tj_next(j, m))
        if (post_processor(t, j, m, a, depth + 1, e))
            return -1;
    return e->code ? -1 : 0;
}

/* ---- the file ---- */

/* The alphabet as the last step is no step: the model then works on bytes. */
static void settle_bytes(struct tokenizer *t)
{
    if (t->pre_n && t->pre[t->pre_n - 1].kind == PRE_BYTES && !t->pre[t->pre_n - 1].prefix &&
        t->model == MODEL_BPE && !t->cont_prefix.n && !t->word_suffix.n) {
        t->pre_n--;
        t->byte_level = true;
        t->dec_alphabet = true;
    }
    tok_find_byte_ids(t);
    for (int b = 0; b < 256; b++)
        if (!t->byte_level && t->byte_fallback && t->byte_id[b] >= 0)
            t->attr[t->byte_id[b]] = TOK_BYTE;
}

int tok_from_json(struct tokenizer *t, const char *path, struct err *e)
{
    struct tj *j = &t->json;
    if (tj_open(j, path, e))
        return -1;
    const struct tj_node *root = &j->nodes[0], *model = tj_need(j, root, "model", JSONREAD_IS_OBJECT);
    const struct tj_node *vocab = tj_need(j, model, "vocab", JSONREAD_IS_ARRAY | JSONREAD_IS_OBJECT);
    const struct tj_node *added = tj_get(j, root, "added_tokens", JSONREAD_IS_ARRAY);
    const struct tj_node *decoder = tj_get(j, root, "decoder?", JSONREAD_IS_OBJECT);
    const struct tj_node *norm = tj_get(j, root, "normalizer?", JSONREAD_IS_OBJECT);
    const struct tj_node *pre = tj_get(j, root, "pre_tokenizer?", JSONREAD_IS_OBJECT);
    const struct tj_node *post = tj_get(j, root, "post_processor?", JSONREAD_IS_OBJECT);
    struct around a = {.head_n = 0};
    if (e->code || read_vocab(t, j, vocab, added, e) || read_added(t, j, added, e) || tok_build_map(t, e) ||
        read_model(t, j, model, e) || (norm && tok_hf_normalizer(t, j, norm, 0, e)) ||
        (pre && tok_hf_pretokenizer(t, j, pre, 0, e)))
        return -1;
    if (decoder ? tok_hf_decoder(t, j, decoder, 0, e) : (t->dec = DEC_SPACED, 0))
        return -1;
    if (e->code) /* of any getter so far */
        return -1;
    if (t->roles[TOK_UNK] >= 0 && t->attr[t->roles[TOK_UNK]] == TOK_NORMAL)
        t->attr[t->roles[TOK_UNK]] = TOK_UNKNOWN;
    settle_bytes(t);
    return post_processor(t, j, post, &a, 0, e) || e->code ||
                   tok_set_around(&t->head, &t->head_n, a.head, a.head_n, e) ||
                   tok_set_around(&t->tail, &t->tail_n, a.tail, a.tail_n, e)
               ? -1
               : 0;
}

/* ---- tokenizer_config.json ---- */

static int32_t config_token(const struct tokenizer *t, const struct tj *j, const struct tj_node *root,
                            const char *key)
{
    const struct tj_node *n = tj_get(j, root, key, JSONREAD_IS_STRING | JSONREAD_IS_OBJECT);
    struct tok_str text =
        n && n->type == TJ_OBJECT ? tok_json_str(j, n, "content") : tok_json_str(j, root, key);
    return tokenizer_find(t, text.s, text.n);
}

/* {"128000": {"content": ...}, ...}: tokens that the vocabulary's own file does not list. */
static int config_added(struct tokenizer *t, const struct tj *j, const struct tj_node *list, struct err *e)
{
    for (const struct tj_node *m = tj_first(j, list); m && !e->code; m = tj_next(j, m)) {
        struct added_token a = read_token(j, m);
        struct tok_str text = a.text;
        bool known = false;
        a.id = tokenizer_find(t, text.s, text.n);
        for (size_t i = 0; a.id >= 0 && i < t->added_n && !known; i++)
            known = t->added[i].id == a.id;
        if (known || a.id < 0)
            continue;
        a.text = t->pieces[a.id];
        t->attr[a.id] = a.special ? TOK_CONTROL : TOK_USER;
        if (tok_add_added(t, &a, e))
            return -1;
    }
    return 0;
}

int tok_apply_config(struct tokenizer *t, const char *path, struct err *e)
{
    static const struct {
        const char *key;
        enum tok_role role;
    } keys[] = {{"bos_token?", TOK_BOS}, {"eos_token?", TOK_EOS}, {"sep_token?", TOK_SEP},
                {"pad_token?", TOK_PAD}, {"cls_token?", TOK_CLS}, {"mask_token?", TOK_MASK}};
    struct tj j = {0};
    if (!path)
        return 0;
    if (tj_open(&j, path, e))
        return -1;
    const struct tj_node *root = &j.nodes[0];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int32_t id = config_token(t, &j, root, keys[i].key);
        if (id >= 0)
            t->roles[keys[i].role] = id;
    }
    int rc = config_added(t, &j, tj_get(&j, root, "added_tokens_decoder?", JSONREAD_IS_OBJECT), e);
    /* tokenizer.json itself defines what is put around a text; for other files this one does */
    const struct tj_node *add_bos = tj_get(&j, root, "add_bos_token?", JSONREAD_IS_BOOL),
                         *add_eos = tj_get(&j, root, "add_eos_token?", JSONREAD_IS_BOOL);
    int32_t bos = t->roles[TOK_BOS], eos = t->roles[TOK_EOS];
    if (e->code)
        rc = -1;
    if (!rc && !t->json.count && bos >= 0 && add_bos)
        rc = tok_set_around(&t->head, &t->head_n, &bos, add_bos->number != 0, e);
    if (!rc && !t->json.count && eos >= 0 && add_eos)
        rc = tok_set_around(&t->tail, &t->tail_n, &eos, add_eos->number != 0, e);
    tj_close(&j);
    return rc;
}
