#define _GNU_SOURCE
/* What all sources of a tokenizer share: the vocabulary's arrays, the bytes that each token stands for,
 * the tokens that end a generation, and the tokens that are cut out of a text before anything else. */
#include "lang/token/tok.h"

#include "base/log.h"
#include "base/utf8.h"
#include "lang/token/unicode.h"

#include <float.h>
#include <string.h>

#define VOCAB_MOST (4 << 20)

/* ---- the byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and up ---- */

static bool is_plain(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

uint32_t tok_byte_char(unsigned char b)
{
    if (is_plain(b))
        return b;
    return b <= ' ' ? 0x100u + b : b < 0xa1 ? 0x121u + (b - 0x7fu) : 0x143u;
}

int tok_char_byte(uint32_t cp)
{
    if (cp < 0x100)
        return is_plain(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}

int tok_byte_name(const char *s, size_t n)
{
    int v = 0;
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        int d = s[i] >= '0' && s[i] <= '9'   ? s[i] - '0'
                : s[i] >= 'A' && s[i] <= 'F' ? s[i] - 'A' + 10
                : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10
                                             : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* ---- vocabulary ---- */

int tok_alloc_vocab(struct tokenizer *t, int64_t n, struct err *e)
{
    if (n < 1 || n > VOCAB_MOST)
        return err_set(e, ERR_DATA, "a vocabulary of %lld tokens: 1 to %d are allowed", (long long)n,
                       VOCAB_MOST);
    t->n = (int32_t)n;
    t->pieces = mem_zalloc((size_t)n, sizeof *t->pieces);
    t->bytes = mem_zalloc((size_t)n, sizeof *t->bytes);
    t->attr = mem_zalloc((size_t)n, sizeof *t->attr);
    t->eog = mem_zalloc((size_t)n, sizeof *t->eog);
    t->outside = mem_zalloc((size_t)n, sizeof *t->outside);
    if (!t->pieces || !t->bytes || !t->attr || !t->eog || !t->outside)
        return err_memory(e, "the vocabulary", (unsigned long long)n * 40);
    for (int i = 0; i < TOK_ROLES; i++)
        t->roles[i] = -1;
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    return 0;
}

int tok_build_map(struct tokenizer *t, struct err *e)
{
    if (tok_map_open(&t->by_piece, (size_t)t->n, e))
        return -1;
    for (int32_t i = 0; i < t->n; i++) {
        if (i + 16 < t->n && t->pieces[i + 16].n)
            tok_map_prefetch(&t->by_piece, t->pieces, &t->pieces[i + 16], 0);
        if (t->pieces[i].n)
            tok_map_add(&t->by_piece, t->pieces, i);
    }
    return 0;
}

void tok_find_byte_ids(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        size_t n;
        if (t->byte_level) {
            n = utf8_put(tok_byte_char((unsigned char)b), text);
        } else {
            static const char hex[] = "0123456789ABCDEF";
            memcpy(text, "<0x", 3);
            text[3] = hex[b >> 4];
            text[4] = hex[b & 15];
            text[5] = '>';
            n = 6;
        }
        t->byte_id[b] = tokenizer_find(t, text, n);
    }
}

struct norm_step *tok_norm_add(struct tokenizer *t, enum tok_norm_kind kind, struct err *e)
{
    if (t->norm_n == TOK_STEPS) {
        err_set(e, ERR_DATA, "the tokenizer has more than %d normalisers", TOK_STEPS);
        return NULL;
    }
    t->norm[t->norm_n].kind = kind;
    return &t->norm[t->norm_n++];
}

struct pre_step *tok_pre_add(struct tokenizer *t, enum pre_kind kind, struct err *e)
{
    if (t->pre_n == TOK_STEPS) {
        err_set(e, ERR_DATA, "the tokenizer has more than %d pre-tokenizers", TOK_STEPS);
        return NULL;
    }
    t->pre[t->pre_n].kind = kind;
    return &t->pre[t->pre_n++];
}

int tok_set_around(int32_t **list, size_t *n, const int32_t *ids, size_t count, struct err *e)
{
    int32_t *copy = mem_alloc(count ? count : 1, sizeof *copy);
    if (!copy)
        return err_memory(e, "the tokenizer", count * sizeof *copy);
    if (count)
        memcpy(copy, ids, count * sizeof *copy);
    mem_free(*list);
    *list = copy;
    *n = count;
    return 0;
}

/* A rank that falls as the score rises, so that the least rank is the best score. */
static uint32_t tok_rank_of(float score)
{
    uint32_t u;
    memcpy(&u, &score, sizeof u);
    u = ~(u >> 31 ? ~u : u | 1u << 31);
    return u < UINT32_MAX ? u : u - 1;
}

int tok_rank_by_score(struct tokenizer *t, struct err *e)
{
    t->model = MODEL_RANKED;
    t->rank = mem_alloc((size_t)t->n, sizeof *t->rank);
    if (!t->rank)
        return err_memory(e, "the ranks", (unsigned long long)t->n * sizeof *t->rank);
    for (int32_t i = 0; i < t->n; i++) {
        bool text = t->attr[i] == TOK_NORMAL || t->attr[i] == TOK_USER || t->attr[i] == TOK_UNUSED;
        t->rank[i] = text ? tok_rank_of((float)t->score[i]) : UINT32_MAX;
    }
    return 0;
}

/* ---- bytes of each token ---- */

/* The bytes behind a piece in the alphabet, which are never more than the piece has. */
static bool from_alphabet(struct buf *out, const struct tok_str *p)
{
    char *to = buf_reserve(out, p->n);
    size_t n = 0;
    for (size_t at = 0, len; to && at < p->n; at += len) {
        uint32_t cp = (unsigned char)p->s[at];
        len = cp < 0x80 ? 1 : utf8_decode(p->s + at, p->n - at, &cp);
        int b = len ? tok_char_byte(cp) : -1;
        if (b < 0)
            return false;
        to[n++] = (char)b;
    }
    out->len += n;
    return true;
}

static void without_marks(struct buf *out, const struct tokenizer *t, const struct tok_str *p)
{
    size_t n = p->n, at = 0;
    bool space = t->dec_suffix.n && n >= t->dec_suffix.n &&
                 !memcmp(p->s + n - t->dec_suffix.n, t->dec_suffix.s, t->dec_suffix.n);
    if (space)
        n -= t->dec_suffix.n;
    while (at < n) {
        const char *hit = t->dec_mark.n ? memmem(p->s + at, n - at, t->dec_mark.s, t->dec_mark.n) : NULL;
        size_t end = hit ? (size_t)(hit - p->s) : n;
        buf_add(out, p->s + at, end - at);
        if (hit)
            buf_char(out, ' ');
        at = hit ? end + t->dec_mark.n : n;
    }
    if (space)
        buf_char(out, ' ');
}

/* Offsets first (the buffer moves while it grows), pointers at the end. */
static int make_bytes(struct tokenizer *t, struct err *e)
{
    bool plain = !t->dec_alphabet && !t->dec_mark.n && !t->dec_suffix.n;
    size_t *at = mem_alloc((size_t)t->n, sizeof *at);
    size_t total = 1;
    for (int32_t i = 0; i < t->n; i++)
        total += t->pieces[i].n;
    if (!at || !buf_reserve(&t->strings, total)) {
        mem_free(at);
        return err_memory(e, "the vocabulary", total + (unsigned long long)t->n * sizeof *at);
    }
    for (int32_t i = 0; i < t->n; i++) {
        const struct tok_str *p = &t->pieces[i];
        if (t->bytes[i].s)
            continue; /* the source gave them */
        at[i] = t->strings.len;
        int byte = t->attr[i] == TOK_BYTE ? tok_byte_name(p->s, p->n) : -1;
        if (byte >= 0)
            buf_char(&t->strings, (char)byte);
        else if (plain || t->attr[i] == TOK_CONTROL || t->attr[i] == TOK_USER || t->attr[i] == TOK_UNKNOWN)
            buf_add(&t->strings, p->s, p->n);
        else if (!t->dec_alphabet)
            without_marks(&t->strings, t, p);
        else if (!from_alphabet(&t->strings, p))
            buf_add(&t->strings, p->s, p->n);
        t->bytes[i].n = (uint32_t)(t->strings.len - at[i]);
    }
    buf_char(&t->strings, 0);
    for (int32_t i = 0; i < t->n; i++)
        if (!t->bytes[i].s)
            t->bytes[i].s = t->strings.data + at[i];
    mem_free(at);
    return t->strings.failed ? err_memory(e, "the vocabulary", t->strings.len) : 0;
}

/* ---- ends of a generation ---- */

static void find_eog(struct tokenizer *t)
{
    static const char *const names[] = {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\xef\xbd\x9c"
        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
        "[e~[",
    };
    static const char *const eot[] = {"<|eot_id|>",    "<|im_end|>",    "<|end|>",
                                      "<end_of_turn>", "<turn|>",       "[EOT]",
                                      "<EOT>",         "<|endoftext|>", "<|end_of_text|>"};
#define FIND(text) tokenizer_find(t, text, strlen(text))
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int32_t id = FIND(names[i]);
        if (id >= 0 && t->attr[id] == TOK_CONTROL)
            t->eog[id] = true;
    }
    for (size_t i = 0; t->roles[TOK_EOT] < 0 && i < sizeof eot / sizeof *eot; i++)
        t->roles[TOK_EOT] = FIND(eot[i]);
    if (t->roles[TOK_EOM] < 0)
        t->roles[TOK_EOM] = FIND("<|eom_id|>");
    /* in the harmony and solar formats <|end|> ends a message, not a turn */
    int32_t end = FIND("<|end|>");
    bool call = FIND("<|call|>") >= 0 || FIND("<|calls|>") >= 0;
    if (end >= 0 && call && (FIND("<|return|>") >= 0 || FIND("<|flush|>") >= 0))
        t->eog[end] = false;
    int32_t s = FIND("</s>");
    if (s >= 0 && FIND("<|tool_response>") >= 0)
        t->eog[s] = false;
    for (int role = TOK_EOS; role <= TOK_EOM; role++)
        if (t->roles[role] >= 0 && t->roles[role] != end)
            t->eog[t->roles[role]] = true;
    if (t->roles[TOK_EOS] >= 0)
        t->eog[t->roles[TOK_EOS]] = true;
#undef FIND
}

/* Fill in the middle: the families' names of these tokens, for files that do not say. The last three also end
 * the output. */
static void find_middle(struct tokenizer *t)
{
    static const char *const names[][8] = {
        {"<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<|code_prefix|>", "<PRE>", "\xe2\x96\x81<PRE>",
         "<\xef\xbd\x9c"
         "fim\xe2\x96\x81"
         "begin\xef\xbd\x9c>"},
        {"<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<|code_suffix|>", "<SUF>", "\xe2\x96\x81<SUF>",
         "<\xef\xbd\x9c"
         "fim\xe2\x96\x81"
         "hole\xef\xbd\x9c>"},
        {"<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<|code_middle|>", "<MID>", "\xe2\x96\x81<MID>",
         "<\xef\xbd\x9c"
         "fim\xe2\x96\x81"
         "end\xef\xbd\x9c>"},
        {"<|fim_pad|>", "<fim_pad>", "<fim-pad>"},
        {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>"},
        {"<|file_sep|>"},
    };
    for (int i = 0; i <= TOK_FIM_SEP - TOK_FIM_PRE; i++) {
        int32_t *id = &t->roles[TOK_FIM_PRE + i];
        for (int k = 0; *id < 0 && k < 8 && names[i][k]; k++)
            *id = tokenizer_find(t, names[i][k], strlen(names[i][k]));
        if (*id >= 0 && i >= TOK_FIM_PAD - TOK_FIM_PRE && t->attr[*id] == TOK_CONTROL)
            t->eog[*id] = true;
    }
}

/* ---- added tokens ---- */

int tok_add_added(struct tokenizer *t, const struct added_token *a, struct err *e)
{
    if (t->added_n == t->added_cap) {
        size_t cap = t->added_cap ? t->added_cap * 2 : 64;
        struct added_token *grown = mem_realloc(t->added, cap, sizeof *grown);
        if (!grown)
            return err_memory(e, "the added tokens", cap * sizeof *grown);
        t->added = grown;
        t->added_cap = cap;
    }
    t->added[t->added_n++] = *a;
    return 0;
}

int tok_add_by_attr(struct tokenizer *t, struct err *e)
{
    for (int32_t i = 0; i < t->n; i++) {
        enum tok_attr attr = (enum tok_attr)t->attr[i];
        if (attr != TOK_CONTROL && attr != TOK_USER && attr != TOK_UNKNOWN)
            continue;
        struct added_token a = {.text = t->pieces[i], .id = i, .special = attr != TOK_USER};
        if (tok_add_added(t, &a, e))
            return -1;
    }
    return 0;
}

static int build_tries(struct tokenizer *t, struct err *e)
{
    if (tok_trie_open(&t->added_raw, 256, e) || tok_trie_open(&t->added_norm, 256, e))
        return -1;
    for (size_t i = 0; i < t->added_n; i++) {
        const struct added_token *a = &t->added[i];
        if (!a->text.n)
            continue;
        struct tok_trie *trie = a->normalized ? &t->added_norm : &t->added_raw;
        if (tok_trie_add(trie, a->text.s, a->text.n, (int32_t)i, e))
            return -1;
        t->added_first[a->normalized][(unsigned char)a->text.s[0]] = true;
    }
    return 0;
}

/* Added tokens that are matched in normalised text are normalised themselves. */
static int normalize_added(struct tokenizer *t, struct err *e)
{
    struct tok_work w = {.t = t, .e = e, .run = regex_run_open()};
    struct buf *out = &t->files[3];
    size_t total = 0;
    for (size_t i = 0; i < t->added_n; i++)
        total += (size_t)t->added[i].text.n * 24 + 64;
    w.total = total / 24;
    w.spare = tok_spare(w.total);
    int rc = w.run && buf_reserve(out, total) ? 0 : err_memory(e, "the added tokens", total);
    for (size_t i = 0; !rc && i < t->added_n; i++) {
        struct added_token *a = &t->added[i];
        const char *s = a->text.s;
        size_t n = a->text.n;
        if (!a->normalized)
            continue;
        rc = tok_norm_apply(&w, t->norm, t->norm_n, &s, &n);
        if (rc || out->len + n > total) /* an absurd expansion: match it as it is written */
            continue;
        a->text = (struct tok_str){out->data + out->len, (uint32_t)n};
        buf_add(out, s, n);
    }
    regex_run_close(w.run);
    buf_free(&w.norm[0]);
    buf_free(&w.norm[1]);
    return rc;
}

/* ---- the end ---- */

/* Characters that a token holds before a mark: between others and a mark words can be cut. */
static int find_glue(struct tokenizer *t, struct err *e)
{
    t->glue = mem_zalloc(8192, 1);
    if (!t->glue)
        return err_memory(e, "a tokenizer", 8192);
    for (int32_t i = 0; i < t->n; i++) {
        const struct tok_str *p = &t->pieces[i];
        uint32_t before = 0x2581;
        if (t->outside[i] || p->n < 4)
            continue;
        for (size_t at = 0, len; at < p->n; at += len) {
            uint32_t cp;
            len = utf8_decode(p->s + at, p->n - at, &cp);
            if (!len)
                break;
            if (cp == 0x2581 && before != 0x2581)
                t->glue[tok_glue(before) >> 3] |= (uint8_t)(1u << (tok_glue(before) & 7));
            before = cp;
        }
    }
    return 0;
}

static int finish_model(struct tokenizer *t, struct err *e)
{
    if (t->byte_level && (t->whole_words || t->model == MODEL_RANKED)) {
        if (tok_map_open(&t->by_bytes, (size_t)t->n, e))
            return -1;
        for (int32_t i = 0; i < t->n; i++)
            if (!t->outside[i] && t->bytes[i].n)
                tok_map_add(&t->by_bytes, t->bytes, i);
    }
    bool bpe = t->model == MODEL_BPE || t->model == MODEL_RANKED;
    bool cut = bpe && !t->byte_level && !t->whole_words && !t->cont_prefix.n && !t->word_suffix.n &&
               tok_model_find(t, TOK_SPACE_MARK, 3) >= 0;
    if (cut && find_glue(t, e))
        return -1;
    if (t->model == MODEL_UNIGRAM || t->model == MODEL_GREEDY) {
        double least = DBL_MAX;
        if (tok_trie_open(&t->trie, (size_t)t->n * 4, e))
            return -1;
        for (int32_t i = 0; i < t->n; i++) {
            const struct tok_str *p = t->model == MODEL_GREEDY ? &t->bytes[i] : &t->pieces[i];
            if (!p->n || t->outside[i] || t->attr[i] == TOK_UNKNOWN)
                continue;
            if (t->score && t->attr[i] == TOK_NORMAL && t->score[i] < least)
                least = t->score[i];
            if (tok_trie_add(&t->trie, p->s, p->n, i, e))
                return -1;
        }
        t->unk_score = least - 10;
    }
    return 0;
}

/* A bound exists where no step drops text and every byte ends in a token (of a byte-level vocabulary, those that have one;
 * of others all that UTF-8 has): none is longer than the longest of the vocabulary. */
static void find_reach(struct tokenizer *t)
{
    bool all =
        t->model != MODEL_WORDPIECE && t->model != MODEL_WORDLEVEL && (t->byte_level || t->byte_fallback);
    for (int b = 0; b < 256 && !t->byte_level; b++)
        all &= t->byte_id[b] >= 0 || b == 0xc0 || b == 0xc1 || b > 0xf4;
    for (int i = 0; i < t->pre_n; i++)
        all &= t->pre[i].behaviour != SPLIT_REMOVED;
    for (int32_t i = 0; all && i < t->n; i++) {
        size_t piece = t->byte_level ? 0 : t->pieces[i].n, bytes = t->bytes[i].n;
        size_t longest = piece > bytes ? piece : bytes;
        t->reach = longest > t->reach ? longest : t->reach;
    }
}

int tok_finish(struct tokenizer *t, struct err *e)
{
    if (t->model == MODEL_WORDPIECE && t->roles[TOK_UNK] < 0)
        return err_set(e, ERR_DATA, "the vocabulary has no unknown token, which WordPiece needs");
    if (t->model == MODEL_UNIGRAM && !t->score)
        return err_set(e, ERR_DATA, "the vocabulary has no scores, which a unigram tokenizer needs");
    if (t->cont_prefix.n > 64 || t->word_suffix.n > 64)
        return err_set(e, ERR_DATA, "the tokenizer's prefix or suffix of sub-words is longer than 64 bytes");
    for (int32_t i = 0; i < t->n; i++)
        t->outside[i] |= t->attr[i] == TOK_CONTROL || t->attr[i] == TOK_BYTE;
    find_eog(t);
    find_middle(t);
    if (make_bytes(t, e) || finish_model(t, e) || normalize_added(t, e) || build_tries(t, e))
        return -1;
    find_reach(t);
    return 0;
}
