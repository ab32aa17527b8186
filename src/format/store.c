#define _GNU_SOURCE
#include "format/store.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "format/folder.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "format/names.h"
#include "format/safetensors.h"

#include <errno.h>
#include <libgen.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

enum { STORE_MOST_TENSORS = 1 << 20 };

struct store_file {
    const char *path;
    struct map map;
    struct safetensors st;
};

struct store_beside {
    struct store_beside *next;
    const char *name, *path; /* path NULL: looked for, and not there */
};

struct store_own {
    struct store store;
    struct arena arena;
    const char *folder;       /* NULL for a GGUF */
    struct store_file *files; /* (file_count) */
    size_t file_count;
    struct tensor *tensors; /* of all files */
    struct names index;     /* of tensors; a GGUF has its own */
    pthread_mutex_t lock;   /* guards beside and the arena once the store is open */
    struct store_beside *beside;
};

const char *store_beside(const struct store *s, const char *file)
{
    struct store_own *own = s->own;
    if (!own->folder)
        return NULL;
    pthread_mutex_lock(&own->lock);
    struct store_beside *b = own->beside;
    while (b && strcmp(b->name, file) != 0)
        b = b->next;
    if (!b && (b = arena_alloc(&own->arena, 1, sizeof *b))) {
        struct stat st;
        char *path = folder_join(&own->arena, own->folder, file);
        *b = (struct store_beside){.next = own->beside,
                                   .name = arena_strndup(&own->arena, file, strlen(file))};
        b->path = path && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? path : NULL;
        if (b->name)
            own->beside = b;
    }
    pthread_mutex_unlock(&own->lock);
    return b ? b->path : NULL;
}

static int store_read_beside(struct store_own *own, const char *file, json_t **out, struct err *e)
{
    const char *path = store_beside(&own->store, file);
    if (path && !(*out = jsonread_file(path, &jsonread_config, e)))
        return -1;
    return 0;
}

/* The texts that every model of this kind has read. */
static int store_open_texts(struct store_own *own, struct err *e)
{
    if (store_read_beside(own, "config.json", &own->store.config, e) < 0 ||
        store_read_beside(own, "generation_config.json", &own->store.generation, e) < 0)
        return -1;
    /* an older name of the part for text */
    json_t *config = own->store.config, *text = json_object_get(config, "llm_config");
    if (json_is_object(text) && !json_is_object(json_object_get(config, "text_config")) &&
        json_object_set(config, "text_config", text) < 0)
        return err_memory(e, "config.json", 0);
    return 0;
}

static int store_open_file(struct store_own *own, const char *path, struct err *e)
{
    struct store_file *f = &own->files[own->file_count];
    f->map.fd = -1;
    if (!(f->path = arena_strndup(&own->arena, path, strlen(path))))
        return err_memory(e, "a path", strlen(path));
    own->file_count++;
    if (map_open(&f->map, path, e) < 0)
        return -1;
    if (safetensors_parse(&f->st, f->map.data, f->map.size, e) < 0)
        return err_prefix(e, "%s", log_safe(path));
    own->store.bytes += f->map.size;
    own->store.count += f->st.count;
    if (own->store.count > STORE_MOST_TENSORS)
        return err_set(e, ERR_DATA, "%s: the model has more than %d tensors", log_safe(path),
                       STORE_MOST_TENSORS);
    return 0;
}

/* The table holds the tensors file by file. */
static const struct store_file *store_file_of(const struct store_own *own, const struct tensor *t)
{
    size_t i = (size_t)(t - own->tensors), f = 0;
    while (i >= own->files[f].st.count)
        i -= own->files[f++].st.count;
    return &own->files[f];
}

/* One table and one index over the tensors of all files. */
static int store_gather(struct store_own *own, struct err *e)
{
    size_t n = 0;
    if (!(own->tensors = mem_alloc(own->store.count, sizeof *own->tensors)))
        return err_memory(e, "the tensors", own->store.count * sizeof *own->tensors);
    for (size_t f = 0; f < own->file_count; f++) {
        const struct safetensors *st = &own->files[f].st;
        for (size_t i = 0; i < st->count; i++, n++) {
            own->tensors[n] = st->tensors[i];
            int there = names_add(&own->index, st->tensors[i].name, (uint32_t)n);
            if (there < 0)
                return err_memory(e, "the index of tensors", own->index.count);
            if (there)
                return err_set(e, ERR_DATA, "tensor '%s' is in %s and in another shard",
                               log_safe(st->tensors[i].name), log_safe(own->files[f].path));
        }
    }
    own->store.tensors = own->tensors;
    own->store.metadata = own->files[0].st.metadata;
    return 0;
}

/* Checks that every weight is in the shard that the index names. */
static int store_check_shards(const struct store_own *own, json_t *weights, struct err *e)
{
    const char *name;
    json_t *value;
    json_object_foreach(weights, name, value)
    {
        const struct tensor *t = store_find(&own->store, name);
        const struct store_file *f = t ? store_file_of(own, t) : NULL;
        const char *base = f ? strrchr(f->path, '/') : NULL, *said = json_string_value(value);
        if (!base || strcmp(base + 1, said) != 0)
            return err_set(e, ERR_DATA, "the index says that tensor '%s' is in %s, and it is not",
                           log_safe(name), log_safe(said));
    }
    return 0;
}

static int store_open_files(struct store_own *own, char *const *files, size_t count, json_t *weights,
                            struct err *e)
{
    own->store.kind = STORE_SAFETENSORS;
    /* config.json first: a quantised checkpoint is then refused by name, whatever its tensors look like */
    if (store_open_texts(own, e) < 0 || folder_refuse_quant(own->store.config, NULL, 0, e) < 0)
        return -1;
    if (!(own->files = mem_zalloc(count, sizeof *own->files)))
        return err_memory(e, "the list of files", count * sizeof *own->files);
    for (size_t i = 0; i < count; i++)
        if (store_open_file(own, files[i], e) < 0)
            return count > 1 ? err_prefix(e, "shard %zu of %zu", i + 1, count) : -1;
    if (store_gather(own, e) < 0 || store_check_shards(own, weights, e) < 0)
        return -1;
    return folder_refuse_quant(NULL, own->tensors, own->store.count, e);
}

static int store_open_gguf(struct store_own *own, const char *path, struct err *e)
{
    struct store *s = &own->store;
    s->kind = STORE_GGUF;
    own->folder = NULL;
    if (gguf_open(&s->gguf, path, e) < 0)
        return -1;
    s->count = gguf_tensor_count(s->gguf);
    s->tensors = gguf_tensor_at(s->gguf, 0);
    s->bytes = gguf_file_bytes(s->gguf);
    return 0;
}

static int store_open_folder(struct store_own *own, const char *path, struct err *e)
{
    struct folder f;
    if (folder_look(&f, path, e) < 0)
        return -1;
    own->folder = path;
    int result = f.kind == FOLDER_GGUF ? store_open_gguf(own, f.files[0], e)
                                       : store_open_files(own, f.files, f.count, f.weights, e);
    folder_free(&f);
    return result;
}

/* A single file: its first bytes determine its kind. */
static int store_open_single(struct store_own *own, const char *path, struct err *e)
{
    struct map m;
    if (map_open(&m, path, e) < 0)
        return -1;
    unsigned char head[16] = {0};
    size_t n = size_min(m.size, sizeof head);
    if (n)
        memcpy(head, m.data, n);
    map_close(&m);
    const bool gguf = !memcmp(head, "GGUF", 4); /* of 123 tensors it has a '{' there too */
    if (!gguf && folder_refuse_pickle(path, head, n, e) < 0)
        return -1;
    if (gguf || n < 9 || head[8] != '{')
        return store_open_gguf(own, path, e);
    char *copy = arena_strndup(&own->arena, path, strlen(path)), *one = copy;
    if (!copy || !(own->folder = arena_strndup(&own->arena, path, strlen(path))))
        return err_memory(e, "a path", strlen(path));
    own->folder = dirname((char *)(uintptr_t)own->folder);
    return store_open_files(own, &one, 1, NULL, e);
}

int store_open(struct store **out, const char *path, struct err *e)
{
    struct store_own *own = mem_zalloc(1, sizeof *own);
    if (!own)
        return err_memory(e, "the model's tables", sizeof *own);
    own->store.own = own;
    pthread_mutex_init(&own->lock, NULL);
    struct stat st;
    int result = -1;
    if (!(own->store.path = arena_strndup(&own->arena, path, strlen(path))))
        err_memory(e, "a path", strlen(path));
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        result = store_open_folder(own, own->store.path, e);
    else
        result = store_open_single(own, own->store.path, e);
    if (result < 0) {
        store_close(&own->store);
        return -1;
    }
    *out = &own->store;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    struct store_own *own = s->own;
    gguf_close(s->gguf);
    json_decref(s->config);
    json_decref(s->generation);
    for (size_t i = 0; i < own->file_count; i++) {
        safetensors_free(&own->files[i].st);
        map_close(&own->files[i].map);
    }
    mem_free(own->files);
    mem_free(own->tensors);
    names_free(&own->index);
    arena_free(&own->arena);
    pthread_mutex_destroy(&own->lock);
    mem_free(own);
}

const struct tensor *store_find(const struct store *s, const char *name)
{
    const struct store_own *own = s->own;
    if (s->gguf)
        return gguf_find_tensor(s->gguf, name);
    int64_t i = names_find(&own->index, name);
    return i < 0 ? NULL : &s->tensors[i];
}

int store_check(const struct store *s, struct err *e)
{
    const struct store_own *own = s->own;
    if (s->gguf)
        return gguf_check(s->gguf, e);
    for (size_t i = 0; i < own->file_count; i++)
        if (map_check(&own->files[i].map, e))
            return -1;
    return 0;
}

bool store_is_changed(const struct store *s)
{
    const struct store_own *own = s->own;
    bool changed = s->gguf && gguf_is_changed(s->gguf);
    for (size_t i = 0; i < own->file_count; i++)
        changed |= map_is_changed(&own->files[i].map);
    return changed;
}

bool store_is_private(const struct store *s)
{
    const struct store_own *own = s->own;
    bool is_private = s->gguf && gguf_is_private(s->gguf);
    for (size_t i = 0; i < own->file_count; i++)
        is_private |= own->files[i].map.is_private;
    return is_private;
}

const char *store_tensor_file(const struct store *s, const struct tensor *t, size_t *offset)
{
    if (s->gguf)
        return gguf_tensor_file(s->gguf, t, offset);
    const struct store_file *f = store_file_of(s->own, t);
    *offset = (size_t)(t->data - f->map.data);
    return f->path;
}
