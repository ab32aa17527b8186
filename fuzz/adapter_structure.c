/* An adapter with the structure of its two JSON texts changed: {"model": a folder of test/data/arch,
 * "adapter_config.json": ..., "header": the header of its safetensors file}. The data behind the header is
 * zeros. It is bound to the model, or refused with an error message. */
#include "structure_files.h"

#include "base/log.h"
#include "model/lora.h"
#include "model/model.h"

/* As many bytes of data as the header asks for, within reason. */
static size_t data_bytes(const json_t *header)
{
    const char *name;
    json_t *entry;
    json_int_t most = 0;
    json_object_foreach((json_t *)(uintptr_t)header, name, entry)
    {
        json_int_t end = json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 1));
        most = end > most && end < 1 << 18 ? end : most;
    }
    return (size_t)most;
}

static void write_tensors(const json_t *header)
{
    static const char zeros[1 << 18];
    struct buf file = {0}, text = {0};
    structure_write(header, &text);
    uint64_t n = text.len;
    buf_add(&file, &n, sizeof n); /* little-endian */
    buf_add(&file, text.data, text.len);
    buf_add(&file, zeros, data_bytes(header));
    structure_file("adapter_model.safetensors", file.data, file.len);
    buf_free(&text);
    buf_free(&file);
}

static int open_model(const json_t *doc, struct store **s, struct model **m, struct err *e)
{
    static const char *const known[] = {"llama", "gpt2",    "mixtral", "deepseek-v2",
                                        "phi3",  "gpt-oss", "neox",    "qwen2-moe"};
    const char *model = json_string_value(json_object_get(doc, "model"));
    char path[256];
    size_t i = sizeof known / sizeof *known - 1;
    while (i && (!model || strcmp(model, known[i]) != 0))
        i--;
    snprintf(path, sizeof path, "%s/arch/%s", FUZZ_DATA, known[i]);
    struct model_options o = {.ctx = 64, .make = {.threads = 1}};
    return store_open(s, path, e) || model_open(m, *s, &o, e) ? -1 : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"adapter_config.json"};
    struct store *base = NULL;
    struct model *m = NULL;
    struct err e = {0};
    json_t *doc = size > 1 << 16 ? NULL : structure_parse(data, size);
    const json_t *header = json_object_get(doc, "header");
    if (!doc)
        return 0;
    log_set_level(LOG_ERROR);
    if (open_model(doc, &base, &m, &e))
        abort();
    structure_files(doc, names, 1);
    write_tensors(header ? header : doc);
    const char *path = structure_folder();
    int failed = lora_bind(m, &path, 1, &e);
    if (failed ? (e.code != ERR_DATA && e.code != ERR_RESOURCE) || !e.text[0] : e.code != 0)
        abort();
    model_close(m);
    store_close(base);
    json_decref(doc);
    return 0;
}
