/* A tokenizer from the keys of a GGUF file. */
#include "lang/token/tok.h"

#include "base/log.h"
#include "format/gguf.h"

#include <stdio.h>
#include <string.h>

#define KEY "tokenizer.ggml."

static bool is(const struct gguf_str *s, const char *text)
{
    return s->n == strlen(text) && !memcmp(s->s, text, s->n);
}

static int read_tokens(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    const struct gguf_key *k;
    int got = gguf_get_array(g, KEY "tokens", GGUF_STRING, 0, &k, e);
    if (got <= 0)
        return got < 0 ? -1 : err_set(e, ERR_DATA, "the file has no " KEY "tokens");
    if (k->count > INT32_MAX || tok_alloc_vocab(t, (int64_t)k->count, e))
        return -1;
    struct gguf_str s;
    size_t at = 0;
    for (int32_t i = 0; i < t->n && gguf_next_str(k, &at, &s); i++)
        t->pieces[i] = (struct tok_str){s.s, (uint32_t)s.n};
    return 0;
}

static int read_attrs(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    static const enum tok_attr attrs[] = {TOK_NORMAL, TOK_NORMAL, TOK_UNKNOWN, TOK_CONTROL,
                                          TOK_USER,   TOK_UNUSED, TOK_BYTE};
    const struct gguf_key *k;
    int got = gguf_get_array(g, KEY "token_type", GGUF_I64, (uint64_t)t->n, &k, e);
    for (int32_t i = 0; got > 0 && i < t->n; i++) {
        int64_t v = gguf_item_i64(k, (uint64_t)i);
        t->attr[i] = v >= 0 && v <= 6 ? (uint8_t)attrs[v] : TOK_NORMAL;
        if (t->attr[i] == TOK_BYTE && tok_byte_name(t->pieces[i].s, t->pieces[i].n) < 0)
            return err_set(e, ERR_DATA, "token %d has the type byte, but its text is '%s', not <0xNN>", i,
                           log_safe_n(t->pieces[i].s, t->pieces[i].n));
    }
    return got < 0 ? -1 : 0;
}

static int read_scores(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    const struct gguf_key *k;
    const struct gguf_key *raw = gguf_find(g, KEY "scores");
    enum gguf_type type = raw && raw->item == GGUF_I32 ? GGUF_I64 : GGUF_F32;
    int got = gguf_get_array(g, KEY "scores", type, (uint64_t)t->n, &k, e);
    if (got <= 0)
        return got < 0 ? -1
                       : err_set(e, ERR_DATA, "the file has no " KEY "scores, which this tokenizer needs");
    t->score = mem_alloc((size_t)t->n, sizeof *t->score);
    if (!t->score)
        return err_memory(e, "the scores", (unsigned long long)t->n * sizeof *t->score);
    for (int32_t i = 0; i < t->n; i++)
        t->score[i] =
            type == GGUF_I64 ? (double)gguf_item_i64(k, (uint64_t)i) : gguf_item_f64(k, (uint64_t)i);
    return 0;
}

static int read_roles(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    static const struct {
        const char *name;
        enum tok_role role;
    } keys[] = {{"bos", TOK_BOS},         {"eos", TOK_EOS},         {"eot", TOK_EOT},
                {"eom", TOK_EOM},         {"unknown", TOK_UNK},     {"seperator", TOK_SEP},
                {"padding", TOK_PAD},     {"cls", TOK_CLS},         {"mask", TOK_MASK},
                {"prefix", TOK_FIM_PRE},  {"suffix", TOK_FIM_SUF},  {"middle", TOK_FIM_MID},
                {"fim_pre", TOK_FIM_PRE}, {"fim_suf", TOK_FIM_SUF}, {"fim_mid", TOK_FIM_MID},
                {"fim_pad", TOK_FIM_PAD}, {"fim_rep", TOK_FIM_REP}, {"fim_sep", TOK_FIM_SEP}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[64];
        snprintf(name, sizeof name, KEY "%s_token_id", keys[i].name);
        uint64_t id;
        /* some writers write "none" as all bits set */
        int got = gguf_get_u64(g, name, 0, UINT32_MAX, &id, e);
        if (got < 0)
            return -1;
        if (!got || id == UINT32_MAX)
            continue;
        if (id >= (uint64_t)t->n)
            return err_set(e, ERR_DATA, "%s is %llu, the vocabulary has %d tokens", name,
                           (unsigned long long)id, t->n);
        t->roles[keys[i].role] = (int32_t)id;
    }
    return 0;
}

static int get_flag(const struct gguf *g, const char *name, bool otherwise, bool *out, struct err *e)
{
    *out = otherwise;
    return gguf_get_bool(g, name, out, e) < 0 ? -1 : 0;
}

/* BOS before and EOS after a text: as the file says, else the family's default. */
static int read_around(struct tokenizer *t, const struct gguf *g, bool bos, bool eos, struct err *e)
{
    if (get_flag(g, KEY "add_bos_token", bos, &bos, e) || get_flag(g, KEY "add_eos_token", eos, &eos, e))
        return -1;
    int32_t head = t->roles[TOK_BOS], tail = t->roles[TOK_EOS];
    return tok_set_around(&t->head, &t->head_n, &head, bos && head >= 0, e) ||
                   tok_set_around(&t->tail, &t->tail_n, &tail, eos && tail >= 0, e)
               ? -1
               : 0;
}

/* Control tokens of chats that some converters did not mark. */
static void mark_control(struct tokenizer *t)
{
    static const char *const names[] = {
        "<|eot_id|>",   "<|im_end|>",        "<|im_start|>",    "<|end|>",        "<|return|>",
        "<|call|>",     "<end_of_turn>",     "<start_of_turn>", "<|endoftext|>",  "<|eom_id|>",
        "<EOT>",        "<|end_of_text|>",   "<|fim_prefix|>",  "<|fim_suffix|>", "<|fim_middle|>",
        "<fim_prefix>", "<fim_suffix>",      "<fim_middle>",    "<|fim_pad|>",    "<|repo_name|>",
        "<|file_sep|>", "<end_of_utterance>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = tokenizer_find(t, names[i], strlen(names[i]));
        if (id >= 0)
            t->attr[id] = TOK_CONTROL;
    }
}

/* Properties of tokens of these models that a GGUF lacks and Hugging Face's files have. */
static void strip_flags(struct tokenizer *t, const struct gguf *g)
{
    struct gguf_str name = {"", 0}, arch = {"", 0};
    struct err ignored = {0};
    gguf_get_str(g, "general.name", &name, &ignored);
    gguf_get_str(g, "general.architecture", &arch, &ignored);
    char low[128] = "";
    for (size_t i = 0; i < name.n && i + 1 < sizeof low; i++)
        low[i] = (char)(name.s[i] >= 'A' && name.s[i] <= 'Z' ? name.s[i] + 32 : name.s[i]);
    bool phi3 = strstr(low, "phi-3") || strstr(low, "phi3");
    bool mask = !strncmp(t->pre_name, "jina-v2-", 8) || is(&arch, "nomic-bert-moe") ||
                is(&arch, "jina-bert-v3") || !strcmp(t->pre_name, "modern-bert");
    for (size_t i = 0; i < t->added_n; i++) {
        struct added_token *a = &t->added[i];
        struct gguf_str text = {a->text.s, a->text.n};
        if (phi3)
            a->rstrip = !is(&text, "<unk>") && !is(&text, "<s>") && !is(&text, "<|endoftext|>");
        else if (mask && (is(&text, "<mask>") || is(&text, "[MASK]")))
            a->lstrip = true;
    }
}

/* ---- byte-pair encoding ---- */

static int read_merges(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    const struct gguf_key *k;
    int got = gguf_get_array(g, KEY "merges", GGUF_STRING, 0, &k, e);
    if (got < 0)
        return -1;
    if (!got && strcmp(t->pre_name, "kimi-k2"))
        return err_set(e, ERR_DATA, "the file has no " KEY "merges, which this tokenizer needs");
    if (!got) { /* ranks are the ids themselves */
        t->model = MODEL_RANKED;
        t->rank = mem_alloc((size_t)t->n, sizeof *t->rank);
        for (int32_t i = 0; t->rank && i < t->n; i++)
            t->rank[i] = t->attr[i] == TOK_NORMAL ? (uint32_t)i : UINT32_MAX;
        return t->rank ? 0 : err_memory(e, "the ranks", (unsigned long long)t->n * 4);
    }
    if (tok_merges_open(t, (size_t)k->count, e))
        return -1;
    struct gguf_str s;
    size_t at = 0;
    struct tok_feed feed = {.t = t};
    while (gguf_next_str(k, &at, &s)) {
        const char *cut = s.n > 1 ? memchr(s.s + 1, ' ', s.n - 1) : NULL;
        size_t n =
            cut ? (size_t)(cut - s.s) : s.n; /* one that is not two takes its rank and merges nothing */
        tok_feed_merge(&feed, s.s, n, cut ? cut + 1 : s.s, cut ? s.n - n - 1 : 0);
    }
    tok_feed_end(&feed);
    return 0;
}

static int find_pre(const struct gguf *g, bool gemma4, const struct scan_model **out, struct err *e)
{
    struct gguf_str pre = {"default", 7};
    int got = gemma4 ? 0 : gguf_get_str(g, KEY "pre", &pre, e);
    if (got < 0)
        return -1;
    if (gemma4)
        pre = (struct gguf_str){"gemma4", 6};
    else if (!got)
        log_warn("the model names no pre-tokenizer: using 'default', which may be wrong");
    *out = scan_for_name(pre.s, pre.n);
    return *out ? 0 : err_set(e, ERR_DATA, "the pre-tokenizer '%s' is not known", log_safe_n(pre.s, pre.n));
}

static int set_passes(struct tokenizer *t, const struct scan_model *m, struct err *e)
{
    struct pre_step *step;
    if (m->flags & SCAN_WORDS) {
        if (!(step = tok_pre_add(t, PRE_CHARS, e)))
            return -1;
        step->chars = CHARS_SPACE;
        step->behaviour = SPLIT_REMOVED;
    }
    if (m->regex) {
        if (!(step = tok_pre_add(t, PRE_REGEX, e)) || regex_open(&step->regex, m->regex, strlen(m->regex), e))
            return -1;
    }
    for (int i = 0; i < 6 && m->passes[i]; i++) {
        if (!(step = tok_pre_add(t, PRE_SCAN, e)))
            return -1;
        step->pass = m->passes[i];
    }
    return 0;
}

static int marks_for_spaces(struct tokenizer *t, struct err *e)
{
    struct norm_step *step = tok_norm_add(t, NORM_REPLACE, e);
    if (!step)
        return -1;
    step->from = (struct tok_str){" ", 1};
    step->to = (struct tok_str){TOK_SPACE_MARK, 3};
    t->dec_mark = step->to;
    return 0;
}

static int from_bpe(struct tokenizer *t, const struct gguf *g, bool gemma4, struct err *e)
{
    const struct scan_model *m;
    if (find_pre(g, gemma4, &m, e) || set_passes(t, m, e))
        return -1;
    snprintf(t->pre_name, sizeof t->pre_name, "%s", m->name);
    t->model = MODEL_BPE;
    t->byte_level = !(m->flags & (SCAN_CHARS | SCAN_WORDS));
    t->dec_alphabet = t->byte_level;
    if (t->byte_level)
        t->roles[TOK_UNK] = -1; /* a byte without a token gives nothing, whatever the file calls unknown */
    t->whole_words = m->flags & SCAN_IGNORE_MERGES;
    t->byte_fallback = !t->byte_level;
    if (m->flags & SCAN_CHARS) {
        t->whole_lines = true;
        if (marks_for_spaces(t, e))
            return -1;
    }
    bool lower;
    if (get_flag(g, KEY "normalizer.lowercase", false, &lower, e))
        return -1;
    if (m->flags & SCAN_WORDS && lower && !tok_norm_add(t, NORM_LOWER, e))
        return -1;
    if (m->flags & SCAN_NO_BOS && !gguf_find(g, KEY "bos_token_id"))
        t->roles[TOK_BOS] = -1;
    tok_find_byte_ids(t);
    return read_merges(t, g, e) || read_around(t, g, m->flags & SCAN_ADD_BOS, false, e) ? -1 : 0;
}

/* ---- the others ---- */

static int from_spm(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    bool prefix;
    struct norm_step *step;
    if (read_scores(t, g, e) || get_flag(g, KEY "add_space_prefix", true, &prefix, e))
        return -1;
    t->byte_fallback = true;
    if (tok_rank_by_score(t, e))
        return -1;
    if (prefix) {
        if (!(step = tok_norm_add(t, NORM_PREPEND, e)))
            return -1;
        step->to = (struct tok_str){" ", 1};
    }
    if (marks_for_spaces(t, e))
        return -1;
    t->dec_strip_first = prefix;
    tok_find_byte_ids(t);
    return read_around(t, g, true, false, e);
}

static int from_unigram(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    const struct gguf_key *map = gguf_find(g, KEY "precompiled_charsmap");
    struct norm_step *step = tok_norm_add(t, NORM_SPM, e);
    struct pre_step *pre = tok_pre_add(t, PRE_LITERAL, e);
    if (!step || !pre || read_scores(t, g, e))
        return -1;
    if (map && map->type == GGUF_ARRAY && (map->item == GGUF_U8 || map->item == GGUF_I8) &&
        tok_charsmap(&step->map, map->data, map->bytes, e))
        return -1;
    bool suffix;
    if (get_flag(g, KEY "add_space_prefix", true, &step->prefix, e) ||
        get_flag(g, KEY "remove_extra_whitespaces", false, &step->squeeze, e) ||
        get_flag(g, KEY "treat_whitespace_as_suffix", false, &suffix, e))
        return -1;
    step->suffix = suffix && step->prefix;
    step->prefix = !suffix && step->prefix;
    step->escape = true;
    pre->literal = (struct tok_str){TOK_SPACE_MARK, 3};
    pre->behaviour = suffix ? SPLIT_PREVIOUS : SPLIT_NEXT;
    t->model = MODEL_UNIGRAM;
    t->dec_mark = pre->literal;
    t->dec_strip_first = step->prefix;
    return read_around(t, g, false, true, e);
}

static int from_bert(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct norm_step *step = tok_norm_add(t, NORM_BERT, e);
    struct pre_step *space = tok_pre_add(t, PRE_CHARS, e), *punct = tok_pre_add(t, PRE_CHARS, e);
    if (!step || !space || !punct)
        return -1;
    if (get_flag(g, KEY "normalizer.lowercase", true, &step->lower, e) ||
        get_flag(g, KEY "normalizer.strip_accents", step->lower, &step->accents, e))
        return -1;
    step->clean = step->chinese = true;
    space->chars = CHARS_SPACE;
    space->behaviour = SPLIT_REMOVED;
    punct->chars = CHARS_PUNCT;
    t->model = MODEL_WORDPIECE;
    t->max_word = 100;
    t->word_prefix = (struct tok_str){TOK_SPACE_MARK, 3};
    t->dec = DEC_WORDS;
    t->dec_cleanup = true;
    int32_t head = t->roles[TOK_CLS] >= 0 ? t->roles[TOK_CLS] : t->roles[TOK_BOS];
    int32_t tail = t->roles[TOK_SEP] >= 0 ? t->roles[TOK_SEP] : t->roles[TOK_EOS];
    return tok_set_around(&t->head, &t->head_n, &head, head >= 0, e) ||
                   tok_set_around(&t->tail, &t->tail_n, &tail, tail >= 0, e)
               ? -1
               : 0;
}

/* plamo 2: a unigram model of the text as it is. */
static int from_plamo2(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    if (read_scores(t, g, e))
        return -1;
    t->model = MODEL_UNIGRAM;
    t->from_end = t->byte_fallback = true;
    tok_find_byte_ids(t);
    return read_around(t, g, false, false, e);
}

/* RWKV spells bytes as in C strings. */
static int from_rwkv(struct tokenizer *t, struct err *e)
{
    struct buf *out = &t->files[0];
    size_t total = 1;
    for (int32_t i = 0; i < t->n; i++)
        total += t->pieces[i].n;
    if (!buf_reserve(out, total))
        return err_memory(e, "the vocabulary", total);
    for (int32_t i = 0; i < t->n; i++) {
        const struct tok_str *p = &t->pieces[i];
        size_t from = out->len;
        for (uint32_t k = 0; k < p->n; k++) {
            char c = p->s[k];
            if (c == '\\' && k + 1 < p->n) {
                char name[6] = "<0x", d = p->s[++k];
                c = d == 't' ? '\t' : d == 'n' ? '\n' : d == 'r' ? '\r' : d;
                if (d == 'x' && k + 2 < p->n) {
                    memcpy(name + 3, p->s + k + 1, 2);
                    name[5] = '>';
                    c = (char)tok_byte_name(name, 6);
                    k += 2;
                }
            }
            buf_char(out, c);
        }
        t->bytes[i] = (struct tok_str){out->data + from, (uint32_t)(out->len - from)};
    }
    t->model = MODEL_GREEDY;
    return 0;
}

int tok_from_gguf(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    static const struct {
        const char *name;
        int32_t bos, eos, unk, sep, pad, mask;
    } kinds[] = {{"gpt2", 11, 11, -1, -1, -1, -1},    {"llama", 1, 2, 0, -1, -1, -1},
                 {"bert", 101, -1, 100, 102, 0, 103}, {"t5", -1, 1, 2, -1, 0, -1},
                 {"rwkv", -1, -1, -1, -1, -1, -1},    {"gemma4", -1, -1, -1, -1, -1, -1},
                 {"plamo2", 1, 2, 0, -1, -1, -1},     {"whitespace", 11, 11, -1, -1, -1, -1}};
    struct gguf_str model;
    int got = gguf_get_str(g, KEY "model", &model, e);
    if (got <= 0)
        return got < 0 ? -1 : err_set(e, ERR_DATA, "the file has no " KEY "model: it carries no tokenizer");
    size_t k = 0, count = sizeof kinds / sizeof *kinds;
    while (k < count && !is(&model, kinds[k].name))
        k++;
    if (k == count)
        return err_set(e, ERR_DATA, "the tokenizer model '%s' is not known", log_safe_n(model.s, model.n));
    snprintf(t->kind, sizeof t->kind, "%s", kinds[k].name);
    if (read_tokens(t, g, e) || read_attrs(t, g, e))
        return -1;
    const int32_t usual[][2] = {{TOK_BOS, kinds[k].bos}, {TOK_EOS, kinds[k].eos}, {TOK_UNK, kinds[k].unk},
                                {TOK_SEP, kinds[k].sep}, {TOK_PAD, kinds[k].pad}, {TOK_MASK, kinds[k].mask}};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        t->roles[usual[i][0]] = usual[i][1] < t->n ? usual[i][1] : -1;
    if (read_roles(t, g, e) || tok_build_map(t, e))
        return -1;
    mark_control(t);
    int rc = is(&model, "llama")    ? from_spm(t, g, e)
             : is(&model, "t5")     ? from_unigram(t, g, e)
             : is(&model, "bert")   ? from_bert(t, g, e)
             : is(&model, "rwkv")   ? from_rwkv(t, e)
             : is(&model, "plamo2") ? from_plamo2(t, g, e)
                                    : from_bpe(t, g, is(&model, "gemma4"), e);
    if (rc || tok_add_by_attr(t, e))
        return -1;
    strip_flags(t, g);
    return 0;
}
