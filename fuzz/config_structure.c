/* The JSON files beside a model's tensors with their structure changed: {"model": a folder of test/data/arch,
 * "config.json": ..., "generation_config.json": ..., ...}. All that reads them runs: hyper-parameters,
 * binding of the tensors, sampling defaults, stop tokens, templates. A failure is bad data or a limit, and
 * has an error message. */
#include "structure_files.h"

#include "base/log.h"
#include "lang/chat/chat_load.h"
#include "model/model.h"
#include "run/defaults.h"

static const char *const names[] = {
    "config.json",        "generation_config.json",       "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.json", "model.safetensors.index.json", "1_Pooling/config.json"};

/* The tensors of the named family, under the folder's name for them. */
static void link_tensors(const json_t *doc)
{
    const char *model = json_string_value(json_object_get(doc, "model"));
    bool shards = json_object_get(doc, "model.safetensors.index.json");
    char from[256], one[160], many[160];
    if (!model || strchr(model, '/') || strlen(model) > 64)
        model = "llama";
    snprintf(from, sizeof from, "%s/arch/%s/model.safetensors", FUZZ_DATA, model);
    if (access(from, R_OK))
        snprintf(from, sizeof from, "%s/arch/llama/model.safetensors", FUZZ_DATA);
    snprintf(one, sizeof one, "%s/model.safetensors", structure_folder());
    snprintf(many, sizeof many, "%s/model-1.safetensors", structure_folder());
    unlink(one);
    unlink(many);
    if (symlink(from, shards ? many : one))
        abort();
}

static void read_all(const struct store *s, struct err *e)
{
    struct model *m = NULL;
    struct sampler_params p;
    int32_t *stops = NULL;
    size_t count;
    struct model_options o = {.ctx = 64, .make = {.threads = 1}};
    json_t *templates = chat_load_templates(s, e), *tokens = templates ? chat_load_tokens(s, e) : NULL;
    sampler_defaults(&p);
    if (tokens && !defaults_sampling(s, &p, e) && !defaults_stops(s, 64, &stops, &count, e))
        model_open(&m, s, &o, e);
    json_decref(templates);
    json_decref(tokens);
    mem_free(stops);
    model_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char pooling[160];
    struct store *s = NULL;
    struct err e = {0};
    json_t *doc = size > 1 << 16 ? NULL : structure_parse(data, size);
    if (!doc)
        return 0;
    if (!pooling[0]) {
        log_set_level(LOG_ERROR);
        snprintf(pooling, sizeof pooling, "%s/1_Pooling", structure_folder());
        mkdir(pooling, 0700);
    }
    structure_files(doc, names, sizeof names / sizeof *names);
    link_tensors(doc);
    if (!store_open(&s, structure_folder(), &e))
        read_all(s, &e);
    if (e.code ? (e.code != ERR_DATA && e.code != ERR_RESOURCE) || !e.text[0] : !s)
        abort();
    if (s)
        store_close(s);
    json_decref(doc);
    return 0;
}
