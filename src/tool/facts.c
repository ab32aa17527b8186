#define _GNU_SOURCE
#include "tool/facts.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/size.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "format/store.h"
#include "model/hparams.h"

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row for each figure: where it goes, GGUF's key behind "ARCHITECTURE.", and config.json's names for it. */
static const struct facts_row {
    size_t place;
    const char *gguf;
    const char *config[5];
    uint64_t most;
} facts_rows[] = {
    {offsetof(struct facts, context),
     "context_length",
     {"max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"},
     1u << 30},
    {offsetof(struct facts, layers),
     "block_count",
     {"num_hidden_layers", "n_layer", "num_layers", "n_layers"},
     65536},
    {offsetof(struct facts, width),
     "embedding_length",
     {"hidden_size", "n_embd", "d_model", "dim"},
     1u << 24},
    {offsetof(struct facts, heads),
     "attention.head_count",
     {"num_attention_heads", "n_head", "n_heads", "num_heads"},
     65536},
    {offsetof(struct facts, kv_heads),
     "attention.head_count_kv",
     {"num_key_value_heads", "num_kv_heads", "n_head_kv"},
     65536},
    {offsetof(struct facts, head_dim), "attention.key_length", {"head_dim"}, 65536},
    {offsetof(struct facts, ffn),
     "feed_forward_length",
     {"intermediate_size", "n_inner", "ffn_dim", "d_ff"},
     1u << 24},
    {offsetof(struct facts, experts),
     "expert_count",
     {"num_local_experts", "num_experts", "n_routed_experts"},
     65536},
    {offsetof(struct facts, vocab), "vocab_size", {"vocab_size"}, 1u << 28},
};
enum { FACTS_ROWS = sizeof facts_rows / sizeof *facts_rows };

static uint64_t *facts_place(struct facts *f, const struct facts_row *r)
{
    return (uint64_t *)((char *)f + r->place);
}

static void facts_text(char *out, size_t size, const char *s, size_t n)
{
    snprintf(out, size, "%.*s", (int)size_min(n, size - 1), s);
}

/* A figure that differs from layer to layer is an array: the largest is shown. */
static int facts_gguf_number(const struct gguf *g, const char *arch, const struct facts_row *r, uint64_t *out,
                             struct err *e)
{
    char key[160];
    snprintf(key, sizeof key, "%s.%s", arch, r->gguf);
    const struct gguf_key *k = gguf_find(g, key);
    if (!k || k->type != GGUF_ARRAY)
        return gguf_get_u64(g, key, 0, r->most, out, e);
    if (gguf_get_array(g, key, GGUF_I64, 0, &k, e) < 0)
        return -1;
    for (uint64_t i = 0; i < k->count; i++) {
        int64_t v = gguf_item_i64(k, i);
        if (v < 0 || (uint64_t)v > r->most)
            return err_set(e, ERR_DATA, "key '%s' holds %" PRId64 "; 0 to %" PRIu64 " was expected",
                           log_safe(key), v, r->most);
        *out = (uint64_t)v > *out ? (uint64_t)v : *out;
    }
    return 1;
}

static int facts_gguf_text(const struct gguf *g, const char *key, char *out, size_t size, struct err *e)
{
    struct gguf_str s;
    int has = gguf_get_str(g, key, &s, e);
    if (has > 0)
        facts_text(out, size, s.s, s.n);
    return has;
}

/* GGUF names a tokenizer by its origin; we name it by its algorithm. */
static void facts_gguf_tokenizer(struct facts *f)
{
    static const char *const kinds[][2] = {{"gpt2", "bpe"},   {"llama", "spm"}, {"bert", "wordpiece"},
                                           {"t5", "unigram"}, {"none", ""},     {"no_vocab", ""}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(f->tokenizer, kinds[i][0])) {
            snprintf(f->tokenizer, sizeof f->tokenizer, "%s", kinds[i][1]);
            return;
        }
}

/* Keys and values of one token in all layers, two bytes each. An array gives each layer its own heads. */
static int facts_gguf_kv(struct facts *f, const struct gguf *g, struct err *e)
{
    char key[160];
    uint64_t heads = f->layers * f->kv_heads, values = f->head_dim;
    const struct gguf_key *k;
    snprintf(key, sizeof key, "%s.attention.head_count_kv", f->architecture);
    k = gguf_find(g, key);
    if (k && k->type == GGUF_ARRAY) {
        heads = 0;
        for (uint64_t i = 0; i < k->count; i++)
            heads += (uint64_t)gguf_item_i64(k, i);
    }
    snprintf(key, sizeof key, "%s.attention.value_length", f->architecture);
    if (gguf_get_u64(g, key, 0, 65536, &values, e) < 0)
        return -1;
    bool causal = true;
    snprintf(key, sizeof key, "%s.attention.causal", f->architecture);
    if (gguf_get_bool(g, key, &causal, e) < 0)
        return -1;
    f->kv_per_token = causal ? heads * (f->head_dim + values) * 2 : 0;
    return 0;
}

static int facts_read_gguf(struct facts *f, const struct gguf *g, struct err *e)
{
    const struct gguf_key *tokens = NULL;
    if (facts_gguf_text(g, "general.architecture", f->architecture, sizeof f->architecture, e) < 0 ||
        facts_gguf_text(g, "general.name", f->name, sizeof f->name, e) < 0 ||
        facts_gguf_text(g, "general.license.name", f->license, sizeof f->license, e) < 0 ||
        facts_gguf_text(g, "general.license", f->license, sizeof f->license, e) <
            0 || /* the short form wins */
        facts_gguf_text(g, "tokenizer.ggml.model", f->tokenizer, sizeof f->tokenizer, e) < 0 ||
        gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, 0, &tokens, e) < 0)
        return -1;
    for (int i = 0; i < FACTS_ROWS; i++)
        if (facts_gguf_number(g, f->architecture, &facts_rows[i], facts_place(f, &facts_rows[i]), e) < 0)
            return -1;
    f->vocab = tokens ? tokens->count : f->vocab;
    f->template = gguf_find(g, "tokenizer.chat_template") != NULL;
    facts_gguf_tokenizer(f);
    return 0;
}

/* Multimodal models keep the language model's figures in a nested object. */
static const json_t *facts_config(const json_t *config, const char *name)
{
    const json_t *v = json_object_get(config, name), *text = json_object_get(config, "text_config");
    return v && !json_is_null(v) ? v : json_object_get(text, name);
}

static int facts_config_number(const json_t *config, const struct facts_row *r, uint64_t *out, struct err *e)
{
    for (int i = 0; i < 5 && r->config[i]; i++) {
        const json_t *v = facts_config(config, r->config[i]);
        if (!v || json_is_null(v))
            continue;
        json_int_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < 0 || (uint64_t)n > r->most)
            return err_set(e, ERR_DATA, "config.json: %s is not a whole number from 0 to %" PRIu64,
                           r->config[i], r->most);
        *out = (uint64_t)n;
        return 1;
    }
    return 0;
}

/* The kind is the "type" inside "model"; reading a file of 20 MB for one word would take a quarter of a
 * second. Inside a string the quotes would be escaped, so that the word is not found there. */
static void facts_tokenizer_json(struct facts *f, const char *path)
{
    static const char *const kinds[][2] = {
        {"BPE", "bpe"}, {"Unigram", "unigram"}, {"WordPiece", "wordpiece"}, {"WordLevel", "wordlevel"}};
    struct map m;
    struct err ignored = {0};
    if (map_open(&m, path, &ignored) < 0)
        return;
    const char *at = (const char *)m.data, *end = at + m.size;
    while (!f->tokenizer[0] && (at = memmem(at, (size_t)(end - at), "\"type\"", 6))) {
        at += 6;
        size_t n = strnlen(at, size_min((size_t)(end - at), 64)), skip = 0;
        while (skip < n && strchr(": \t\n", at[skip]))
            skip++;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            size_t len = strlen(kinds[i][0]);
            if (n - skip > len + 1 && at[skip] == '"' && at[skip + len + 1] == '"' &&
                !memcmp(at + skip + 1, kinds[i][0], len))
                snprintf(f->tokenizer, sizeof f->tokenizer, "%s", kinds[i][1]);
        }
    }
    map_close(&m);
}

static int facts_folder_tokenizer(struct facts *f, const struct store *s, struct err *e)
{
    static const char *const files[][2] = {
        {"tokenizer.model", "spm"}, {"merges.txt", "bpe"}, {"vocab.txt", "wordpiece"}};
    const char *path = store_beside(s, "tokenizer.json"), *config = store_beside(s, "tokenizer_config.json");
    if (path)
        facts_tokenizer_json(f, path);
    for (size_t i = 0; i < sizeof files / sizeof *files && !f->tokenizer[0]; i++)
        if (store_beside(s, files[i][0]))
            snprintf(f->tokenizer, sizeof f->tokenizer, "%s", files[i][1]);
    f->template = store_beside(s, "chat_template.jinja") || store_beside(s, "chat_template.json");
    if (f->template || !config)
        return 0;
    json_t *j = jsonread_file(config, &jsonread_config, e);
    struct jsonread r = {j, "tokenizer_config.json", e};
    f->template = jsonread_get(&r, j, "chat_template?", JSONREAD_IS_STRING | JSONREAD_IS_ARRAY);
    json_decref(j);
    return e->code ? -1 : 0;
}

/* "license: mit" in the front matter of README.md, which is where model cards have it. */
static void facts_folder_license(struct facts *f, const struct store *s)
{
    const char *path = store_beside(s, "README.md");
    struct buf text = {.max = 1 << 20};
    struct err ignored = {0};
    if (path && file_read(path, &text, &ignored) == 0 && text.len && !strncmp(text.data, "---\n", 4)) {
        char *end = strstr(text.data + 4, "\n---");
        if (end)
            *end = 0;
        const char *at = end ? strstr(text.data, "\nlicense:") : NULL;
        if (at) {
            at += strlen("\nlicense:");
            at += strspn(at, " \"'");
            facts_text(f->license, sizeof f->license, at, strcspn(at, "\n\"'"));
        }
    }
    buf_free(&text);
}

static int facts_read_folder(struct facts *f, const struct store *s, struct err *e)
{
    struct jsonread r = {s->config, "config.json", e};
    const char *kind = jsonread_str(&r, s->config, "model_type?", NULL);
    jsonread_get(&r, s->config, "text_config?", JSONREAD_IS_OBJECT);
    if (e->code)
        return -1;
    if (kind)
        facts_text(f->architecture, sizeof f->architecture, kind, strlen(kind));
    for (int i = 0; i < FACTS_ROWS; i++)
        if (facts_config_number(s->config, &facts_rows[i], facts_place(f, &facts_rows[i]), e) < 0)
            return -1;
    if (json_is_true(facts_config(s->config, "multi_query")) && !f->kv_heads)
        f->kv_heads = 1;
    if (!f->ffn &&
        !strcmp(f->architecture, "gpt2")) /* n_inner is left out where it is four times the width */
        f->ffn = 4 * f->width;
    facts_folder_license(f, s);
    return facts_folder_tokenizer(f, s, e);
}

/* Without a name in the file, a model has the name of its file or folder. A folder of the Hub's cache is
 * named by a commit: config.json's own name serves then, though it is often that of the model it was made
 * from, or the repository's (models--USER--REPO/snapshots/COMMIT). */
static void facts_default_name(struct facts *f, const struct store *s)
{
    enum { COMMIT = 40 };
    char whole[PATH_MAX];
    if (f->name[0] || !realpath(s->path, whole))
        return;
    const char *name = strrchr(whole, '/') + 1, *file = strrchr(s->path, '/'),
               *repo = strstr(whole, "/models--"),
               *said = json_string_value(json_object_get(s->config, "_name_or_path"));
    bool commit = strlen(name) == COMMIT && strspn(name, "0123456789abcdef") == COMMIT;
    size_t n = strlen(name);
    if (s->gguf) { /* not where a link leads: to a name that is a checksum */
        name = file ? file + 1 : s->path;
        n = strlen(name);
    } else if (commit && said && *said) {
        const char *slash = strrchr(said, '/');
        name = slash ? slash + 1 : said;
        n = strlen(name);
    } else if (commit && repo) {
        size_t length = strcspn(repo + 1, "/");
        const char *user = memmem(repo + 9, length - 8, "--", 2);
        name = user ? user + 2 : repo + 9;
        n = (size_t)(repo + 1 + length - name);
    }
    facts_text(f->name, sizeof f->name, name, n);
}

static bool facts_is_encoder(const char *architecture)
{
    static const char *const encoders[] = {"bert",       "roberta",    "xlm-roberta", "distilbert", "mpnet",
                                           "nomic_bert", "modernbert", "electra",     "deberta-v2"};
    for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++)
        if (!strcmp(architecture, encoders[i]))
            return true;
    return false;
}

/* For supported models we know which layers have a sliding window. */
static void facts_window(struct facts *f, const struct store *s)
{
    struct hparams h;
    struct err none = {0};
    if (!hparams_read(&h, s, &none) && h.causal) {
        f->window = h.window;
        for (uint32_t i = 0; i < h.layers; i++)
            f->kv_sliding += h.layer[i].sliding ? 2 * hparams_kv_values(&h, i) : 0;
        f->kv_sliding = f->kv_sliding < f->kv_per_token ? f->kv_sliding : f->kv_per_token;
    }
    hparams_free(&h);
}

int facts_read(struct facts *f, const struct store *s, struct err *e)
{
    *f = (struct facts){0};
    for (size_t i = 0; i < s->count; i++) {
        f->parameters += s->tensors[i].values;
        f->weights += s->tensors[i].bytes;
        f->types[s->tensors[i].type]++;
    }
    if ((s->gguf ? facts_read_gguf(f, s->gguf, e) : facts_read_folder(f, s, e)) < 0)
        return -1;
    facts_default_name(f, s);
    f->kv_heads = f->kv_heads ? f->kv_heads : f->heads;
    f->head_dim = f->head_dim || !f->heads ? f->head_dim : f->width / f->heads;
    if (s->gguf && facts_gguf_kv(f, s->gguf, e))
        return -1;
    if (!s->gguf && !facts_is_encoder(f->architecture))
        f->kv_per_token = 2 * f->layers * f->kv_heads * f->head_dim * 2;
    facts_window(f, s);
    return 0;
}
