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
#include "model/model.h"
#include "run/runner.h"

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void facts_text(char *out, size_t size, const char *s, size_t n)
{
    snprintf(out, size, "%.*s", (int)size_min(n, size - 1), s);
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

static int facts_read_gguf(struct facts *f, const struct gguf *g, struct err *e)
{
    if (facts_gguf_text(g, "general.architecture", f->architecture, sizeof f->architecture, e) < 0 ||
        facts_gguf_text(g, "general.name", f->name, sizeof f->name, e) < 0 ||
        facts_gguf_text(g, "general.license.name", f->license, sizeof f->license, e) < 0 ||
        facts_gguf_text(g, "general.license", f->license, sizeof f->license, e) <
            0 || /* the short form wins */
        facts_gguf_text(g, "tokenizer.ggml.model", f->tokenizer, sizeof f->tokenizer, e) < 0)
        return -1;
    f->template = gguf_find(g, "tokenizer.chat_template") != NULL;
    facts_gguf_tokenizer(f);
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

/* What only the plan says: bytes of recurrent state of a sequence, and whether there is a plan at all. */
static void facts_plan(struct facts *f, const struct store *s)
{
    struct err e = {0};
    struct model *m = NULL;
    if (!s->count) /* a bare vocabulary */
        return;
    if (model_open(&m, s, &(struct model_options){.describe = true}, &e)) {
        const char *path = log_safe(s->path);
        size_t n = strlen(path);
        bool named = !strncmp(e.text, path, n) && e.text[n] == ':';
        snprintf(f->problem, sizeof f->problem, "%.500s", e.text + (named ? n + 2 : 0));
        return;
    }
    f->state = runner_state_bytes(&m->plan);
    model_close(m);
}

/* The sizes, by the loader's table. The list of tokens knows best how many there are: an embedding may be padded. */
static int facts_hparams(struct facts *f, const struct store *s, struct err *e)
{
    struct hparams h;
    const struct gguf_key *tokens = NULL;
    if (s->gguf && gguf_get_array(s->gguf, "tokenizer.ggml.tokens", GGUF_STRING, 0, &tokens, e) < 0)
        return -1;
    if (hparams_scan(&h, s, e))
        return -1;
    f->context = h.context;
    f->layers = h.layers;
    f->width = h.width;
    f->heads = h.heads;
    f->kv_heads = h.kv_heads;
    f->head_dim = h.k_dim;
    f->ffn = h.ffn;
    f->experts = h.experts;
    f->vocab = tokens ? tokens->count : h.vocab;
    bool causal = h.causal && !facts_is_encoder(f->architecture);
    f->window = causal ? h.window : 0;
    for (uint32_t i = 0; causal && i < h.layers; i++) {
        uint64_t bytes = 2 * (uint64_t)hparams_kv_values(&h, i);
        f->kv_per_token += bytes;
        f->kv_sliding += h.layer[i].sliding ? bytes : 0;
    }
    facts_plan(f, s);
    hparams_free(&h);
    return 0;
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
    return facts_hparams(f, s, e);
}
