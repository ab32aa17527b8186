/* A tokenizer from Hugging Face's tokenizer.json, and what tokenizer_config.json adds. */
#include "lang/tok.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

static int id_of(const struct tj_node *n, int32_t *out, struct err *e)
{
    if (!n || n->type != TJ_NUMBER || n->number < 0 || n->number > 1 << 22)
        return err_set(e, ERR_DATA, "a token's id is missing or out of range");
    *out = (int32_t)n->number;
    return 0;
}

/* ---- vocabulary ---- */

/* {"piece": id, ...}, or for unigram [["piece", score], ...], and the added tokens. */
static int read_vocab(struct tokenizer *t, const struct tj *j, const struct tj_node *vocab,
                      const struct tj_node *added, struct err *e)
{
    int64_t most = vocab && vocab->type == TJ_ARRAY ? (int64_t)vocab->n - 1 : -1;
    int32_t id = 0;
    if (!vocab || (vocab->type != TJ_ARRAY && vocab->type != TJ_OBJECT))
        return err_set(e, ERR_DATA, "the model has no vocabulary");
    for (const struct tj_node *m = tj_first(j, vocab); vocab->type == TJ_OBJECT && m; m = tj_next(j, m)) {
        if (id_of(m, &id, e))
            return -1;
        most = id > most ? id : most;
    }
    for (const struct tj_node *m = tj_first(j, added); m; m = tj_next(j, m)) {
        if (id_of(tj_get(j, m, "id"), &id, e))
            return -1;
        most = id > most ? id : most;
    }
    if (tok_alloc_vocab(t, most + 1, e))
        return -1;
    if (vocab->type == TJ_OBJECT) {
        for (const struct tj_node *m = tj_first(j, vocab); m; m = tj_next(j, m))
            t->pieces[(int32_t)m->number] = (struct tok_str){m->key, m->key_n};
        return 0;
    }
    t->score = mem_zalloc((size_t)t->n, sizeof *t->score);
    if (!t->score)
        return err_memory(e, "the scores", (unsigned long long)t->n * sizeof *t->score);
    id = 0;
    for (const struct tj_node *m = tj_first(j, vocab); m; m = tj_next(j, m), id++) {
        const struct tj_node *piece = tj_first(j, m), *score = piece ? tj_next(j, piece) : NULL;
        if (!score || piece->type != TJ_STRING || score->type != TJ_NUMBER)
            return err_set(e, ERR_DATA, "token %d of the unigram vocabulary is not [piece, score]", id);
        t->pieces[id] = (struct tok_str){piece->s, piece->n};
        t->score[id] = score->number;
    }
    return 0;
}

static int read_added(struct tokenizer *t, const struct tj *j, const struct tj_node *list, struct err *e)
{
    for (const struct tj_node *m = tj_first(j, list); m; m = tj_next(j, m)) {
        const struct tj_node *text = tj_get(j, m, "content");
        struct added_token a = {.special = tj_bool(j, m, "special", false),
                                .lstrip = tj_bool(j, m, "lstrip", false),
                                .rstrip = tj_bool(j, m, "rstrip", false),
                                .single_word = tj_bool(j, m, "single_word", false)};
        a.normalized = tj_bool(j, m, "normalized", !a.special);
        if (id_of(tj_get(j, m, "id"), &a.id, e))
            return -1;
        if (!text || text->type != TJ_STRING)
            return err_set(e, ERR_DATA, "the added token %d has no content", a.id);
        a.text = (struct tok_str){text->s, text->n};
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
        const struct tj_node *a = tj_first(j, m), *b = a ? tj_next(j, a) : NULL;
        if (!b || a->type != TJ_STRING || b->type != TJ_STRING)
            return err_set(e, ERR_DATA, "merge %u is not two pieces", rank);
        tok_feed_merge(&feed, a->s, a->n, b->s, b->n);
    }
    tok_feed_end(&feed);
    return 0;
}

static struct tok_str string_of(const struct tj *j, const struct tj_node *o, const char *key)
{
    const struct tj_node *n = tj_get(j, o, key);
    return n && n->type == TJ_STRING ? (struct tok_str){n->s, n->n} : (struct tok_str){"", 0};
}

static int read_model(struct tokenizer *t, const struct tj *j, const struct tj_node *m, struct err *e)
{
    const struct tj_node *type = tj_get(j, m, "type"), *merges = tj_get(j, m, "merges"),
                         *v = tj_get(j, m, "vocab");
    struct tok_str unk = string_of(j, m, "unk_token");
    t->roles[TOK_UNK] = tokenizer_find(t, unk.s, unk.n);
    t->byte_fallback = tj_bool(j, m, "byte_fallback", false);
    t->cont_prefix = string_of(j, m, "continuing_subword_prefix");
    if (tj_is(type, "BPE") || (!type && merges)) {
        t->model = MODEL_BPE;
        snprintf(t->kind, sizeof t->kind, "%s", t->byte_fallback ? "llama" : "gpt2");
        t->whole_words = tj_bool(j, m, "ignore_merges", false);
        t->fuse_unk = tj_bool(j, m, "fuse_unk", false);
        t->word_suffix = string_of(j, m, "end_of_word_suffix");
        return read_merges(t, j, merges, e);
    }
    if (tj_is(type, "Unigram") || (!type && v && v->type == TJ_ARRAY)) {
        const struct tj_node *id = tj_get(j, m, "unk_id");
        t->model = MODEL_UNIGRAM;
        snprintf(t->kind, sizeof t->kind, "t5");
        if (id && id_of(id, &t->roles[TOK_UNK], e))
            return -1;
        return t->roles[TOK_UNK] < t->n ? 0 : err_set(e, ERR_DATA, "unk_id is outside the vocabulary");
    }
    if (tj_is(type, "WordPiece") || (!type && t->cont_prefix.n)) {
        const struct tj_node *most = tj_get(j, m, "max_input_chars_per_word");
        t->model = MODEL_WORDPIECE;
        snprintf(t->kind, sizeof t->kind, "bert");
        t->max_word = most && most->type == TJ_NUMBER && most->number >= 0 ? (size_t)most->number : 100;
        if (!tj_get(j, m, "continuing_subword_prefix"))
            t->cont_prefix = (struct tok_str){"##", 2};
        return 0;
    }
    if (type && !tj_is(type, "WordLevel"))
        return err_set(e, ERR_DATA, "the model '%s' is not known", log_safe_n(type->s, type->n));
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
    const struct tj_node *text = tj_first(j, tj_get(j, o, key)), *id = text ? tj_next(j, text) : NULL;
    return id && id->type == TJ_NUMBER && id->number >= 0 && id->number < 1 << 22 ? (int32_t)id->number : -1;
}

static int template(struct tokenizer *t, const struct tj *j, const struct tj_node *p, struct around *a,
                    struct err *e)
{
    bool behind = false;
    const struct tj_node *known = tj_get(j, p, "special_tokens");
    for (const struct tj_node *m = tj_first(j, tj_get(j, p, "single")); m; m = tj_next(j, m)) {
        const struct tj_node *special = tj_get(j, m, "SpecialToken");
        if (!special) {
            behind = true;
            continue;
        }
        struct tok_str name = string_of(j, special, "id");
        const struct tj_node *ids = NULL;
        for (const struct tj_node *k = tj_first(j, known); k && !ids; k = tj_next(j, k))
            if (k->key_n == name.n && !memcmp(k->key, name.s, name.n))
                ids = tj_get(j, k, "ids");
        if (!ids)
            return err_set(e, ERR_DATA, "the post-processor's template names '%s', which it does not define",
                           log_safe_n(name.s, name.n));
        for (const struct tj_node *i = tj_first(j, ids); i; i = tj_next(j, i)) {
            int32_t id = 0;
            if (id_of(i, &id, e) || around_add(a, behind, id, t, e))
                return -1;
        }
    }
    return 0;
}

static int post_processor(struct tokenizer *t, const struct tj *j, const struct tj_node *p, struct around *a,
                          int depth, struct err *e)
{
    const struct tj_node *type = tj_get(j, p, "type");
    if (!p || tj_is(type, "ByteLevel"))
        return 0;
    if (tj_is(type, "TemplateProcessing"))
        return template(t, j, p, a, e);
    if (tj_is(type, "BertProcessing") || tj_is(type, "RobertaProcessing"))
        return around_add(a, false, pair_id(j, p, "cls"), t, e) ||
                       around_add(a, true, pair_id(j, p, "sep"), t, e)
                   ? -1
                   : 0;
    if (!tj_is(type, "Sequence") || depth > 4)
        return err_set(e, ERR_DATA, "the post-processor is of a type that is not known");
    for (const struct tj_node *m = tj_first(j, tj_get(j, p, "processors")); m; m = tj_next(j, m))
        if (post_processor(t, j, m, a, depth + 1, e))
            return -1;
    return 0;
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
    const struct tj_node *root = &j->nodes[0], *model = tj_get(j, root, "model");
    const struct tj_node *added = tj_get(j, root, "added_tokens"), *decoder = tj_get(j, root, "decoder");
    const struct tj_node *norm = tj_get(j, root, "normalizer"), *pre = tj_get(j, root, "pre_tokenizer");
    if (!model)
        return err_set(e, ERR_DATA, "the file has no \"model\"");
    struct around a = {.head_n = 0};
    if (read_vocab(t, j, tj_get(j, model, "vocab"), added, e) || read_added(t, j, added, e) ||
        tok_build_map(t, e) || read_model(t, j, model, e) || (norm && tok_hf_normalizer(t, j, norm, 0, e)) ||
        (pre && tok_hf_pretokenizer(t, j, pre, 0, e)))
        return -1;
    if (decoder ? tok_hf_decoder(t, j, decoder, 0, e) : (t->dec = DEC_SPACED, 0))
        return -1;
    if (t->roles[TOK_UNK] >= 0 && t->attr[t->roles[TOK_UNK]] == TOK_NORMAL)
        t->attr[t->roles[TOK_UNK]] = TOK_UNKNOWN;
    settle_bytes(t);
    return post_processor(t, j, tj_get(j, root, "post_processor"), &a, 0, e) ||
                   tok_set_around(&t->head, &t->head_n, a.head, a.head_n, e) ||
                   tok_set_around(&t->tail, &t->tail_n, a.tail, a.tail_n, e)
               ? -1
               : 0;
}

/* ---- tokenizer_config.json ---- */

static int32_t config_token(const struct tokenizer *t, const struct tj *j, const struct tj_node *root,
                            const char *key)
{
    const struct tj_node *n = tj_get(j, root, key);
    struct tok_str text = n && n->type == TJ_OBJECT ? string_of(j, n, "content") : string_of(j, root, key);
    return tokenizer_find(t, text.s, text.n);
}

/* {"128000": {"content": ...}, ...}: tokens that the vocabulary's own file does not list. */
static int config_added(struct tokenizer *t, const struct tj *j, const struct tj_node *list, struct err *e)
{
    for (const struct tj_node *m = tj_first(j, list); m; m = tj_next(j, m)) {
        struct tok_str text = string_of(j, m, "content");
        struct added_token a = {.special = tj_bool(j, m, "special", false),
                                .lstrip = tj_bool(j, m, "lstrip", false),
                                .rstrip = tj_bool(j, m, "rstrip", false),
                                .single_word = tj_bool(j, m, "single_word", false)};
        a.normalized = tj_bool(j, m, "normalized", !a.special);
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
    } keys[] = {{"bos_token", TOK_BOS}, {"eos_token", TOK_EOS}, {"sep_token", TOK_SEP},
                {"pad_token", TOK_PAD}, {"cls_token", TOK_CLS}, {"mask_token", TOK_MASK}};
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
    int rc = config_added(t, &j, tj_get(&j, root, "added_tokens_decoder"), e);
    /* a tokenizer.json says itself what goes around a text; other files leave it to this one */
    int32_t bos = t->roles[TOK_BOS], eos = t->roles[TOK_EOS];
    if (!rc && !t->json.count && bos >= 0 && tj_get(&j, root, "add_bos_token"))
        rc = tok_set_around(&t->head, &t->head_n, &bos, tj_bool(&j, root, "add_bos_token", false), e);
    if (!rc && !t->json.count && eos >= 0 && tj_get(&j, root, "add_eos_token"))
        rc = tok_set_around(&t->tail, &t->tail_n, &eos, tj_bool(&j, root, "add_eos_token", false), e);
    tj_close(&j);
    return rc;
}
