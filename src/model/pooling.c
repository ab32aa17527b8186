#include "model/pooling.h"

#include "base/log.h"
#include "format/jsonread.h"
#include "format/modules.h"
#include "model/arch.h"

#include <string.h>

/* The names of sentence-transformers; `flag` is the older spelling, a member that is true. */
static const struct {
    const char *name, *flag;
    enum pooling kind;
} pooling_modes[] = {
    {"cls", "pooling_mode_cls_token", POOLING_CLS},
    {"max", "pooling_mode_max_tokens", POOLING_MAX},
    {"mean", "pooling_mode_mean_tokens", POOLING_MEAN},
    {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", POOLING_MEAN_SQRT},
    {"weightedmean", "pooling_mode_weightedmean_tokens", POOLING_WEIGHTED},
    {"lasttoken", "pooling_mode_lasttoken", POOLING_LAST},
};
enum { POOLING_MODES = sizeof pooling_modes / sizeof *pooling_modes };

static enum pooling pooling_named(const char *name, struct err *e)
{
    for (size_t i = 0; i < POOLING_MODES; i++)
        if (!strcmp(pooling_modes[i].name, name))
            return pooling_modes[i].kind;
    err_set(e, ERR_DATA,
            "the pooling \"%s\" is not known; cls, max, mean, mean_sqrt_len_tokens, weightedmean "
            "and lasttoken are",
            log_safe(name));
    return POOLING_NONE;
}

static int pooling_config(struct hparams *h, const json_t *config, struct err *e)
{
    struct jsonread r = {config, "the pooling's config.json", e};
    const json_t *mode = jsonread_get(&r, config, "pooling_mode?", JSONREAD_IS_STRING | JSONREAD_IS_ARRAY);
    size_t count = 0;
    for (size_t i = 0; !mode && i < POOLING_MODES; i++)
        if (jsonread_bool(&r, config, pooling_modes[i].flag, false)) {
            h->pooling = pooling_modes[i].kind;
            count++;
        }
    if (json_is_array(mode)) {
        count = json_array_size(mode);
        mode = count ? jsonread_item(&r, mode, 0, JSONREAD_IS_STRING) : NULL;
    }
    if (json_is_string(mode))
        h->pooling = pooling_named(json_string_value(mode), e);
    if (count > 1)
        err_set(e, ERR_DATA, "the model joins %zu kinds of pooling; one is expected", count);
    return e->code ? -1 : 0;
}

/* A folder: the module of modules.json, or the file that older ones have without it. */
static int pooling_folder(struct hparams *h, const struct store *s, struct err *e)
{
    struct modules m;
    json_t *config = NULL;
    if (modules_open(&m, s, e))
        return -1;
    const char *kind, *path = m.list ? NULL : store_beside(s, "1_Pooling/config.json");
    for (size_t i = 0; !config && !e->code && (kind = modules_kind(&m, i)); i++)
        if (!strcmp(kind, "Pooling"))
            config = modules_config(&m, i, e);
    if (path)
        config = jsonread_file(path, &jsonread_config, e);
    if (config)
        pooling_config(h, config, e);
    json_decref(config);
    modules_close(&m);
    return e->code ? -1 : 0;
}

int pooling_read(struct hparams *h, const struct keys *k, const struct store *s, struct err *e)
{
    static const uint32_t range[2] = {0, 4};
    uint32_t type = h->arch->encoder ? POOLING_MEAN : POOLING_NONE;
    if (keys_u32(k, "pooling_type", NULL, range, &type, e) < 0)
        return -1;
    h->pooling = type <= POOLING_LAST ? (enum pooling)type : POOLING_NONE;
    return s->kind == STORE_GGUF ? 0 : pooling_folder(h, s, e);
}
