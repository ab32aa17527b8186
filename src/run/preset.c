#include "run/preset.h"

#include "base/log.h"
#include "base/mem.h"
#include "run/reasoning.h"

#include <string.h>

enum { PRESET_CONTEXT = 1 << 24 };

/* Whole numbers that are no sampler's. */
static const struct {
    const char *name;
    double least, most;
} preset_numbers[] = {{"num_ctx", 1, PRESET_CONTEXT},
                      {"num_predict", -2, PRESET_CONTEXT},
                      {"seed", -9e15, 9e15},
                      {"slots", 1, 256},
                      {"reasoning_budget", -1, PRESET_CONTEXT}};

/* Ollama's settings that the program has as options, or does not need. */
static const char *const preset_ignored[] = {
    "num_keep",  "num_gpu",          "num_thread", "num_batch",  "main_gpu", "low_vram", "use_mmap",
    "use_mlock", "penalize_newline", "numa",       "vocab_only", "tfs_z",    "f16_kv",   "draft_num_predict"};

static double preset_number(const json_t *parameters, const char *name, double otherwise)
{
    const json_t *v = json_object_get(parameters, name);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static int preset_range(const char *name, const json_t *v, double least, double most, struct err *e)
{
    double x = json_number_value(v);
    return json_is_number(v) && x >= least && x <= most
               ? 0
               : err_set(e, ERR_DATA, "the parameter %s has to be a number from %g to %g", name, least, most);
}

static bool preset_is_stop(const json_t *v)
{
    const json_t *one;
    size_t i;
    json_array_foreach(v, i, one) if (!json_string_length(one)) return false;
    return json_is_array(v) || json_string_length(v);
}

static int preset_check_one(const char *name, const json_t *v, struct err *e)
{
    if (!strcmp(name, "stop"))
        return preset_is_stop(v)
                   ? 0
                   : err_set(e, ERR_DATA, "the parameter stop has to be a text or a list of texts");
    for (size_t i = 0; i < sampler_field_count; i++)
        if (!strcmp(name, sampler_fields[i].name))
            return preset_range(name, v, sampler_fields[i].least, sampler_fields[i].most, e);
    for (size_t i = 0; i < sizeof preset_numbers / sizeof *preset_numbers; i++)
        if (!strcmp(name, preset_numbers[i].name))
            return preset_range(name, v, preset_numbers[i].least, preset_numbers[i].most, e);
    for (size_t i = 0; i < sizeof preset_ignored / sizeof *preset_ignored; i++)
        if (!strcmp(name, preset_ignored[i])) {
            log_info("the parameter %s is ignored", name);
            return 0;
        }
    return err_set(e, ERR_DATA,
                   "there is no parameter '%s'; there are the sampler's (temperature, top_k, top_p, min_p, "
                   "repeat_penalty ...), num_ctx, num_predict, seed, stop, slots and reasoning_budget",
                   log_safe(name));
}

int preset_check_parameters(const json_t *parameters, struct err *e)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)parameters, name, v) if (preset_check_one(name, v, e)) return -1;
    return 0;
}

int preset_options(const json_t *preset, struct session_options *o, const char *lora[SESSION_ADAPTERS],
                   struct err *e)
{
    const json_t *p = json_object_get(preset, "parameters"), *adapters = json_object_get(preset, "adapters");
    const char *template = json_string_value(json_object_get(preset, "template"));
    double budget = preset_number(p, "reasoning_budget", -1);
    if (preset_check_parameters(p, e))
        return -1;
    if (!o->runner.ctx)
        o->runner.ctx = (uint32_t)preset_number(p, "num_ctx", 0);
    if (!o->chat_template)
        o->chat_template = template;
    if (!o->reasoning_limited && budget >= 0) {
        o->reasoning_limited = true;
        o->reasoning_budget = (uint32_t)budget;
    }
    if (json_array_size(adapters) > SESSION_ADAPTERS)
        return err_set(e, ERR_DATA, "there are more than %d adapters", SESSION_ADAPTERS);
    for (size_t i = 0; i < json_array_size(adapters) && !o->loras; i++)
        lora[i] = json_string_value(json_array_get(adapters, i));
    if (!o->loras && json_array_size(adapters)) {
        o->lora = lora;
        o->loras = json_array_size(adapters);
    }
    o->preset = preset;
    return 0;
}

/* A text, or a list of texts. */
static int preset_stops(struct session *l, const json_t *stop, struct err *e)
{
    size_t n = json_is_array(stop) ? json_array_size(stop) : json_is_string(stop);
    if (!n)
        return 0;
    if (!(l->preset_stops = mem_zalloc(n, sizeof *l->preset_stops)))
        return err_memory(e, "stop strings", n * sizeof *l->preset_stops);
    for (size_t i = 0; i < n; i++)
        l->preset_stops[i] = json_string_value(json_is_array(stop) ? json_array_get(stop, i) : stop);
    l->preset_stop_count = n;
    return 0;
}

int preset_apply(struct session *l, const json_t *preset, struct err *e)
{
    const json_t *p = json_object_get(preset, "parameters");
    if (!preset)
        return 0;
    l->preset = json_deep_copy(preset);
    if (!l->preset)
        return err_memory(e, "the model's settings", 64);
    for (size_t i = 0; i < sampler_field_count; i++) {
        double *value = (double *)((char *)&l->defaults + sampler_fields[i].offset);
        *value = preset_number(p, sampler_fields[i].name, *value);
    }
    double most = preset_number(p, "num_predict", 0);
    l->preset_most = most > 0 ? (uint32_t)most : 0;
    return preset_stops(l, json_object_get(json_object_get(l->preset, "parameters"), "stop"), e);
}

json_t *preset_messages(const struct session *l, const json_t *messages)
{
    const json_t *system = json_object_get(l->preset, "system"),
                 *before = json_object_get(l->preset, "messages"), *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    bool has_system = role && (!strcmp(role, "system") || !strcmp(role, "developer"));
    json_t *all = json_array();
    int failed = !all;
    if (!failed && has_system)
        failed = json_array_append(all, (json_t *)(uintptr_t)first);
    else if (!failed && system)
        failed = json_array_append_new(all, json_pack("{s:s,s:O}", "role", "system", "content", system));
    failed = failed || (before && json_array_extend(all, (json_t *)(uintptr_t)before));
    for (size_t i = has_system; i < json_array_size(messages) && !failed; i++)
        failed = json_array_append(all, json_array_get(messages, i));
    if (!failed)
        return all;
    json_decref(all);
    return NULL;
}
