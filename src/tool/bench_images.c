#include "tool/bench_images.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <stdlib.h>

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure_image(struct vision *v, const struct picture *p, double *times, int repeats, struct err *e)
{
    float *rows = mem_alloc(p->rows, encoder_width(v->encoder) * sizeof *rows);
    int failed =
        rows ? 0 : err_memory(e, "rows of an image", (uint64_t)p->rows * encoder_width(v->encoder) * 4);
    for (int i = -1; i < repeats && !failed; i++) { /* the first one takes memory, and repacks weights */
        const double start = clock_now();
        failed = encoder_run(v->encoder, &p->prepared, rows, e);
        if (i >= 0)
            times[i] = clock_now() - start;
    }
    mem_free(rows);
    if (!failed)
        qsort(times, (size_t)repeats, sizeof *times, by_time);
    return failed;
}

static void print_image(struct json *json, struct buf *out, const struct vision *v, const struct picture *p,
                        const double *times, int repeats)
{
    const struct vision_tile *t = &p->prepared.tile[0];
    const double median = times[repeats / 2],
                 spread = (times[repeats * 3 / 4] - times[repeats / 4]) / (median > 0 ? median : 1);
    if (!json) {
        buf_printf(out, "%-8s %u x %u x %u  %6u rows  %10.2f ms  +-%.1f%%\n", v->device, p->prepared.tiles,
                   t->width, t->height, p->rows, 1e3 * median, 50 * spread);
        return;
    }
    json_begin(json, '{');
    json_key(json, "test");
    json_str(json, "encode");
    json_key(json, "device");
    json_str(json, v->device);
    json_key(json, "tiles");
    json_uint(json, p->prepared.tiles);
    json_key(json, "width");
    json_uint(json, t->width);
    json_key(json, "height");
    json_uint(json, t->height);
    json_key(json, "rows");
    json_uint(json, p->rows);
    json_key(json, "ms");
    json_num(json, 1e3 * median);
    json_key(json, "spread");
    json_num(json, spread);
    json_end(json, '}');
}

int bench_images(const struct args *a, int threads, int repeats, struct err *e)
{
    struct session_options o = {0};
    struct images images = {0};
    struct store *s = NULL;
    struct vision *v = NULL;
    struct buf out = {0};
    struct json json = {.out = &out};
    const bool as_json = args_flag(a, "json");
    double *times = mem_alloc((size_t)repeats, sizeof *times);
    int failed =
        !times || !a->count ? err_set(e, ERR_USAGE, "quern bench --image wants a MODEL with a tower") : 0;
    failed = failed || images_load(&images, a, e) || load_options(a, &o, e) || tool_open(&s, a->words[0], e);
    o.runner.device_options.threads = threads;
    const struct vision_options with = {.mmproj = args_text(a, "mmproj"),
                                        .device = o.runner.device,
                                        .device_options = o.runner.device_options};
    failed = failed || vision_open(&v, s, &with, e) || images_prepare(&images, v ? &v->tower->v : NULL, e) ||
             vision_load(v, e);
    if (as_json)
        json_begin(&json, '[');
    for (uint32_t i = 0; !failed && i < images.count; i++) {
        failed = measure_image(v, images.picture[i], times, repeats, e);
        if (!failed)
            print_image(as_json ? &json : NULL, &out, v, images.picture[i], times, repeats);
    }
    if (as_json) {
        json_end(&json, ']');
        buf_char(&out, '\n');
    }
    vision_close(v);
    images_free(&images);
    mem_free(times);
    if (s)
        store_close(s);
    if (failed) {
        buf_free(&out);
        return -1;
    }
    return tool_print(&out, e);
}
