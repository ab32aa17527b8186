/* The JSON files of a tokenizer with their structure changed, and a text through what opens:
 * {"tokenizer.json": ..., "tokenizer_config.json": ..., "text": "..."}; tekken.json, or vocab.json in place
 * of the first. A failure is bad data or a limit, and has an error message. */
#include "structure_files.h"

#include "lang/token/tokenizer.h"

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct ids ids = {0};
        struct buf back = {0};
        struct err e = {0};
        if (tokenizer_encode(t, text, n, flags, &ids, &e) && !e.code)
            abort();
        for (size_t i = 0; i < ids.len; i++)
            if (ids.data[i] < 0 || ids.data[i] >= tokenizer_vocab(t))
                abort();
        e = (struct err){0};
        tokenizer_decode(t, ids.data, ids.len, flags & 1, &back, &e);
        buf_free(&back);
        ids_free(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"tokenizer.json", "tekken.json", "vocab.json",
                                        "tokenizer_config.json"};
    json_t *doc = size > 1 << 16 ? NULL : structure_parse(data, size);
    if (!doc)
        return 0;
    struct tokenizer *t = NULL;
    struct err e = {0};
    const json_t *text = json_object_get(doc, "text");
    structure_files(doc, names, sizeof names / sizeof *names);
    structure_file("merges.txt", "a b\nab c\n", 9);
    if (tokenizer_open_file(&t, structure_folder(), &e)) {
        if ((e.code != ERR_DATA && e.code != ERR_RESOURCE) || !e.text[0])
            abort();
    } else if (json_is_string(text))
        use(t, json_string_value(text), json_string_length(text));
    else
        use(t, "Hello  w\xc3\xb6rld's 123 <s>\n", 24);
    tokenizer_close(t);
    json_decref(doc);
    return 0;
}
