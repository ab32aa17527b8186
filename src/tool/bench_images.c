#include "tool/bench_images.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "tool/images.h"
#include "tool/load.h"
#include "tool/profile.h"
#include "tool/tool.h"

#include <stdlib.h>

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One image: its times, and with --profile where they go. */
struct image_bench {
    struct vision *vision;
    const struct picture *picture;
    double *times; /* (repeats), in order */
    int repeats;
    bool profiled;
    struct encoder_profile
        profile; /* of one image more, whose launches are timed; operations NULL: there is none */
    double wall;
    struct profile_kernels kernels;
};

static int profile_image(struct image_bench *b, float *rows, struct err *e)
{
    struct encoder *c = b->vision->encoder;
    const uint32_t n = b->vision->tower->model.plan.count;
    b->profile.operations = mem_zalloc(n, sizeof *b->profile.operations);
    if (!b->profile.operations)
        return err_memory(e, "the profile", n * sizeof *b->profile.operations);
    const double start = clock_now();
    encoder_profile(c, &b->profile);
    int failed = encoder_run(c, &b->picture->prepared, rows, e);
    b->wall = clock_now() - start;
    profile_take(encoder_device(c), &b->kernels);
    encoder_profile(c, NULL);
    return failed;
}

static int measure_image(struct image_bench *b, struct err *e)
{
    struct encoder *c = b->vision->encoder;
    const struct picture *p = b->picture;
    float *rows = mem_alloc(p->rows, encoder_width(c) * sizeof *rows);
    int failed = rows ? 0 : err_memory(e, "rows of an image", (uint64_t)p->rows * encoder_width(c) * 4);
    for (int i = -1; i < b->repeats && !failed; i++) { /* the first one takes memory, and repacks weights */
        const double start = clock_now();
        failed = encoder_run(c, &p->prepared, rows, e);
        if (i >= 0)
            b->times[i] = clock_now() - start;
    }
    failed = failed || (b->profiled && profile_image(b, rows, e));
    mem_free(rows);
    if (!failed)
        qsort(b->times, (size_t)b->repeats, sizeof *b->times, by_time);
    return failed;
}

/* Seconds of all operations of a kind. */
static double kind_seconds(const struct image_bench *b, enum op_kind kind)
{
    const struct plan *p = &b->vision->tower->model.plan;
    double sum = 0;
    for (uint32_t i = 0; i < p->count; i++)
        sum += p->ops[i].kind == kind ? b->profile.operations[i] : 0;
    return sum;
}

static void print_profile(const struct image_bench *b, struct buf *out)
{
    buf_printf(out, "  %-16s %10.2f ms\n  %-16s %10.2f ms\n", "rows", 1e3 * b->profile.rows, "sending",
               1e3 * b->profile.sending);
    for (int kind = 0; kind <= OP_INDEX; kind++) {
        const double s = kind_seconds(b, (enum op_kind)kind);
        if (s > 0)
            buf_printf(out, "  %-16s %10.2f ms\n", plan_op_name((enum op_kind)kind), 1e3 * s);
    }
    buf_printf(out, "  %-16s %10.2f ms\n", "all", 1e3 * b->wall);
    if (b->kernels.count)
        profile_kernels_text(&b->kernels, b->wall, out);
}

static void json_seconds(struct json *j, const char *key, double seconds)
{
    json_key(j, key);
    json_num(j, seconds);
}

static void print_profile_json(const struct image_bench *b, struct json *json)
{
    json_key(json, "profile");
    json_begin(json, '{');
    json_seconds(json, "seconds", b->wall);
    json_seconds(json, "rows", b->profile.rows);
    json_seconds(json, "sending", b->profile.sending);
    json_key(json, "operations");
    json_begin(json, '{');
    for (int kind = 0; kind <= OP_INDEX; kind++)
        if (kind_seconds(b, (enum op_kind)kind) > 0)
            json_seconds(json, plan_op_name((enum op_kind)kind), kind_seconds(b, (enum op_kind)kind));
    json_end(json, '}');
    profile_kernels_json(&b->kernels, b->wall, json);
    json_end(json, '}');
}

static void print_image(const struct image_bench *b, struct json *json, struct buf *out)
{
    const struct picture *p = b->picture;
    const struct vision *v = b->vision;
    const struct vision_tile *t = &p->prepared.tile[0];
    const int n = b->repeats;
    const double median = b->times[n / 2],
                 spread = (b->times[n * 3 / 4] - b->times[n / 4]) / (median > 0 ? median : 1);
    if (!json) {
        buf_printf(out, "%-8s %u x %u x %u  %6u rows  %10.2f ms  +-%.1f%%\n", v->device, p->prepared.tiles,
                   t->width, t->height, p->rows, 1e3 * median, 50 * spread);
        if (b->profile.operations)
            print_profile(b, out);
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
    if (b->profile.operations)
        print_profile_json(b, json);
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
        struct image_bench b = {.vision = v,
                                .picture = images.picture[i],
                                .times = times,
                                .repeats = repeats,
                                .profiled = args_flag(a, "profile")};
        failed = measure_image(&b, e);
        if (!failed)
            print_image(&b, as_json ? &json : NULL, &out);
        mem_free(b.profile.operations);
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
