#define _GNU_SOURCE
#include "run/vision.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/gguf.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { VISION_KEPT = 256 << 20 }; /* bytes of rows that are kept for pictures that come again */

/* ---- which file ---- */

static bool is_mmproj(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && !strcasecmp(name + n - 5, ".gguf") && strcasestr(name, "mmproj");
}

/* Of several, the one whose name, behind "mmproj-", shares most with the model's, then the first by name. */
static size_t common(const char *a, const char *b)
{
    size_t n = 0;
    a += !strncasecmp(a, "mmproj-", 7) ? 7 : 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

/* "mmproj*.gguf" beside a model, or in the folder that was given; an empty path where there is none. */
static void find_mmproj(const char *model, char *out, size_t size)
{
    const char *slash = strrchr(model, '/'), *name = slash ? slash + 1 : model;
    char folder[4096], best[256] = "";
    out[0] = 0;
    if (is_mmproj(name) || strlen(model) >= sizeof folder)
        return;
    snprintf(folder, sizeof folder, "%s", model);
    DIR *d = file_folder(folder);
    if (!d) {
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - model) : 1, slash ? model : ".");
        d = file_folder(folder[0] ? folder : "/");
    }
    for (const struct dirent *f; d && (f = readdir(d));) {
        if (!is_mmproj(f->d_name) || strlen(f->d_name) >= sizeof best)
            continue;
        size_t now = common(f->d_name, name), before = common(best, name);
        if (!best[0] || now > before || (now == before && strcmp(f->d_name, best) < 0))
            snprintf(best, sizeof best, "%s", f->d_name);
    }
    if (d)
        closedir(d);
    if (best[0])
        snprintf(out, size, "%s/%s", folder, best);
}

/* ---- the image token ---- */

/* In a GGUF file by its name. */
static int32_t find_token(const struct store *model, enum vision_family family)
{
    static const char *const names[] = {[VISION_LLAVA] = "<image>",
                                        [VISION_LLAVA_NEXT] = "<image>",
                                        [VISION_GEMMA3] = "<image_soft_token>",
                                        [VISION_GEMMA4] = "<|image|>",
                                        [VISION_IDEFICS3] = "<image>",
                                        [VISION_PIXTRAL] = "[IMG]",
                                        [VISION_QWEN2] = "<|image_pad|>",
                                        [VISION_QWEN2_5] = "<|image_pad|>",
                                        [VISION_QWEN3] = "<|image_pad|>",
                                        [VISION_INTERNVL] = "<IMG_CONTEXT>"};
    const struct gguf_key *tokens = NULL;
    struct err none = {0};
    struct gguf_str text;
    size_t at = 0;
    if (model->kind != STORE_GGUF || family >= sizeof names / sizeof *names || !names[family] ||
        gguf_get_array(model->gguf, "tokenizer.ggml.tokens", GGUF_STRING, 0, &tokens, &none) != 1)
        return -1;
    const size_t n = strlen(names[family]);
    for (int32_t i = 0; gguf_next_str(tokens, &at, &text); i++)
        if (text.n == n && !memcmp(text.s, names[family], n))
            return i;
    return -1;
}

/* ---- open and close ---- */

bool vision_found(const struct store *model)
{
    char path[4352] = "";
    if (model->kind == STORE_GGUF)
        find_mmproj(model->path, path, sizeof path);
    return path[0] || vision_present(model);
}

int vision_open(struct vision **out, const struct store *model, const struct vision_options *o, struct err *e)
{
    char path[4352] = "";
    *out = NULL;
    if (o->mmproj)
        snprintf(path, sizeof path, "%s", o->mmproj);
    else if (model->kind == STORE_GGUF)
        find_mmproj(model->path, path, sizeof path);
    if (!path[0] && !vision_present(model))
        return 0;
    struct vision *v = mem_zalloc(1, sizeof *v);
    if (!v)
        return err_memory(e, "the tower", sizeof *v);
    v->device = mem_strndup(o->device ? o->device : "cpu", strlen(o->device ? o->device : "cpu"));
    v->device_options = o->device_options;
    v->ids = picture_ids_open();
    int failed = !v->device || !v->ids ? err_memory(e, "the tower", 0) : 0;
    if (!failed && path[0])
        failed = store_open(&v->own, path, e);
    const struct store *from = v->own ? v->own : model;
    const bool pads = o->device && !strncmp(o->device, "cuda", 4) && !o->device_options.exact;
    if (!failed && tower_open(&v->tower, from, pads ? cuda_head_dim : NULL, e)) {
        /* one that was only found may be of a kind that is not supported: the text is still good */
        failed = -1;
        if (v->own && !o->mmproj) {
            log_warn("%s; images are not supported with this model", e->text);
            *e = (struct err){0};
            vision_close(v);
            return 0;
        }
    }
    if (failed) {
        vision_close(v);
        return -1;
    }
    uint64_t each = 0;
    struct err none = {0};
    struct vision_params said;
    if (v->own && vision_present(model) &&
        !vision_read(&said, model, &none)) { /* a folder with an mmproj file */
        v->tower->v.image_token = said.image_token;
        v->tower->v.two_sided = said.two_sided;
        v->tower->v.sides_said = true;
    }
    none = (struct err){0};
    v->image_token =
        v->tower->v.image_token >= 0 ? v->tower->v.image_token : find_token(model, v->tower->v.family);
    v->tower->v.image_token = v->image_token;
    /* its small models, which have numbers for each layer, are causal */
    if (model->kind == STORE_GGUF && v->tower->v.family == VISION_GEMMA4 && !v->tower->v.sides_said)
        v->tower->v.two_sided = gguf_get_u64(model->gguf, "gemma4.embedding_length_per_layer_input", 0,
                                             1 << 24, &each, &none) != 1 ||
                                !each;
    *out = v;
    return 0;
}

bool vision_look(struct vision_params *out, const struct store *model)
{
    char path[4352] = "";
    struct err none = {0};
    struct store *own = NULL;
    if (model->kind == STORE_GGUF)
        find_mmproj(model->path, path, sizeof path);
    if (path[0] && store_open(&own, path, &none))
        return false;
    bool found = vision_present(own ? own : model) && vision_read(out, own ? own : model, &none) == 0;
    if (own)
        store_close(own);
    return found;
}

void vision_close(struct vision *v)
{
    if (!v)
        return;
    for (struct picture_rows *r = v->newest, *next; r; r = next) {
        next = r->next;
        vision_drop(r);
    }
    if (v->goes)
        vision_drop(v->goes);
    picture_drop(v->going);
    encoder_close(v->encoder);
    tower_close(v->tower);
    if (v->own)
        store_close(v->own);
    picture_ids_close(v->ids);
    mem_free(v->device);
    mem_free(v);
}

struct model_images vision_images(const struct vision *v)
{
    return v ? (struct model_images){.on = true,
                                     .deepstacks = v->tower->v.deepstacks,
                                     .two_sided = v->tower->v.two_sided,
                                     .whole = v->tower->v.two_sided ? vision_most_rows(&v->tower->v) : 0,
                                     .windows_only = v->tower->v.family == VISION_GEMMA4}
             : (struct model_images){0};
}

int vision_fits(const struct vision *v, const struct model *m, struct err *e)
{
    if (!v || v->tower->v.out_width == m->h.width)
        return 0;
    return err_set(
        e, ERR_DATA,
        "%s: the tower gives rows of %u values, and the model %s takes %u; they do not belong together",
        log_safe(v->tower->model.store->path), v->tower->v.out_width, log_safe(m->store->path), m->h.width);
}

int vision_load(struct vision *v, struct err *e)
{
    return v->encoder ? 0 : encoder_open(&v->encoder, v->tower, v->device, &v->device_options, e);
}

/* ---- rows ---- */

struct picture_rows *vision_hold(struct picture_rows *r)
{
    r->users++;
    return r;
}

void vision_drop(struct picture_rows *r)
{
    if (!r || --r->users)
        return;
    mem_free(r->data);
    mem_free(r);
}

static uint64_t rows_bytes(const struct picture_rows *r)
{
    return (uint64_t)r->rows * r->width * sizeof *r->data;
}

/* The rows of this picture, moved to the front of those that are kept. */
static struct picture_rows *find_rows(struct vision *v, const struct picture *p)
{
    for (struct picture_rows **at = &v->newest, *r; (r = *at); at = &r->next)
        if (!memcmp(r->digest, p->digest, sizeof r->digest)) {
            *at = r->next;
            r->next = v->newest;
            v->newest = r;
            return r;
        }
    return NULL;
}

static void keep_rows(struct vision *v, struct picture_rows *r)
{
    r->next = v->newest;
    v->newest = r;
    v->bytes += rows_bytes(r);
    while (v->bytes > VISION_KEPT && v->newest->next) { /* the last is the least recently used */
        struct picture_rows **at = &v->newest;
        while ((*at)->next)
            at = &(*at)->next;
        struct picture_rows *old = *at;
        *at = NULL;
        v->bytes -= rows_bytes(old);
        vision_drop(old);
    }
}

static void encode_end(struct vision *v)
{
    picture_drop(v->going);
    v->going = NULL;
    v->goes = NULL;
}

static int encode_begin(struct vision *v, struct picture *p, struct err *e)
{
    if (vision_load(v, e))
        return -1;
    struct picture_rows *r = mem_zalloc(1, sizeof *r);
    const uint32_t width = encoder_width(v->encoder);
    float *data = r ? mem_alloc(p->rows, width * sizeof *data) : NULL;
    if (!data) {
        mem_free(r);
        return err_memory(e, "rows of an image", (uint64_t)p->rows * width * sizeof *data);
    }
    *r = (struct picture_rows){.users = 1, .rows = p->rows, .width = width, .data = data};
    memcpy(r->digest, p->digest, sizeof r->digest);
    if (encoder_start(v->encoder, &p->prepared, data, e)) {
        vision_drop(r);
        return -1;
    }
    v->going = picture_hold(p);
    v->goes = r;
    return 0;
}

int vision_encode_some(struct vision *v, struct picture *p, double seconds, struct picture_rows **out,
                       struct err *e)
{
    struct picture_rows *r = find_rows(v, p);
    if (r) {
        *out = vision_hold(r);
        return 1;
    }
    const double began = clock_now();
    if (!v->going && encode_begin(v, p, e))
        return -1;
    const bool own = !memcmp(v->going->digest, p->digest, sizeof p->digest);
    const int done = encoder_go(v->encoder, seconds, e);
    v->seconds += clock_now() - began;
    if (!done)
        return 0;
    r = v->goes;
    encode_end(v);
    if (done < 0) {
        encoder_stop(v->encoder);
        vision_drop(r);
        if (!own) /* whoever asked for that one gets its error when it is tried again */
            *e = (struct err){0};
        return own ? -1 : 0;
    }
    keep_rows(v, r);
    if (own)
        *out = vision_hold(r);
    return own;
}

struct picture_rows *vision_encode(struct vision *v, struct picture *p, struct err *e)
{
    struct picture_rows *r = NULL;
    int done;
    while (!(done = vision_encode_some(v, p, 1e9, &r, e)))
        ;
    return done < 0 ? NULL : r;
}

uint64_t vision_encoded(const struct vision *v)
{
    return v && v->encoder ? encoder_count(v->encoder) : 0;
}

int vision_place(const struct vision *v, const struct prompt_image *images, uint32_t count, int32_t *ids,
                 struct seq_image *out, struct err *e)
{
    const uint32_t unit = v->tower->v.patch * v->tower->v.merge;
    for (uint32_t k = 0; k < count; k++) {
        const struct prompt_image *m = &images[k];
        const struct vision_tile *t = &m->picture->prepared.tile[0];
        int32_t id = picture_ids_take(v->ids, m->picture);
        if (!id)
            return err_memory(e, "the names of images", 0);
        for (uint32_t i = m->first; i < m->first + m->tokens; i++)
            if (ids[i] == v->image_token)
                ids[i] = id++;
        out[k] = (struct seq_image){
            .first = m->first, .tokens = m->tokens, .cols = t->width / unit, .rows = t->height / unit};
    }
    return 0;
}
