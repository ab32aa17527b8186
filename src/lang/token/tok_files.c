/* Tokenizers from the other files that models come with: SentencePiece's tokenizer.model, vocab.json with
 * merges.txt, vocab.txt, tiktoken's ranks, tekken.json, plamo's tokenizer.jsonl. */
#include "lang/token/tok.h"

#include "base/base64.h"
#include "base/cursor.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define FILE_MAX ((size_t)512 << 20)

static int read_file(struct tokenizer *t, const char *path, struct err *e)
{
    t->files[0].max = FILE_MAX;
    return file_read(path, &t->files[0], e);
}

/* Byte-level BPE over the pattern of GPT-2, as a bare vocab.json means it. */
static int gpt2_steps(struct tokenizer *t, struct err *e)
{
    struct pre_step *step = tok_pre_add(t, PRE_SCAN, e);
    if (!step)
        return -1;
    step->pass = &scan_gpt2;
    t->model = MODEL_BPE;
    t->byte_level = t->dec_alphabet = true;
    snprintf(t->kind, sizeof t->kind, "gpt2");
    snprintf(t->pre_name, sizeof t->pre_name, "gpt-2");
    return 0;
}

static int read_merge_lines(struct tokenizer *t, const struct buf *b, struct err *e)
{
    struct tok_feed feed = {.t = t};
    for (size_t at = 0; at < b->len;) {
        const char *s = b->data + at, *end = memchr(s, '\n', b->len - at);
        size_t next = end ? (size_t)(end - b->data) + 1 : b->len, n = next - at;
        while (n && (s[n - 1] == '\n' || s[n - 1] == '\r'))
            n--;
        const char *cut = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
        at = next;
        if (!n || (n > 8 && !memcmp(s, "#version", 8)))
            continue;
        if (!cut)
            return err_set(e, ERR_DATA, "the merges have a line that is not two pieces: '%s'",
                           log_safe_n(s, n));
        tok_feed_merge(&feed, s, (size_t)(cut - s), cut + 1, n - (size_t)(cut - s) - 1);
    }
    tok_feed_end(&feed);
    return 0;
}

int tok_from_vocab_merges(struct tokenizer *t, const char *vocab, const char *merges, struct err *e)
{
    struct tj *j = &t->json;
    int64_t most = -1;
    if (tj_open(j, vocab, e) || read_file(t, merges, e) || !tj_expect(j, &j->nodes[0], JSONREAD_IS_OBJECT))
        return -1;
    for (const struct tj_node *m = tj_first(j, &j->nodes[0]); m; m = tj_next(j, m)) {
        int32_t id = tok_json_id(j, m);
        if (id < 0)
            return -1;
        most = id > most ? id : most;
    }
    if (tok_alloc_vocab(t, most + 1, e))
        return -1;
    for (const struct tj_node *m = tj_first(j, &j->nodes[0]); m; m = tj_next(j, m))
        t->pieces[(int32_t)m->number] = (struct tok_str){m->key, m->key_n};
    if (tok_build_map(t, e) || gpt2_steps(t, e))
        return -1;
    tok_find_byte_ids(t);
    int32_t end = tokenizer_find(t, "<|endoftext|>", 13);
    if (end >= 0) {
        t->roles[TOK_EOS] = end;
        t->attr[end] = TOK_CONTROL;
        struct added_token a = {.text = t->pieces[end], .id = end, .special = true};
        if (tok_add_added(t, &a, e))
            return -1;
    }
    size_t lines = 0;
    for (size_t i = 0; i < t->files[0].len; i++)
        lines += t->files[0].data[i] == '\n';
    return tok_merges_open(t, lines + 1, e) || read_merge_lines(t, &t->files[0], e) ? -1 : 0;
}

/* ---- vocab.txt of BERT ---- */

int tok_from_wordlist(struct tokenizer *t, const char *path, struct err *e)
{
    static const struct {
        const char *text;
        enum tok_role role;
    } special[] = {
        {"[PAD]", TOK_PAD}, {"[UNK]", TOK_UNK}, {"[CLS]", TOK_CLS}, {"[SEP]", TOK_SEP}, {"[MASK]", TOK_MASK}};
    if (read_file(t, path, e))
        return -1;
    const struct buf *b = &t->files[0];
    int32_t count = 0, i = 0;
    for (size_t at = 0; at < b->len; at++)
        count += b->data[at] == '\n' || at + 1 == b->len;
    if (tok_alloc_vocab(t, count, e))
        return -1;
    for (size_t at = 0; at < b->len && i < count; i++) {
        const char *end = memchr(b->data + at, '\n', b->len - at);
        size_t next = end ? (size_t)(end - b->data) + 1 : b->len, n = next - at;
        while (n && strchr(" \t\r\n", b->data[at + n - 1]))
            n--;
        t->pieces[i] = (struct tok_str){b->data + at, (uint32_t)n};
        at = next;
    }
    if (tok_build_map(t, e))
        return -1;
    for (size_t k = 0; k < sizeof special / sizeof *special; k++) {
        int32_t id = tokenizer_find(t, special[k].text, strlen(special[k].text));
        t->roles[special[k].role] = id;
        if (id >= 0)
            t->attr[id] = TOK_CONTROL;
    }
    struct norm_step *norm = tok_norm_add(t, NORM_BERT, e);
    struct pre_step *space = tok_pre_add(t, PRE_CHARS, e), *punct = tok_pre_add(t, PRE_CHARS, e);
    if (!norm || !space || !punct)
        return -1;
    norm->clean = norm->chinese = norm->lower = norm->accents = true;
    space->chars = CHARS_SPACE;
    space->behaviour = SPLIT_REMOVED;
    punct->chars = CHARS_PUNCT;
    t->model = MODEL_WORDPIECE;
    t->max_word = 100;
    t->cont_prefix = t->joiner = (struct tok_str){"##", 2};
    t->dec = DEC_WORDS;
    t->dec_cleanup = true;
    snprintf(t->kind, sizeof t->kind, "bert");
    return tok_add_by_attr(t, e) ||
                   tok_set_around(&t->head, &t->head_n, &t->roles[TOK_CLS], t->roles[TOK_CLS] >= 0, e) ||
                   tok_set_around(&t->tail, &t->tail_n, &t->roles[TOK_SEP], t->roles[TOK_SEP] >= 0, e)
               ? -1
               : 0;
}

/* ---- tiktoken ---- */

/* Ranks by id; the pattern is not in the file: the number of ranks identifies the family. */
static int ranked(struct tokenizer *t, const char *pre, struct err *e)
{
    const struct scan_model *m = scan_for_name(pre, strlen(pre));
    struct pre_step *step = tok_pre_add(t, PRE_SCAN, e);
    if (!step)
        return -1;
    step->pass = m->passes[0];
    if (m->flags & SCAN_NFC && !tok_norm_add(t, NORM_FORM, e)) /* NFC, the first of the forms */
        return -1;
    t->model = MODEL_RANKED;
    t->byte_level = t->whole_words = true;
    snprintf(t->kind, sizeof t->kind, "tiktoken");
    snprintf(t->pre_name, sizeof t->pre_name, "%s", pre);
    t->rank = mem_alloc((size_t)t->n, sizeof *t->rank);
    if (!t->rank)
        return err_memory(e, "the ranks", (unsigned long long)t->n * sizeof *t->rank);
    for (int32_t i = 0; i < t->n; i++) {
        t->rank[i] = t->attr[i] == TOK_NORMAL && t->pieces[i].n ? (uint32_t)i : UINT32_MAX;
        if (!t->bytes[i].s)
            t->bytes[i] = t->pieces[i].s ? t->pieces[i] : (struct tok_str){"", 0};
    }
    if (tok_build_map(t, e))
        return -1;
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        t->byte_id[b] = tokenizer_find(t, &c, 1);
    }
    return 0;
}

struct rerank_line {
    size_t at, n; /* its bytes in files[1] */
    int32_t id;
};

static int rerank_lines(struct tokenizer *t, struct rerank_line *lines, size_t most, size_t *count,
                        struct err *e)
{
    const struct buf *b = &t->files[0];
    for (size_t at = 0; at < b->len && *count < most;) {
        const char *end = memchr(b->data + at, '\n', b->len - at);
        size_t next = end ? (size_t)(end - b->data) + 1 : b->len, n = next - at;
        while (n && (b->data[at + n - 1] == '\n' || b->data[at + n - 1] == '\r'))
            n--;
        const char *cut = n ? memchr(b->data + at, ' ', n) : NULL;
        uint64_t id;
        struct rerank_line *line = &lines[*count];
        line->at = t->files[1].len;
        if (n && (!cut || !base64_read(&t->files[1], b->data + at, (size_t)(cut - b->data) - at) ||
                  !num_u64(cut + 1, n - ((size_t)(cut - b->data) - at) - 1, 1 << 22, &id)))
            return err_set(e, ERR_DATA, "line %zu is not \"base64 rank\"", *count + 1);
        if (n) {
            line->n = t->files[1].len - line->at;
            line->id = (int32_t)id;
            (*count)++;
        }
        at = next;
    }
    return 0;
}

int tok_from_tiktoken(struct tokenizer *t, const char *path, struct err *e)
{
    if (read_file(t, path, e))
        return -1;
    size_t most = 1, count = 0;
    int32_t top = -1;
    for (size_t i = 0; i < t->files[0].len; i++)
        most += t->files[0].data[i] == '\n';
    struct rerank_line *lines = mem_zalloc(most, sizeof *lines);
    if (!lines)
        return err_memory(e, "the ranks", most * sizeof *lines);
    int rc = rerank_lines(t, lines, most, &count, e);
    for (size_t i = 0; i < count; i++)
        top = lines[i].id > top ? lines[i].id : top;
    if (!rc)
        rc = tok_alloc_vocab(t, (int64_t)top + 1, e);
    for (size_t i = 0; !rc && i < count; i++)
        t->pieces[lines[i].id] = (struct tok_str){t->files[1].data + lines[i].at, (uint32_t)lines[i].n};
    mem_free(lines);
    if (rc)
        return -1;
    static const struct {
        int32_t ranks;
        const char *pre;
    } families[] = {{50281, "gpt-2"},    {128000, "llama-bpe"}, {151643, "qwen2"},
                    {163584, "kimi-k2"}, {200100, "gpt-4o"},    {INT32_MAX, "qwen35"}};
    size_t k = 0;
    while (families[k].ranks < top + 1)
        k++;
    return ranked(t, families[k].pre, e);
}

/* ---- tekken ---- */

/* The first tokens are reserved for these; special_tokens may say otherwise. */
static void tekken_reserved(struct tokenizer *t, int32_t count)
{
    static const char *const usual[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "[IMG]",
                                        "<pad>",
                                        "[IMG_BREAK]",
                                        "[IMG_END]",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CONTENT]"};
    struct buf *bytes = &t->files[1];
    for (int32_t id = 0; id < count; id++) {
        size_t from = bytes->len;
        if ((size_t)id < sizeof usual / sizeof *usual)
            buf_str(bytes, usual[id]);
        else
            buf_printf(bytes, "<SPECIAL_%d>", id);
        t->pieces[id] = (struct tok_str){bytes->data + from, (uint32_t)(bytes->len - from)};
        t->attr[id] = TOK_CONTROL;
    }
}

static int tekken_vocab(struct tokenizer *t, const struct tj *j, const struct tj_node *vocab, int32_t first,
                        struct err *e)
{
    struct buf *bytes = &t->files[1];
    size_t room = 64 * (size_t)first;
    for (const struct tj_node *m = tj_first(j, vocab); m; m = tj_next(j, m))
        room += tok_json_str(j, m, "token_bytes").n;
    bytes->max = FILE_MAX;
    if (e->code)
        return -1;
    if (!buf_reserve(bytes, room))
        return err_memory(e, "the vocabulary", room);
    int32_t id = first;
    for (const struct tj_node *m = tj_first(j, vocab); m && id < t->n; m = tj_next(j, m), id++) {
        const struct tj_node *b = tj_need(j, m, "token_bytes", JSONREAD_IS_STRING);
        size_t from = bytes->len;
        if (!b || !base64_read(bytes, b->s, b->n))
            return err_set(e, ERR_DATA, "token %d has no token_bytes in base64", id);
        t->pieces[id] = (struct tok_str){bytes->data + from, (uint32_t)(bytes->len - from)};
    }
    tekken_reserved(t, first);
    return 0;
}

static int tekken_special(struct tokenizer *t, const struct tj *j, const struct tj_node *list, int32_t first,
                          struct err *e)
{
    for (const struct tj_node *m = tj_first(j, list); m && !e->code; m = tj_next(j, m)) {
        const struct tj_node *rank = tj_get(j, m, "rank", JSONREAD_IS_INT),
                             *text = tj_get(j, m, "token_str?", JSONREAD_IS_STRING);
        if (rank && text && rank->number >= 0 && rank->number < first)
            t->pieces[(int32_t)rank->number] = (struct tok_str){text->s, text->n};
    }
    return e->code ? -1 : 0;
}

static int tekken_pattern(struct tokenizer *t, const struct tj_node *pattern, struct err *e)
{
    if (!pattern || (t->pre[0].pass = scan_for_regex(pattern->s, pattern->n)))
        return 0;
    t->pre[0].kind = PRE_REGEX;
    return regex_open(&t->pre[0].regex, pattern->s, pattern->n, e);
}

int tok_from_tekken(struct tokenizer *t, const char *path, struct err *e)
{
    struct tj *j = &t->json;
    if (tj_open(j, path, e))
        return -1;
    const struct tj_node *root = &j->nodes[0], *config = tj_need(j, root, "config", JSONREAD_IS_OBJECT),
                         *vocab = tj_need(j, root, "vocab", JSONREAD_IS_ARRAY),
                         *special = tj_get(j, root, "special_tokens?", JSONREAD_IS_ARRAY);
    const struct tj_node *pattern = tj_get(j, config, "pattern?", JSONREAD_IS_STRING);
    int64_t size = tj_whole(j, tj_need(j, config, "default_vocab_size", JSONREAD_IS_INT), 2, TOK_ID_MOST);
    int64_t first =
        tj_whole(j, tj_need(j, config, "default_num_special_tokens", JSONREAD_IS_INT), 1, size - 1);
    if (e->code)
        return -1;
    if (tok_alloc_vocab(t, size, e) || tekken_vocab(t, j, vocab, (int32_t)first, e) ||
        tekken_special(t, j, special, (int32_t)first, e) || ranked(t, "tekken", e) || tok_add_by_attr(t, e) ||
        tekken_pattern(t, pattern, e))
        return -1;
    t->roles[TOK_UNK] = -1;
    t->roles[TOK_BOS] = tokenizer_find(t, "<s>", 3);
    t->roles[TOK_EOS] = tokenizer_find(t, "</s>", 4);
    t->roles[TOK_PAD] = tokenizer_find(t, "<pad>", 5);
    return tok_set_around(&t->head, &t->head_n, &t->roles[TOK_BOS], t->roles[TOK_BOS] >= 0, e);
}

/* ---- SentencePiece ---- */

/* One field of a protobuf message: its number, and a varint or the bytes. */
struct tok_field {
    uint32_t number;
    uint64_t v;
    const uint8_t *data;
    size_t n;
};

static uint64_t varint(struct cursor *c)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t b = cursor_u8(c);
        v |= (uint64_t)(b & 127) << shift;
        if (!(b & 128))
            return v;
    }
    c->failed = true;
    return 0;
}

static bool next_field(struct cursor *c, struct tok_field *f)
{
    if (c->failed || !cursor_left(c))
        return false;
    uint64_t tag = varint(c);
    *f = (struct tok_field){.number = (uint32_t)(tag >> 3)};
    switch (tag & 7) {
    case 0:
        f->v = varint(c);
        break;
    case 1:
        f->v = cursor_u64(c);
        break;
    case 2:
        f->n = varint(c);
        f->data = cursor_bytes(c, f->n);
        break;
    case 5:
        f->v = cursor_u32(c);
        break;
    default:
        c->failed = true;
    }
    return !c->failed;
}

struct spm {
    int64_t type, unk, bos, eos, pad;
    bool bytes, suffix, dummy, squeeze, escape;
    const uint8_t *map;
    size_t map_n;
};

static void read_spec(struct spm *m, const struct tok_field *spec)
{
    struct cursor c = {.data = spec->data, .size = spec->n};
    struct tok_field f;
    while (next_field(&c, &f)) {
        if (spec->number == 3 && f.number == 2)
            m->map = f.data, m->map_n = f.n;
        else if (spec->number == 3)
            *(f.number == 3   ? &m->dummy
              : f.number == 4 ? &m->squeeze
              : f.number == 5 ? &m->escape
                              : &(bool){0}) = f.v;
        else if (f.number == 24)
            m->suffix = f.v;
        else if (f.number == 35)
            m->bytes = f.v;
        else
            *(f.number == 3    ? &m->type
              : f.number == 40 ? &m->unk
              : f.number == 41 ? &m->bos
              : f.number == 42 ? &m->eos
              : f.number == 43 ? &m->pad
                               : &(int64_t){0}) = (int64_t)(int32_t)f.v;
    }
}

static void read_piece(struct tokenizer *t, int32_t id, const struct tok_field *piece)
{
    static const enum tok_attr attrs[] = {TOK_NORMAL, TOK_NORMAL, TOK_UNKNOWN, TOK_CONTROL,
                                          TOK_USER,   TOK_UNUSED, TOK_BYTE};
    struct cursor c = {.data = piece->data, .size = piece->n};
    struct tok_field f;
    while (next_field(&c, &f)) {
        if (f.number == 1 && f.data) {
            t->pieces[id] = (struct tok_str){(const char *)f.data, (uint32_t)f.n};
        } else if (f.number == 2) {
            uint32_t bits = (uint32_t)f.v;
            float score;
            memcpy(&score, &bits, sizeof score);
            t->score[id] = (double)score;
        } else if (f.number == 3) {
            t->attr[id] = f.v <= 6 ? (uint8_t)attrs[f.v] : TOK_NORMAL;
        }
    }
}

static int spm_steps(struct tokenizer *t, const struct spm *m, struct err *e)
{
    struct norm_step *norm = tok_norm_add(t, NORM_SPM, e);
    if (!norm || tok_charsmap(&norm->map, m->map, m->map_n, e))
        return -1;
    norm->first_only = true;
    norm->prefix = m->dummy && !m->suffix;
    norm->suffix = m->dummy && m->suffix;
    norm->squeeze = m->squeeze;
    norm->escape = m->escape;
    t->dec_mark = (struct tok_str){TOK_SPACE_MARK, 3};
    t->dec_strip_first = norm->prefix;
    t->byte_fallback = m->bytes;
    tok_find_byte_ids(t);
    if (m->type == 2) {
        snprintf(t->kind, sizeof t->kind, "llama");
        return tok_rank_by_score(t, e);
    }
    if (m->type != 1)
        return err_set(e, ERR_DATA, "the SentencePiece model is neither BPE nor unigram");
    snprintf(t->kind, sizeof t->kind, "t5");
    t->model = MODEL_UNIGRAM;
    struct pre_step *pre = tok_pre_add(t, PRE_LITERAL, e);
    if (!pre)
        return -1;
    pre->literal = t->dec_mark;
    pre->behaviour = m->suffix ? SPLIT_PREVIOUS : SPLIT_NEXT;
    return 0;
}

int tok_from_spm(struct tokenizer *t, const char *path, struct err *e)
{
    if (read_file(t, path, e))
        return -1;
    const struct buf *b = &t->files[0];
    struct spm m = {
        .type = 1, .unk = 0, .bos = 1, .eos = 2, .pad = -1, .dummy = true, .squeeze = true, .escape = true};
    struct cursor c = {.data = (const uint8_t *)b->data, .size = b->len};
    struct tok_field f;
    int64_t count = 0;
    while (next_field(&c, &f)) {
        count += f.number == 1;
        if (f.number == 2 || f.number == 3)
            read_spec(&m, &f);
    }
    if ((c.failed || !count) && b->len && memchr(b->data, ' ', b->len < 64 ? b->len : 64)) {
        buf_free(&t->files[0]); /* tiktoken's ranks under the same name */
        return tok_from_tiktoken(t, path, e);
    }
    if (c.failed)
        return err_set(e, ERR_DATA, "the file is damaged, or no SentencePiece model");
    if (tok_alloc_vocab(t, count, e))
        return -1;
    t->score = mem_zalloc((size_t)t->n, sizeof *t->score);
    if (!t->score)
        return err_memory(e, "the scores", (unsigned long long)t->n * sizeof *t->score);
    c = (struct cursor){.data = (const uint8_t *)b->data, .size = b->len};
    for (int32_t id = 0; next_field(&c, &f);)
        if (f.number == 1 && id < t->n)
            read_piece(t, id++, &f);
    const int64_t roles[][2] = {{TOK_UNK, m.unk}, {TOK_BOS, m.bos}, {TOK_EOS, m.eos}, {TOK_PAD, m.pad}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        t->roles[roles[i][0]] = roles[i][1] >= 0 && roles[i][1] < t->n ? (int32_t)roles[i][1] : -1;
    return tok_build_map(t, e) || spm_steps(t, &m, e) || tok_add_by_attr(t, e) ? -1 : 0;
}

/* ---- plamo ---- */

static uint8_t line_attr(const char *type, const char *text)
{
    static const struct {
        const char *name;
        enum tok_attr attr;
    } known[] = {{"UNKNOWN", TOK_UNKNOWN}, {"CONTROL", TOK_CONTROL}, {"BYTE", TOK_BYTE}};
    for (size_t i = 0; type && i < sizeof known / sizeof *known; i++)
        if (!strcmp(type, known[i].name))
            return (uint8_t)known[i].attr;
    const size_t n = strlen(text);
    const bool mark = n > 10 && !strncmp(text, "<|plamo:", 8) && !strcmp(text + n - 2, "|>");
    return (uint8_t)(mark ? TOK_CONTROL : TOK_NORMAL);
}

/* A line: [text, score, type, ...]. Its text goes to files[1]. */
static int read_line(struct tokenizer *t, int32_t id, const char *s, size_t n, struct err *e)
{
    json_error_t bad;
    json_t *line = json_loadb(s, n, JSON_ALLOW_NUL, &bad), *text = json_array_get(line, 0),
           *score = json_array_get(line, 1);
    if (!json_is_string(text) || !json_is_number(score)) {
        json_decref(line);
        return err_set(e, ERR_DATA, "line %d is not [text, score, type]", id + 1);
    }
    t->attr[id] = line_attr(json_string_value(json_array_get(line, 2)), json_string_value(text));
    t->score[id] = json_number_value(score);
    t->pieces[id].n = (uint32_t)json_string_length(text);
    buf_add(&t->files[1], json_string_value(text), json_string_length(text));
    json_decref(line);
    if (t->attr[id] == TOK_BYTE &&
        tok_byte_name(t->files[1].data + t->files[1].len - t->pieces[id].n, t->pieces[id].n) < 0)
        return err_set(e, ERR_DATA, "line %d has the type BYTE, but not a text of the form <0xNN>", id + 1);
    return t->files[1].failed ? err_memory(e, "the vocabulary", t->files[1].len) : 0;
}

int tok_from_lines(struct tokenizer *t, const char *path, struct err *e)
{
    if (read_file(t, path, e))
        return -1;
    const struct buf *b = &t->files[0];
    int64_t count = b->len && b->data[b->len - 1] != '\n';
    for (size_t i = 0; i < b->len; i++)
        count += b->data[i] == '\n';
    t->files[1].max = FILE_MAX;
    if (tok_alloc_vocab(t, count, e))
        return -1;
    t->score = mem_zalloc((size_t)t->n, sizeof *t->score);
    if (!t->score)
        return err_memory(e, "the scores", (unsigned long long)t->n * sizeof *t->score);
    size_t at = 0;
    for (int32_t i = 0; i < t->n; i++) {
        const char *end = memchr(b->data + at, '\n', b->len - at);
        const size_t n = end ? (size_t)(end - b->data) - at : b->len - at;
        if (read_line(t, i, b->data + at, n, e))
            return -1;
        at += n + 1;
    }
    at = 0;
    for (int32_t i = 0; i < t->n; at += t->pieces[i++].n)
        t->pieces[i].s = t->files[1].data + at;
    snprintf(t->kind, sizeof t->kind, "plamo2");
    t->model = MODEL_UNIGRAM;
    t->from_end = t->byte_fallback = true;
    if (tok_build_map(t, e))
        return -1;
    tok_find_byte_ids(t);
    static const struct {
        enum tok_role role;
        const char *text;
    } roles[] = {{TOK_UNK, "<|plamo:unk|>"},
                 {TOK_BOS, "<|plamo:bos|>"},
                 {TOK_EOS, "<|plamo:eos|>"},
                 {TOK_PAD, "<|plamo:pad|>"},
                 {TOK_EOT, "<|plamo:op|>"}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        t->roles[roles[i].role] = tokenizer_find(t, roles[i].text, strlen(roles[i].text));
    return tok_add_by_attr(t, e);
}
