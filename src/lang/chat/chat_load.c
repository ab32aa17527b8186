/* Templates and special tokens out of a GGUF's keys, or out of the files of a Hugging Face folder. */
#include "lang/chat/chat_load.h"

#include "base/buf.h"
#include "base/file.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "format/store.h"

#include <stdio.h>
#include <string.h>

#define TEMPLATE_MAX ((size_t)4 << 20)

static int load_memory(struct err *e)
{
    return err_memory(e, "a chat template", TEMPLATE_MAX);
}

static int load_put(json_t *to, const char *name, const char *text, size_t n, struct err *e)
{
    json_t *v = json_stringn(text, n);
    if (!v)
        return err_set(e, ERR_DATA, "chat template '%s' is not valid UTF-8", name);
    return json_object_set_new(to, name, v) ? load_memory(e) : 0;
}

/* -- GGUF */

static int load_gguf_templates(json_t *to, const struct gguf *g, struct err *e)
{
    static const char base[] = "tokenizer.chat_template";
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        const struct gguf_key *k = gguf_key_at(g, i);
        const char *rest = k->name + sizeof base - 1;
        struct gguf_str text;
        if (strncmp(k->name, base, sizeof base - 1) != 0 || (*rest && *rest != '.') || k->type != GGUF_STRING)
            continue;
        if (gguf_get_str(g, k->name, &text, e) < 0 ||
            load_put(to, *rest ? rest + 1 : "default", text.s, text.n, e))
            return -1;
    }
    return 0;
}

static int load_gguf_tokens(json_t *to, const struct gguf *g, struct err *e)
{
    static const char *const names[][2] = {
        {"bos_token", "tokenizer.ggml.bos_token_id"},     {"eos_token", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "tokenizer.ggml.unknown_token_id"}, {"sep_token", "tokenizer.ggml.seperator_token_id"},
        {"pad_token", "tokenizer.ggml.padding_token_id"}, {"cls_token", "tokenizer.ggml.cls_token_id"},
        {"mask_token", "tokenizer.ggml.mask_token_id"},
    };
    const struct gguf_key *tokens;
    int there = gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, 0, &tokens, e);
    if (there <= 0)
        return there;
    uint64_t id[sizeof names / sizeof names[0]], i = 0;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        id[k] = UINT64_MAX;
        if (gguf_get_u64(g, names[k][1], 0, tokens->count - 1, &id[k], e) < 0)
            return -1;
    }
    struct gguf_str s;
    for (size_t at = 0; gguf_next_str(tokens, &at, &s); i++)
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            if (id[k] == i && load_put(to, names[k][0], s.s, s.n, e))
                return -1;
    return 0;
}

/* -- a folder */

/* An optional JSON file beside the tensors: *out is NULL where there is none. */
static int load_beside(json_t **out, const struct store *s, const char *file, struct err *e)
{
    static const struct jsonread_limits most = {
        .text = 16 << 20, .memory = 128 << 20, .depth = JSONREAD_DEPTH, .huge = true};
    const char *path = store_beside(s, file);
    *out = path ? jsonread_file(path, &most, e) : NULL;
    return path && !*out ? -1 : 0;
}

/* "chat_template": a text, or [{"name": ..., "template": ...}]. Those that are there already stay. */
static int load_config_templates(json_t *to, const json_t *config, const char *file, struct err *e)
{
    struct jsonread r = {config, file, e};
    const json_t *t = jsonread_get(&r, config, "chat_template?", JSONREAD_IS_STRING | JSONREAD_IS_ARRAY),
                 *one;
    size_t i;
    if (json_is_string(t) && !json_object_get(to, "default"))
        return load_put(to, "default", json_string_value(t), json_string_length(t), e);
    json_array_foreach(t, i, one)
    {
        const json_t *name = jsonread_get(&r, one, "name", JSONREAD_IS_STRING),
                     *text = jsonread_get(&r, one, "template", JSONREAD_IS_STRING);
        if (!name || !text)
            return err_set(e, ERR_DATA, "%s: item %zu of chat_template needs a name and a template", file, i);
        if (!json_object_get(to, json_string_value(name)) &&
            load_put(to, json_string_value(name), json_string_value(text), json_string_length(text), e))
            return -1;
    }
    return e->code ? -1 : 0;
}

static int load_template_file(json_t *to, const struct store *s, const char *file, const char *name,
                              struct err *e)
{
    const char *path = store_beside(s, file);
    struct buf text = {.max = TEMPLATE_MAX};
    if (!path)
        return 0;
    int result = file_read(path, &text, e);
    if (!result)
        result = load_put(to, name, text.data ? text.data : "", text.len, e);
    buf_free(&text);
    return result;
}

static int load_folder_templates(json_t *to, const struct store *s, struct err *e)
{
    static const char *const configs[] = {"tokenizer_config.json", "chat_template.json"};
    if (load_template_file(to, s, "chat_template.jinja", "default", e) ||
        load_template_file(to, s, "additional_chat_templates/tool_use.jinja", "tool_use", e))
        return -1;
    for (size_t i = 0; i < 2; i++) {
        json_t *config;
        if (load_beside(&config, s, configs[i], e))
            return -1;
        int result = load_config_templates(to, config, configs[i], e);
        json_decref(config);
        if (result)
            return -1;
    }
    return 0;
}

/* A token is a text, or {"content": text, ...}. */
static int load_folder_tokens(json_t *to, const struct store *s, struct err *e)
{
    static const char *const files[] = {"special_tokens_map.json", "tokenizer_config.json"};
    static const char *const names[] = {"bos_token?", "eos_token?", "unk_token?", "sep_token?",
                                        "pad_token?", "cls_token?", "mask_token?"};
    for (size_t f = 0; f < 2; f++) {
        json_t *config;
        if (load_beside(&config, s, files[f], e))
            return -1;
        struct jsonread r = {config, files[f], e};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            json_t *t = jsonread_get(&r, config, names[i], JSONREAD_IS_STRING | JSONREAD_IS_OBJECT);
            if (json_is_object(t))
                t = jsonread_get(&r, t, "content", JSONREAD_IS_STRING);
            if (t && json_object_setn(to, names[i], strlen(names[i]) - 1, t)) /* the later file wins */
                load_memory(e);
        }
        json_decref(config);
        if (e->code)
            return -1;
    }
    return 0;
}

static json_t *load(const struct store *s, int (*gguf)(json_t *, const struct gguf *, struct err *),
                    int (*folder)(json_t *, const struct store *, struct err *), struct err *e)
{
    json_t *to = json_object();
    if (!to)
        load_memory(e);
    else if (s->kind == STORE_GGUF ? gguf(to, s->gguf, e) : folder(to, s, e)) {
        json_decref(to);
        to = NULL;
    }
    return to;
}

json_t *chat_load_templates(const struct store *s, struct err *e)
{
    return load(s, load_gguf_templates, load_folder_templates, e);
}

json_t *chat_load_tokens(const struct store *s, struct err *e)
{
    return load(s, load_gguf_tokens, load_folder_tokens, e);
}
