/* What the processor's file of a folder says about preparing images. */
#include "format/jsonread.h"
#include "model/vision/params.h"

#include <string.h>

/* "size" and its like: {"height", "width"}, {"shortest_edge"}, {"longest_edge"}, or one number. */
static int read_edge(const json_t *o, const char *member, const char *edge, uint32_t *out, struct err *e)
{
    const json_t *size = json_object_get(o, member),
                 *v = json_is_object(size) ? json_object_get(size, edge) : size;
    const int64_t range[2] = {1, 1 << 20};
    int64_t n;
    if (!v || json_is_null(v))
        return 0;
    if (!jsonread_whole(v, range, &n))
        return err_set(e, ERR_DATA, "preprocessor_config.json: %s is no size", member);
    *out = (uint32_t)n;
    return 0;
}

static int read_budget(const json_t *o, struct vision_pixels *p, struct err *e)
{
    static const struct {
        const char *old, *edge;
    } names[2] = {{"min_pixels", "shortest_edge"}, {"max_pixels", "longest_edge"}};
    const int64_t range[2] = {1, (int64_t)1 << 40};
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(o, names[i].old);
        int64_t n;
        if (!v || json_is_null(v))
            v = json_object_get(json_object_get(o, "size"), names[i].edge);
        if (!v || json_is_null(v))
            continue;
        if (!jsonread_whole(v, range, &n))
            return err_set(e, ERR_DATA, "preprocessor_config.json: %s is no number of pixels", names[i].old);
        *(i ? &p->max_pixels : &p->min_pixels) = (uint64_t)n;
    }
    return 0;
}

static int read_triple(const json_t *o, const char *member, float out[3], struct err *e)
{
    const json_t *v = json_object_get(o, member);
    if (!v || json_is_null(v))
        return 0;
    for (size_t i = 0; i < 3; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_number(x))
            return err_set(e, ERR_DATA, "preprocessor_config.json: %s is no list of three numbers", member);
        out[i] = (float)json_number_value(x);
    }
    return 0;
}

/* Processors of llava: an own one, which may pad to a square; SigLIP's, which cuts nothing; CLIP's. A size is that of the
 * shorter side, or of both. */
static int read_crop(struct vision_pixels *p, const json_t *o, struct err *e)
{
    const char *type = json_string_value(json_object_get(o, "image_processor_type"));
    const json_t *size = json_object_get(o, "size");
    const bool both = json_is_object(json_object_get(o, "size")) && json_object_get(size, "height");
    struct jsonread r = {o, "preprocessor_config.json", e};
    if (type && !strncmp(type, "Siglip", 6))
        p->crop = jsonread_bool(&r, o, "do_center_crop?", false);
    if (type && !strncmp(type, "LlavaImage", 10))
        p->square = jsonread_bool(&r, o, "do_pad?", false);
    return e->code ||
                   (both ? read_edge(o, "size", "width", &p->resized_width, e) ||
                               read_edge(o, "size", "height", &p->resized_height, e)
                         : read_edge(o, "size", "shortest_edge", &p->shortest, e)) ||
                   read_edge(o, "crop_size", "width", &p->width, e) ||
                   read_edge(o, "crop_size", "height", &p->height, e)
               ? -1
               : 0;
}

int vision_read_grids(struct vision_pixels *p, const json_t *o, struct err *e)
{
    const json_t *list = json_object_get(o, "image_grid_pinpoints"), *pin;
    const int64_t range[2] = {1, 1 << 16};
    size_t i;
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > VISION_GRIDS_MOST)
        return err_set(e, ERR_DATA, "image_grid_pinpoints is no list of 1 to %d sizes", VISION_GRIDS_MOST);
    json_array_foreach((json_t *)(uintptr_t)list, i, pin)
    {
        int64_t side[2];
        for (size_t k = 0; k < 2; k++)
            if (json_array_size(pin) != 2 || !jsonread_whole(json_array_get(pin, k), range, &side[k]))
                return err_set(e, ERR_DATA, "image_grid_pinpoints[%zu] is no height and width", i);
        p->grid[i][0] = (uint32_t)side[0];
        p->grid[i][1] = (uint32_t)side[1];
    }
    p->grids = (uint32_t)i;
    return 0;
}

/* internvl's processor cuts images into tiles whatever crop_to_patches of its image processor says; only an image processor
 * alone goes by it. */
static void read_tiles(struct vision_pixels *p, struct jsonread *r, const json_t *o, bool alone)
{
    static const double range[2] = {0, 1e6};
    p->min_tiles = (uint32_t)jsonread_number(r, o, "min_patches?", range, p->min_tiles);
    p->max_tiles = (uint32_t)jsonread_number(r, o, "max_patches?", range, p->max_tiles);
    if (!jsonread_bool(r, o, "crop_to_patches?", true) && alone)
        p->min_tiles = p->max_tiles = 1;
}

/* The processor's file, whose fields are optional. alone: it is that of an image processor without one for text. */
static int read_pixels(struct vision_pixels *p, const json_t *o, bool alone, struct err *e)
{
    struct jsonread r = {o, "preprocessor_config.json", e};
    static const double range[2] = {0, 1e6};
    p->resize = jsonread_bool(&r, o, "do_resize?", p->resize);
    p->rescale = jsonread_bool(&r, o, "do_rescale?", p->rescale);
    p->normalise = jsonread_bool(&r, o, "do_normalize?", p->normalise);
    p->crop = jsonread_bool(&r, o, "do_center_crop?", p->crop);
    p->split = jsonread_bool(&r, o, "do_image_splitting?", p->split);
    p->scale = jsonread_number(&r, o, "rescale_factor?", range, p->scale);
    p->filter = (enum vision_filter)jsonread_number(&r, o, "resample?", (const double[2]){0, 5}, p->filter);
    read_tiles(p, &r, o, alone);
    p->max_tokens = (uint32_t)jsonread_number(&r, o, "max_soft_tokens?", range, p->max_tokens);
    p->pan = jsonread_bool(&r, o, "do_pan_and_scan?", p->pan);
    p->pan_least = (uint32_t)jsonread_number(&r, o, "pan_and_scan_min_crop_size?", range, p->pan_least);
    p->pan_most = (uint32_t)jsonread_number(&r, o, "pan_and_scan_max_num_crops?", range, p->pan_most);
    p->pan_ratio = jsonread_number(&r, o, "pan_and_scan_min_ratio_to_activate?", range, p->pan_ratio);
    if (e->code || read_triple(o, "image_mean", p->mean, e) || read_triple(o, "image_std", p->std, e))
        return -1;
    switch (p->sizing) {
    case SIZING_CROP:
    case SIZING_ANYRES:
        return read_crop(p, o, e) || (p->sizing == SIZING_ANYRES && vision_read_grids(p, o, e)) ? -1 : 0;
    case SIZING_SPLIT:
        return read_edge(o, "size", "longest_edge", &p->longest, e) ||
                       read_edge(o, "max_image_size", "longest_edge", &p->tile, e)
                   ? -1
                   : 0;
    case SIZING_LONGEST:
        return read_edge(o, "size", "longest_edge", &p->longest, e);
    case SIZING_PIXELS:
        return read_budget(o, p, e);
    case SIZING_TOKENS:
        return 0;
    case SIZING_EXACT:
    case SIZING_GRID:
        return read_edge(o, "size", "width", &p->width, e) || read_edge(o, "size", "height", &p->height, e)
                   ? -1
                   : 0;
    }
    return 0;
}

int vision_read_processor(struct vision_params *v, const struct store *s, struct err *e)
{
    const char *own = store_beside(s, "preprocessor_config.json"),
               *whole = store_beside(s, "processor_config.json");
    json_t *o = own ? jsonread_file(own, &jsonread_config, e) : NULL;
    const json_t *in = o;
    if (!o && !e->code && whole) {
        o = jsonread_file(whole, &jsonread_config, e);
        in = json_object_get(o, "image_processor");
    }
    const bool alone = !whole && !json_object_get(o, "processor_class");
    int failed = e->code ? -1 : json_is_object(in) ? read_pixels(&v->pixels, in, alone, e) : 0;
    json_decref(o);
    return failed;
}
