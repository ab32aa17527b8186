#define _GNU_SOURCE
#include "format/folder.h"

#include "base/file.h"
#include "base/log.h"
#include "format/jsonread.h"
#include "format/names.h"
#include "format/store.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define FOLDER_INDEX "model.safetensors.index.json"

enum { FOLDER_MOST_SHARDS = 4096 };

static const struct jsonread_limits folder_index_limits = {.text = 32 << 20, .memory = 48 << 20, .depth = 8};

static bool folder_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcasecmp(name + n - m, end);
}

static bool folder_is_pickle(const char *name)
{
    static const char *const ends[] = {".bin", ".pt", ".pth", ".ckpt", ".pkl"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (folder_ends(name, ends[i]))
            return true;
    return false;
}

/* A later part of a split GGUF: "-00002-of-00003.gguf". */
static bool folder_is_later_part(const char *name)
{
    size_t n = strlen(name);
    return n > 20 && !strncmp(name + n - 14, "-of-", 4) && name[n - 20] == '-' &&
           strncmp(name + n - 19, "00001", 5);
}

char *folder_join(struct arena *a, const char *folder, const char *file)
{
    size_t n = strlen(folder) + strlen(file) + 2;
    char *path = arena_alloc(a, n, 1);
    if (path)
        snprintf(path, n, "%s%s%s", folder, folder[0] && folder[strlen(folder) - 1] == '/' ? "" : "/", file);
    return path;
}

int folder_refuse_pickle(const char *path, const unsigned char *data, size_t size, struct err *e)
{
    bool zip = size >= 4 && !memcmp(data, "PK\3\4", 4), pickle = size >= 2 && data[0] == 0x80 && data[1] <= 5;
    if (!folder_is_pickle(path) && !zip && !pickle)
        return 0;
    return err_set(
        e, ERR_DATA,
        "%s is a PyTorch pickle, which can run code when it is opened: quern opens GGUF and safetensors; "
        "save the model as safetensors",
        log_safe(path));
}

static const char *folder_quant_method(const struct jsonread *r, const json_t *q)
{
    const char *method = jsonread_str(r, q, "quant_method?", NULL);
    if (method)
        return method;
    bool bits = jsonread_bool(r, q, "load_in_4bit?", false) || jsonread_bool(r, q, "load_in_8bit?", false);
    return bits ? "bitsandbytes" : NULL;
}

static int folder_refuse(const char *method, struct err *e)
{
    static const char *const proper[] = {"GPTQ", "AWQ", "bitsandbytes", "AQLM", "HQQ", "EETQ"};
    for (size_t i = 0; i < sizeof proper / sizeof *proper; i++)
        if (!strcasecmp(method, proper[i]))
            method = proper[i];
    return err_set(
        e, ERR_DATA,
        "this checkpoint is quantised with %s, which quern does not run: take a GGUF of this model, or its "
        "unquantised weights",
        log_safe(method));
}

int folder_refuse_quant(const json_t *config, const struct tensor *tensors, size_t count, struct err *e)
{
    struct jsonread r = {config, "config.json", e};
    const json_t *q = jsonread_get(&r, config, "quantization_config?", JSONREAD_IS_OBJECT);
    const char *method = folder_quant_method(&r, q), *format = jsonread_str(&r, q, "format?", NULL);
    if (e->code)
        return -1;
    bool fp8 = method && (!strcmp(method, "fp8") || (!strcmp(method, "compressed-tensors") && format &&
                                                     !strcmp(format, "float-quantized")));
    const char *mode = jsonread_str(&r, q, "quantization_mode?", NULL);
    if (e->code)
        return -1;
    bool bitnet = method && !strcmp(method, "bitnet");
    if (bitnet && mode && !strcmp(mode, "online"))
        return err_set(e, ERR_DATA,
                       "config.json: quantization_mode is online: these weights are for training. Take the "
                       "packed weights of this model, or a GGUF");
    if (method && !fp8 && !bitnet && strcmp(method, "mxfp4"))
        return folder_refuse(method, e);
    /* in older ones only the names show it; g_idx comes first, since GPTQ has qzeros too */
    static const struct {
        const char *end, *method;
    } marks[] = {{".g_idx", "GPTQ"},
                 {".qzeros", "AWQ"},
                 {".quant_state.bitsandbytes__nf4", "bitsandbytes"},
                 {".quant_state.bitsandbytes__fp4", "bitsandbytes"},
                 {".SCB", "bitsandbytes"}};
    for (size_t m = 0; m < sizeof marks / sizeof *marks; m++)
        for (size_t i = 0; i < count; i++)
            if (folder_ends(tensors[i].name, marks[m].end))
                return folder_refuse(marks[m].method, e);
    return 0;
}

static int folder_add(struct folder *f, const char *folder, const char *file, struct err *e)
{
    char **files = mem_realloc(f->files, f->count + 1, sizeof *files);
    if (!files)
        return err_memory(e, "the list of files", (f->count + 1) * sizeof *files);
    f->files = files;
    if (!(f->files[f->count] = folder_join(&f->arena, folder, file)))
        return err_memory(e, "a path", strlen(folder) + strlen(file));
    f->count++;
    return 0;
}

static int folder_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The shards that the index names, each once. */
static int folder_shards(struct folder *f, const char *path, struct err *e)
{
    struct names seen = {0};
    const char *tensor;
    json_t *value;
    int result = 0;
    json_object_foreach(f->weights, tensor, value)
    {
        const char *file = json_string_value(value);
        if (!file || strchr(file, '/') || !folder_ends(file, ".safetensors")) {
            result = err_set(e, ERR_DATA,
                             FOLDER_INDEX
                             ": tensor '%s' lies in '%s'; the name of a .safetensors file in the same "
                             "folder was expected",
                             log_safe(tensor), log_safe(file));
            break;
        }
        int there = names_add(&seen, file, 0);
        if (there < 0)
            result = err_memory(e, "the list of shards", seen.count);
        else if (!there && f->count == FOLDER_MOST_SHARDS)
            result = err_set(e, ERR_DATA, FOLDER_INDEX " names more than %d files", FOLDER_MOST_SHARDS);
        else if (!there)
            result = folder_add(f, path, file, e);
        if (result < 0)
            break;
    }
    names_free(&seen);
    if (!result && !f->count)
        result = err_set(e, ERR_DATA, FOLDER_INDEX ": weight_map is empty");
    if (!result)
        qsort(f->files, f->count, sizeof *f->files, folder_compare);
    return result;
}

static int folder_index(struct folder *f, const char *path, const char *index, struct err *e)
{
    json_t *whole = jsonread_file(index, &folder_index_limits, e);
    if (!whole)
        return -1;
    f->kind = FOLDER_SHARDS;
    f->weights = json_incref(json_object_get(whole, "weight_map"));
    json_decref(whole);
    if (!json_is_object(f->weights))
        return err_set(e, ERR_DATA, "%s has no object weight_map", log_safe(index));
    return folder_shards(f, path, e);
}

static bool folder_has(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* A tower for images beside a model. */
static bool folder_is_tower(const char *name)
{
    return folder_ends(name, ".gguf") && strcasestr(name, "mmproj");
}

/* Without an index: model.safetensors, or the only .safetensors, or the only .gguf that is no tower beside another. */
static int folder_list(struct folder *f, const char *path, DIR *dir, struct err *e)
{
    size_t safetensors = 0, ggufs = 0, pickles = 0, towers = 0;
    char *one_safetensors = NULL, *one_gguf = NULL, *one_tower = NULL;
    for (struct dirent *d; (d = readdir(dir));) {
        bool tower = folder_is_tower(d->d_name),
             gguf = !tower && folder_ends(d->d_name, ".gguf") && !folder_is_later_part(d->d_name);
        char **one = tower                                    ? &one_tower
                     : gguf                                   ? &one_gguf
                     : folder_ends(d->d_name, ".safetensors") ? &one_safetensors
                                                              : NULL;
        towers += tower;
        safetensors += one == &one_safetensors;
        ggufs += gguf;
        pickles += folder_is_pickle(d->d_name);
        if (one && !*one && !(*one = arena_strndup(&f->arena, d->d_name, strlen(d->d_name))))
            return err_memory(e, "a file's name", strlen(d->d_name));
    }
    if (!ggufs) {
        ggufs = towers;
        one_gguf = one_tower;
    }
    f->kind = safetensors ? FOLDER_SAFETENSORS : FOLDER_GGUF;
    if (safetensors > 1)
        return err_set(e, ERR_DATA,
                       "%s holds %zu safetensors files, and no " FOLDER_INDEX " that says what is where",
                       log_safe(path), safetensors);
    if (safetensors || ggufs == 1)
        return folder_add(f, path, safetensors ? one_safetensors : one_gguf, e);
    if (ggufs)
        return err_set(e, ERR_DATA, "%s holds %zu .gguf files: name the one to open", log_safe(path), ggufs);
    if (pickles)
        return err_set(
            e, ERR_DATA,
            "%s holds only PyTorch pickles, which can run code when they are opened: quern opens GGUF and "
            "safetensors; save the model as safetensors",
            log_safe(path));
    return err_set(e, ERR_DATA, "%s holds no .safetensors and no .gguf file", log_safe(path));
}

int folder_look(struct folder *f, const char *path, struct err *e)
{
    *f = (struct folder){0};
    const char *index = folder_join(&f->arena, path, FOLDER_INDEX);
    const char *single = folder_join(&f->arena, path, "model.safetensors");
    int result;
    if (!index || !single)
        result = err_memory(e, "a path", strlen(path));
    else if (folder_has(single)) /* before an index, as Hugging Face does */
        result = folder_add(f, path, "model.safetensors", e);
    else if (folder_has(index))
        result = folder_index(f, path, index, e);
    else {
        DIR *dir = file_folder(path);
        result = dir ? folder_list(f, path, dir, e)
                     : err_set(e, ERR_DATA, "cannot look into %s: %s", log_safe(path), strerror(errno));
        if (dir)
            closedir(dir);
    }
    if (result < 0)
        folder_free(f);
    return result;
}

void folder_free(struct folder *f)
{
    json_decref(f->weights);
    mem_free(f->files);
    arena_free(&f->arena);
    *f = (struct folder){0};
}
