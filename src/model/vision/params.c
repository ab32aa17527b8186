/* Reading what a model says about images: one table of families, the fields that both containers have, then the
 * processor's file of a folder, or what GGUF files leave to the reader. */
#include "model/vision/params.h"

#include "base/log.h"
#include "codec/dtype.h"
#include "format/gguf.h"
#include "format/jsonread.h"
#include "model/act.h"
#include "model/keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t SIZE[2] = {1, 1u << 20};
static const uint32_t COUNT[2] = {0, 1u << 24};
static const double REAL[2] = {-1e9, 1e9};

#define CLIP_MEAN                                                                                            \
    {                                                                                                        \
        0.48145466f, 0.4578275f, 0.40821073f                                                                 \
    }
#define CLIP_STD                                                                                             \
    {                                                                                                        \
        0.26862954f, 0.26130258f, 0.27577711f                                                                \
    }
#define HALF                                                                                                 \
    {                                                                                                        \
        0.5f, 0.5f, 0.5f                                                                                     \
    }

/* A family: its names, what config.json may leave out of vision_config, and how its processor works unless its file says
 * otherwise. */
struct vision_kind {
    enum vision_family family;
    const char *hf;        /* model_type, "a|b" */
    const char *projector; /* of GGUF */
    const char *defaults;  /* of vision_config, as JSON */
    uint32_t merge;        /* where neither container says it */
    bool class_row, two_sided;
    enum act_kind projector_act;
    struct vision_pixels pixels;
};

#define STEPS .resize = true, .rescale = true, .normalise = true, .scale = 1 / 255.0

#define CLIP_TOWER                                                                                           \
    "{\"hidden_size\": 768, \"intermediate_size\": 3072, \"num_hidden_layers\": 12, "                        \
    "\"num_attention_heads\": 12, \"image_size\": 224, \"patch_size\": 32, \"hidden_act\": \"quick_gelu\", " \
    "\"layer_norm_eps\": 1e-5}"

static const struct vision_kind kinds[] = {
    {VISION_LLAVA,
     "llava",
     "mlp",
     CLIP_TOWER,
     1,
     true,
     false,
     ACT_GELU,
     {SIZING_CROP, FILTER_BICUBIC, STEPS, .crop = true, .mean = CLIP_MEAN, .std = CLIP_STD}},
    {VISION_LLAVA_NEXT,
     "llava_next",
     "",
     CLIP_TOWER,
     1,
     true,
     false,
     ACT_GELU,
     {SIZING_ANYRES, FILTER_BICUBIC, STEPS, .crop = true, .mean = CLIP_MEAN, .std = CLIP_STD}},
    {VISION_GEMMA3,
     "gemma3",
     "gemma3",
     "{\"hidden_size\": 768, \"intermediate_size\": 3072, \"num_hidden_layers\": 12, "
     "\"num_attention_heads\": 12, "
     "\"image_size\": 224, \"patch_size\": 16, \"hidden_act\": \"gelu_pytorch_tanh\", \"layer_norm_eps\": "
     "1e-6}",
     4,
     false,
     true,
     ACT_NONE,
     {SIZING_EXACT, FILTER_BILINEAR, STEPS, .mean = HALF, .std = HALF}},
    {VISION_GEMMA4,
     "gemma4",
     "gemma4v",
     "{\"hidden_size\": 768, \"intermediate_size\": 3072, \"num_hidden_layers\": 16, "
     "\"num_attention_heads\": 12, "
     "\"head_dim\": 64, \"patch_size\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"rms_norm_eps\": "
     "1e-6, "
     "\"pooling_kernel_size\": 3, \"position_embedding_size\": 10240, \"rope_theta\": 100}",
     3,
     false,
     false,
     ACT_NONE,
     {SIZING_TOKENS, FILTER_BICUBIC, .resize = true, .rescale = true, .scale = 1 / 255.0, .max_tokens = 280,
      .std = {1, 1, 1}}},
    {VISION_IDEFICS3,
     "idefics3|smolvlm",
     "idefics3",
     "{\"hidden_size\": 1152, \"intermediate_size\": 3072, \"num_hidden_layers\": 12, "
     "\"num_attention_heads\": 16, "
     "\"image_size\": 224, \"patch_size\": 32, \"hidden_act\": \"gelu_pytorch_tanh\", \"layer_norm_eps\": "
     "1e-6}",
     2,
     false,
     false,
     ACT_NONE,
     {SIZING_SPLIT, FILTER_LANCZOS, STEPS, .split = true, .mean = HALF, .std = HALF}},
    {VISION_PIXTRAL,
     "mistral3|pixtral",
     "pixtral",
     "{\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 24, "
     "\"num_attention_heads\": 16, "
     "\"image_size\": 1024, \"patch_size\": 16, \"hidden_act\": \"gelu\", \"rope_theta\": 10000, "
     "\"head_dim\": 64}",
     1,
     false,
     false,
     ACT_GELU,
     {SIZING_LONGEST, FILTER_BICUBIC, STEPS, .mean = CLIP_MEAN, .std = CLIP_STD}},
    {VISION_QWEN2,
     "qwen2_vl",
     "qwen2vl_merger",
     "{\"depth\": 32, \"embed_dim\": 1280, \"hidden_size\": 3584, \"hidden_act\": \"quick_gelu\", "
     "\"mlp_ratio\": 4, "
     "\"num_heads\": 16, \"patch_size\": 14, \"temporal_patch_size\": 2}",
     2,
     false,
     false,
     ACT_GELU,
     {SIZING_PIXELS, FILTER_BICUBIC, STEPS, .mean = CLIP_MEAN, .std = CLIP_STD}},
    {VISION_QWEN2_5,
     "qwen2_5_vl",
     "qwen2.5vl_merger",
     "{\"depth\": 32, \"hidden_size\": 1280, \"hidden_act\": \"silu\", \"intermediate_size\": 3420, "
     "\"num_heads\": 16, "
     "\"patch_size\": 14, \"temporal_patch_size\": 2, \"window_size\": 112, "
     "\"fullatt_block_indexes\": [7, 15, 23, 31]}",
     2,
     false,
     false,
     ACT_GELU,
     {SIZING_PIXELS, FILTER_BICUBIC, STEPS, .mean = CLIP_MEAN, .std = CLIP_STD}},
    {VISION_QWEN3,
     "qwen3_vl|qwen3_vl_moe|qwen3_5|qwen3_5_moe",
     "qwen3vl_merger",
     "{\"depth\": 27, \"hidden_size\": 1152, \"hidden_act\": \"gelu_pytorch_tanh\", \"intermediate_size\": "
     "4304, "
     "\"num_heads\": 16, \"patch_size\": 16, \"temporal_patch_size\": 2, \"num_position_embeddings\": 2304}",
     2,
     false,
     false,
     ACT_GELU,
     {SIZING_PIXELS, FILTER_BICUBIC, STEPS, .mean = HALF, .std = HALF}},
    {VISION_INTERNVL,
     "internvl",
     "internvl",
     "{\"hidden_size\": 1024, \"intermediate_size\": 4096, \"num_hidden_layers\": 24, "
     "\"num_attention_heads\": 16, "
     "\"image_size\": 448, \"patch_size\": 14, \"hidden_act\": \"gelu\", \"layer_norm_eps\": 1e-6}",
     2,
     true,
     false,
     ACT_GELU,
     {SIZING_GRID, FILTER_BICUBIC, STEPS, .split = true, .thumbnail = true, .min_tiles = 1, .max_tiles = 12,
      .mean = {0.485f, 0.456f, 0.406f}, .std = {0.229f, 0.224f, 0.225f}}},
};

/* One of "a|b". */
static bool is_one(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *at; at += *at == '|') {
        size_t len = strcspn(at, "|");
        if (len == n && !memcmp(at, name, n))
            return true;
        at += len;
    }
    return false;
}

static const struct vision_kind *kind_of(const struct store *s, char name[48])
{
    name[0] = 0;
    if (s->kind == STORE_GGUF) {
        struct gguf_str text;
        struct err none = {0};
        if (gguf_get_str(s->gguf, "clip.projector_type", &text, &none) != 1 &&
            gguf_get_str(s->gguf, "clip.vision.projector_type", &text, &none) != 1)
            return NULL;
        snprintf(name, 48, "%.*s", (int)(text.n < 47 ? text.n : 47), text.s);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(kinds[i].projector, name))
                return &kinds[i];
        return NULL;
    }
    const json_t *vision = json_object_get(s->config, "vision_config");
    const char *type = json_string_value(json_object_get(s->config, "model_type")),
               *tower = json_string_value(json_object_get(vision, "model_type"));
    if (!json_is_object(vision) || !type)
        return NULL;
    snprintf(name, 48, "%s", type);
    if (!strcmp(type, "llava") && tower && !strcmp(tower, "pixtral"))
        type = "pixtral";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is_one(kinds[i].hf, type))
            return &kinds[i];
    return NULL;
}

bool vision_present(const struct store *s)
{
    char name[48];
    return kind_of(s, name) != NULL;
}

/* ---- the tower ---- */

/* A whole number, or the first of two equal ones. */
static int read_side(const struct keys *k, const char *gguf, const char *hf, uint32_t *out, struct err *e)
{
    return keys_u32(k, gguf, hf, SIZE, out, e);
}

static int read_act(struct vision_params *v, const struct keys *k, struct err *e)
{
    char name[64] = "";
    bool gelu = false, silu = false, by_erf = false;
    if (k->gguf) {
        if (keys_bool(k, ".clip.use_gelu", NULL, &gelu, e) < 0 ||
            keys_bool(k, ".clip.use_silu", NULL, &silu, e) < 0)
            return -1;
        v->act = gelu ? ACT_GELU_TANH : silu ? ACT_SILU : ACT_GELU_QUICK;
        if (v->family == VISION_INTERNVL)
            v->act = ACT_GELU;
        if (v->family == VISION_GEMMA4) /* its files say nothing */
            v->act = ACT_GELU_TANH;
        const int said = keys_bool(k, VISION_GELU_ERF, NULL, &by_erf, e);
        if (said > 0 && (v->act == ACT_GELU || v->act == ACT_GELU_TANH))
            v->act = by_erf ? ACT_GELU : ACT_GELU_TANH;
        return said < 0 ? -1 : 0;
    }
    if (keys_str(k, NULL, "hidden_act|hidden_activation", name, sizeof name, e) < 0)
        return -1;
    return act_named(name, &v->act)
               ? 0
               : err_set(e, ERR_DATA, "config.json: the activation \"%s\" is not known", log_safe(name));
}

static int read_shape(struct vision_params *v, const struct keys *k, struct err *e)
{
    uint32_t ratio = 0;
    v->eps = v->family == VISION_PIXTRAL ? 1e-5f : 1e-6f;
    if (read_side(k, "patch_size", "patch_size", &v->patch, e) < 0 ||
        read_side(k, "image_size", "image_size", &v->image_size, e) < 0 ||
        keys_u32(k, "embedding_length", v->family == VISION_QWEN2 ? "embed_dim" : "hidden_size", SIZE,
                 &v->width, e) < 0 ||
        keys_u32(k, "block_count", "num_hidden_layers|depth", SIZE, &v->layers, e) < 0 ||
        keys_u32(k, "attention.head_count", "num_attention_heads|num_heads", SIZE, &v->heads, e) < 0 ||
        keys_u32(k, "attention.head_count_kv", "num_key_value_heads", SIZE, &v->kv_heads, e) < 0 ||
        keys_u32(k, "attention.head_dim", "head_dim", SIZE, &v->head_dim, e) < 0 ||
        keys_u32(k, "feed_forward_length", "intermediate_size", SIZE, &v->ffn, e) < 0 ||
        keys_u32(k, NULL, "mlp_ratio", SIZE, &ratio, e) < 0 ||
        keys_u32(k, "projection_dim", NULL, SIZE, &v->out_width, e) < 0 ||
        keys_u32(k, NULL, "temporal_patch_size", SIZE, &v->frames, e) < 0 ||
        keys_f32(k, "attention.layer_norm_epsilon", "layer_norm_eps|rms_norm_eps", REAL, &v->eps, e) < 0 ||
        keys_f32(k, NULL, "rope_theta", REAL, &v->theta, e) < 0 ||
        keys_u32(k, NULL, "num_position_embeddings|position_embedding_size", SIZE, &v->positions, e) < 0 ||
        keys_bool(k, NULL, "standardize", &v->standardise, e) < 0)
        return -1;
    v->ffn = v->ffn ? v->ffn : v->width * ratio;
    v->kv_heads = v->family == VISION_GEMMA4 && v->kv_heads ? v->kv_heads : v->heads;
    v->head_dim = v->head_dim ? v->head_dim : v->heads ? v->width / v->heads : 0;
    if (!v->patch || !v->width || !v->layers || !v->heads || !v->ffn || v->layers > VISION_LAYERS_MOST ||
        v->heads % v->kv_heads || (uint64_t)v->head_dim * v->heads > 1u << 20)
        return err_set(e, ERR_DATA,
                       "the tower has patches of %u, %u layers of width %u, %u heads (%u for keys), "
                       "feed-forward %u; that is none that is supported",
                       v->patch, v->layers, v->width, v->heads, v->kv_heads, v->ffn);
    return 0;
}

/* rope_parameters.rope_theta, as newer configs have it. */
static int read_theta(struct vision_params *v, const struct keys *k, struct err *e)
{
    json_t *rope = k->gguf ? NULL : json_object_get(k->config, "rope_parameters");
    struct keys in = {.config = rope};
    v->theta = v->theta > 0 ? v->theta : v->family == VISION_GEMMA4 ? 100 : 10000;
    return json_is_object(rope) ? keys_f32(&in, NULL, "rope_theta", REAL, &v->theta, e) : 0;
}

/* Layers that see everything: by number, or (GGUF) every n-th. */
static int read_windows(struct vision_params *v, const struct keys *k, struct err *e)
{
    uint32_t every = 0, list[VISION_LAYERS_MOST], n = keys_items(k, NULL, "fullatt_block_indexes");
    if (v->family != VISION_QWEN2_5)
        return 0;
    v->window = 112;
    if (keys_u32(k, "window_size", "window_size", SIZE, &v->window, e) < 0 ||
        keys_u32(k, "n_wa_pattern", NULL, COUNT, &every, e) < 0)
        return -1;
    for (uint32_t i = 0; every && i < v->layers; i++)
        v->full[i] = (i + 1) % every == 0;
    if (k->gguf)
        return 0;
    if (n > VISION_LAYERS_MOST || keys_each(k, NULL, "fullatt_block_indexes", COUNT, list, n, e) < 0)
        return e->code ? -1 : err_set(e, ERR_DATA, "config.json: fullatt_block_indexes has %u layers", n);
    for (uint32_t i = 0; i < n; i++)
        if (list[i] < v->layers)
            v->full[list[i]] = true;
    return 0;
}

static int read_deepstack(struct vision_params *v, const struct keys *k, struct err *e)
{
    const struct gguf_key *flags = NULL;
    uint32_t n = keys_items(k, NULL, "deepstack_visual_indexes");
    char name[64];
    if (v->family != VISION_QWEN3)
        return 0;
    if (k->gguf) {
        if (gguf_get_array(k->gguf, "clip.vision.is_deepstack_layers", GGUF_BOOL, 0, &flags, e) < 0)
            return -1;
        for (uint32_t i = 0;
             flags && i < flags->count && i < v->layers && v->deepstacks < VISION_DEEPSTACK_MOST; i++)
            if (gguf_item_i64(flags, i)) {
                v->merger[v->deepstacks] = i;
                v->deepstack[v->deepstacks++] = i;
            }
        return 0;
    }
    if (!keys_json(k, "deepstack_visual_indexes", name))
        return 0;
    const uint32_t range[2] = {0, v->layers - 1};
    uint32_t list[VISION_DEEPSTACK_MOST];
    if (n > VISION_DEEPSTACK_MOST || keys_each(k, NULL, "deepstack_visual_indexes", range, list, n, e) < 0)
        return e->code ? -1 : err_set(e, ERR_DATA, "config.json: deepstack_visual_indexes has %u layers", n);
    for (uint32_t layer = 0; layer < v->layers; layer++)
        for (uint32_t i = 0; i < n; i++)
            if (list[i] == layer) {
                v->merger[v->deepstacks] = i;
                v->deepstack[v->deepstacks++] = layer;
                break; /* said twice, the first merger counts */
            }
    return 0;
}

/* One layer whose rows are taken. config.json counts the embedding as 0, and negative numbers from the end. */
static int add_feature(struct vision_params *v, int64_t at, struct err *e)
{
    const int64_t n = v->layers, layer = at < 0 ? n + 1 + at : at;
    if (layer < 0 || layer > n || v->features == VISION_FEATURES_MOST)
        return err_set(e, ERR_DATA,
                       "vision_feature_layer: %lld is none of the tower's %lld layers, or there are too many",
                       (long long)at, (long long)n);
    v->feature[v->features++] = (uint32_t)layer;
    v->used_layers = layer > v->used_layers ? (uint32_t)layer : v->used_layers;
    return 0;
}

/* Layers of a GGUF file: those of llava hold the ones that are used, except where they say numbers. */
static int read_gguf_features(struct vision_params *v, const struct store *s, struct err *e)
{
    const struct gguf_key *list = NULL;
    if (gguf_get_array(s->gguf, "clip.vision.feature_layer", GGUF_I64, 0, &list, e) < 0)
        return -1;
    for (uint64_t i = 0; list && i < list->count; i++) {
        const int64_t at = gguf_item_i64(list, i);
        if (at > 0 && at <= v->layers && add_feature(v, at, e))
            return -1;
    }
    v->last_norm = true;
    return v->features ? 0 : add_feature(v, v->layers, e);
}

static int read_features(struct vision_params *v, const struct store *s, struct err *e)
{
    if (s->kind == STORE_GGUF)
        return read_gguf_features(v, s, e);
    const json_t *said = json_object_get(s->config, "vision_feature_layer");
    const bool several = json_is_array(said), none = !said || json_is_null(said);
    const int64_t range[2] = {-VISION_LAYERS_MOST - 1, VISION_LAYERS_MOST};
    const size_t count = several ? json_array_size(said) : 1;
    if (several && (!count || (v->family != VISION_LLAVA && v->family != VISION_LLAVA_NEXT)))
        return err_set(e, ERR_DATA, "config.json: vision_feature_layer is a list; one layer is expected");
    for (size_t i = 0; i < count; i++) {
        int64_t at = v->family == VISION_LLAVA || v->family == VISION_LLAVA_NEXT ? -2 : -1;
        if (!none && !jsonread_whole(several ? json_array_get(said, i) : said, range, &at))
            return err_set(e, ERR_DATA, "config.json: vision_feature_layer is no layer");
        v->last_norm = at == -1;
        if (add_feature(v, at, e))
            return -1;
    }
    return 0;
}

static int read_merge(struct vision_params *v, const struct store *s, const struct keys *k, struct err *e)
{
    const struct keys top = {.gguf = k->gguf, .prefix = k->prefix, .config = s->config};
    uint32_t tokens = 0;
    float ratio = 0;
    if (keys_u32(k, "spatial_merge_size", "spatial_merge_size|pooling_kernel_size", SIZE, &v->merge, e) < 0 ||
        keys_u32(&top, "projector.scale_factor", "scale_factor|spatial_merge_size", SIZE, &v->merge, e) < 0 ||
        keys_u32(&top, NULL, "mm_tokens_per_image", SIZE, &tokens, e) < 0 ||
        keys_f32(&top, NULL, "downsample_ratio", REAL, &ratio, e) < 0)
        return -1;
    if (tokens && v->family == VISION_GEMMA3) {
        uint32_t side = (uint32_t)(sqrt((double)tokens) + 0.5);
        v->merge = side ? v->image_size / v->patch / side : 0;
    }
    if (ratio > 0 && v->family == VISION_INTERNVL)
        v->merge = (uint32_t)(1 / ratio + 0.5);
    if (!v->merge || v->merge > 16)
        return err_set(e, ERR_DATA, "%u x %u patches are merged into one row; 1 to 16 is expected", v->merge,
                       v->merge);
    return 0;
}

/* ---- a folder ---- */

static int read_top(struct vision_params *v, const struct store *s, struct err *e)
{
    const struct keys top = {.config = s->config};
    const json_t *text = json_object_get(s->config, "text_config");
    const struct keys inner = {.config = json_is_object(text) ? (json_t *)(uintptr_t)text : s->config};
    uint32_t id = UINT32_MAX;
    char name[64] = "", strategy[32] = "default";
    if (keys_u32(&inner, NULL, "hidden_size", SIZE, &v->out_width, e) < 0 ||
        keys_str(&top, NULL, "projector_hidden_act", name, sizeof name, e) < 0 ||
        keys_str(&top, NULL, "vision_feature_select_strategy", strategy, sizeof strategy, e) < 0)
        return -1;
    if (name[0] && !act_named(name, &v->projector_act))
        return err_set(e, ERR_DATA, "config.json: projector_hidden_act \"%s\" is not known", log_safe(name));
    const bool llava = v->family == VISION_LLAVA || v->family == VISION_LLAVA_NEXT;
    v->keep_class = v->class_row && !strcmp(strategy, "full");
    v->drop_first = llava && !v->class_row && strcmp(strategy, "full") != 0;
    if (v->family == VISION_LLAVA_NEXT && vision_read_grids(&v->pixels, s->config, e))
        return -1;
    v->projector_eps = 1e-6f;
    if (v->family == VISION_PIXTRAL && keys_f32(&inner, NULL, "rms_norm_eps", REAL, &v->projector_eps, e) < 0)
        return -1;
    if (v->family == VISION_GEMMA4) {
        char both[32] = "";
        if (keys_str(&inner, NULL, "use_bidirectional_attention", both, sizeof both, e) < 0)
            return -1;
        v->two_sided = !strcmp(both, "vision");
        v->sides_said = true;
    }
    static const struct {
        const char *hf;
        size_t at;
    } ids[] = {
        {"image_token_id|image_token_index", offsetof(struct vision_params, image_token)},
        {"vision_start_token_id|boi_token_index|boi_token_id", offsetof(struct vision_params, image_begin)},
        {"vision_end_token_id|eoi_token_index|eoi_token_id", offsetof(struct vision_params, image_end)}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int got = keys_u32(&top, NULL, ids[i].hf, COUNT, &id, e);
        if (got < 0)
            return -1;
        if (got)
            *(int32_t *)(void *)((char *)v + ids[i].at) = (int32_t)id;
    }
    return 0;
}

/* ---- a GGUF file ---- */

/* Budgets that files do not state are those of the program that defines them. */
static int read_mmproj(struct vision_params *v, const struct keys *k, struct err *e)
{
    struct vision_pixels *p = &v->pixels;
    const uint64_t unit = (uint64_t)v->patch * v->merge * v->patch * v->merge;
    uint32_t longest = 0, least = 0, most = 0;
    float mean[3], std[3];
    int got_mean = keys_each_f32(k, "image_mean", NULL, REAL, mean, 3, e),
        got_std = got_mean < 0 ? -1 : keys_each_f32(k, "image_std", NULL, REAL, std, 3, e);
    if (got_mean < 0 || got_std < 0 || keys_u32(k, "preproc_image_size", NULL, SIZE, &longest, e) < 0 ||
        keys_u32(k, "preproc_min_tiles", NULL, SIZE, &p->min_tiles, e) < 0 ||
        keys_u32(k, "preproc_max_tiles", NULL, SIZE, &p->max_tiles, e) < 0 ||
        keys_u32(k, "image_min_pixels", NULL, COUNT, &least, e) < 0 ||
        keys_u32(k, "image_max_pixels", NULL, COUNT, &most, e) < 0)
        return -1;
    const int said = keys_bool(k, VISION_TWO_SIDED, NULL, &v->two_sided, e);
    if (said < 0)
        return -1;
    v->sides_said = said > 0;
    if (got_mean && got_std && v->family != VISION_GEMMA4) {
        memcpy(p->mean, mean, sizeof mean);
        memcpy(p->std, std, sizeof std);
    }
    p->width = p->height = p->shortest = p->tile = v->image_size;
    p->longest = longest ? longest : p->sizing == SIZING_SPLIT ? 4 * v->image_size : v->image_size;
    p->min_pixels = least ? least : 8 * unit;
    p->max_pixels = most ? most : 4096 * unit;
    if (p->sizing == SIZING_TOKENS && most >= unit)
        p->max_tokens = (uint32_t)(most / unit);
    v->projector_eps = v->eps;
    const struct tensor *table = gguf_find_tensor(k->gguf, "v.position_embd.weight");
    if (table && v->family == VISION_GEMMA4)
        v->positions = table->shape[1] < 1u << 24 ? (uint32_t)table->shape[1] : 0;
    if (v->family == VISION_QWEN2 || v->family == VISION_QWEN2_5 || v->family == VISION_QWEN3)
        v->projector_eps = 1e-6f;
    return 0;
}

/* ---- both ---- */

/* Grids and crops where the processor's file has none: those of its library. */
static void check_tiles(struct vision_pixels *p)
{
    static const uint32_t grids[][2] = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
    if (!p->grids && p->sizing == SIZING_ANYRES) {
        p->grids = sizeof grids / sizeof *grids;
        memcpy(p->grid, grids, sizeof grids);
    }
    p->pan_least = p->pan_least ? p->pan_least : 256;
    p->pan_most = p->pan_most ? p->pan_most : 4;
    p->pan_ratio = p->pan_ratio > 0 ? p->pan_ratio : 1.2;
}

/* Sizes that the processor's file left open, and what cannot be. */
static int check_params(struct vision_params *v, struct err *e)
{
    struct vision_pixels *p = &v->pixels;
    const uint32_t side = v->image_size, unit = v->patch * v->merge;
    if (p->sizing == SIZING_ANYRES) /* by the size that the processor cuts, also where it does not */
        p->tile = p->height ? p->height : p->resized_height ? p->resized_height : p->shortest;
    if (!p->crop && p->resized_width) {
        p->width = p->resized_width;
        p->height = p->resized_height;
    }
    p->width = p->width ? p->width : side;
    p->height = p->height ? p->height : side;
    p->shortest = p->shortest ? p->shortest : side;
    p->longest = p->longest ? p->longest : p->sizing == SIZING_SPLIT ? 4 * side : side;
    p->tile = p->sizing == SIZING_GRID ? p->width : p->tile ? p->tile : side;
    p->min_pixels = p->min_pixels ? p->min_pixels : 3136;
    p->max_pixels = p->max_pixels ? p->max_pixels : 28 * 28 * 1280;
    if (v->family != VISION_GEMMA4 && !v->positions && v->family != VISION_PIXTRAL &&
        v->family != VISION_QWEN2 && v->family != VISION_QWEN2_5)
        v->positions = (side / v->patch) * (side / v->patch);
    const bool fixed = p->sizing == SIZING_EXACT || p->sizing == SIZING_CROP || p->sizing == SIZING_GRID ||
                       p->sizing == SIZING_ANYRES;
    if ((fixed && (p->width % unit || p->height % unit || !p->width || !p->height)) ||
        (p->sizing == SIZING_SPLIT && p->tile % unit))
        return err_set(e, ERR_DATA,
                       "images of %u x %u are no whole number of patches of %u, %u x %u of them a row",
                       p->width, p->height, v->patch, v->merge, v->merge);
    check_tiles(p);
    if (p->min_tiles < 1 || p->max_tiles < p->min_tiles || p->max_tiles > 1024)
        p->min_tiles = 1, p->max_tiles = 12;
    for (int i = 0; i < 3; i++)
        if (!(p->std[i] > 0))
            return err_set(e, ERR_DATA, "image_std is %g; a number above 0 is expected", (double)p->std[i]);
    if (v->head_dim % 4 || !v->out_width)
        return err_set(e, ERR_DATA, "heads of %u values, or rows of %u for the text model, are not supported",
                       v->head_dim, v->out_width);
    return 0;
}

int vision_read(struct vision_params *v, const struct store *s, struct err *e)
{
    char name[48];
    const struct vision_kind *kind = kind_of(s, name);
    *v = (struct vision_params){.image_token = -1, .image_begin = -1, .image_end = -1, .frames = 1};
    if (!kind)
        return name[0] ? err_set(e, ERR_DATA, "%s: images of the kind \"%s\" are not supported",
                                 log_safe(s->path), log_safe(name))
                       : err_set(e, ERR_DATA, "%s: the model has no tower for images", log_safe(s->path));
    v->family = kind->family;
    v->pixels = kind->pixels;
    v->merge = kind->merge;
    v->class_row = kind->class_row;
    v->two_sided = kind->two_sided;
    v->projector_act = kind->projector_act;
    snprintf(v->projector, sizeof v->projector, "%s", kind->projector);
    struct keys k = {.gguf = s->kind == STORE_GGUF ? s->gguf : NULL, .prefix = "clip.vision"};
    int failed = 0;
    if (!k.gguf) {
        snprintf(v->model_type, sizeof v->model_type, "%s", name);
        json_error_t none;
        k.config = json_loads(kind->defaults, 0, &none);
        json_t *own = json_object_get(s->config, "vision_config");
        const char *tower = json_string_value(json_object_get(own, "model_type"));
        v->class_row = v->class_row && !(tower && strstr(tower, "siglip"));
        failed = !k.config || json_object_update(k.config, own) ? err_memory(e, "config.json", 0) : 0;
    }
    failed = failed || read_shape(v, &k, e) || read_act(v, &k, e) || read_theta(v, &k, e) < 0 ||
             read_windows(v, &k, e) || read_deepstack(v, &k, e) || read_features(v, s, e) ||
             read_merge(v, s, &k, e) ||
             (k.gguf ? read_mmproj(v, &k, e) : read_top(v, s, e) || vision_read_processor(v, s, e)) ||
             check_params(v, e);
    json_decref(k.config);
    return failed ? -1 : 0;
}

uint32_t vision_tile_rows(const struct vision_params *v, uint32_t width, uint32_t height)
{
    const uint32_t unit = v->patch * v->merge;
    return (width / unit) * (height / unit) + (v->keep_class ? 1 : 0) - (v->drop_first ? 1 : 0);
}

uint32_t vision_most_rows(const struct vision_params *v)
{
    const struct vision_pixels *p = &v->pixels;
    return p->sizing == SIZING_TOKENS  ? p->max_tokens
           : p->sizing == SIZING_EXACT ? vision_tile_rows(v, p->width, p->height)
                                       : 0;
}

uint32_t vision_kept_rows(const struct vision_kept *k)
{
    return (k->bottom - k->top) * (k->right - k->left + 1);
}

uint32_t vision_rows(const struct vision_params *v, const struct vision_prepared *p)
{
    uint32_t rows = 0;
    if (p->kept.bottom)
        return vision_tile_rows(v, p->tile[0].width, p->tile[0].height) + vision_kept_rows(&p->kept);
    for (uint32_t i = 0; i < p->tiles; i++)
        rows += vision_tile_rows(v, p->tile[i].width, p->tile[i].height);
    return rows;
}
