/* Every family against transformers: tiny folders with random weights under test/data/arch, each with
 * the results that transformers gave. QUERN_REFS names another folder of such folders (made by
 * test/e2e/make_refs.py) for a thorough run. */
#include "test.h"

#include "codec/dtype.h"
#include "device/device.h"
#include "format/store.h"
#include "model/evaluate.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct seen {
    const json_t *argmax; /* of the reference */
    const json_t *last;
    uint32_t width, count;
    double worst;   /* difference at the last position */
    uint32_t wrong; /* positions whose best is another */
};

static void compare_row(void *arg, uint32_t pos, const float *row)
{
    struct seen *s = arg;
    uint32_t best = 0, ref = (uint32_t)json_integer_value(json_array_get(s->argmax, pos));
    for (uint32_t i = 1; i < s->width; i++)
        if (row[i] > row[best])
            best = i;
    if (best != ref && row[best] - row[ref] > 4e-3f)
        s->wrong++;
    for (uint32_t i = 0; pos + 1 == s->count && i < s->width; i++)
        s->worst = fmax(s->worst, fabs(row[i] - json_number_value(json_array_get(s->last, i))));
}

/* True where the results agree. */
static bool run_case(const char *folder, const json_t *ref, bool exact, double most)
{
    struct err e = {0};
    struct store *s = NULL;
    struct model *m = NULL;
    struct device *d = NULL;
    const json_t *tokens = json_object_get(ref, "tokens");
    uint32_t n = (uint32_t)json_array_size(tokens);
    int32_t *ids = calloc(n, sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    struct device_options o = {.threads = 1, .exact = exact};
    struct model_options mo = {.ctx = n};
    if (store_open(&s, folder, &e) < 0 || model_open(&m, s, &mo, &e) < 0 || cpu_open(&d, &o, &e) < 0) {
        print_error("%s\n", e.text);
        if (s)
            store_close(s);
        free(ids);
        return false;
    }
    const json_t *last = json_object_get(ref, "last");
    struct seen seen = {.argmax = json_object_get(ref, "argmax"),
                        .last = last ? last : json_object_get(ref, "last_logits"),
                        .count = n};
    seen.width = m->plan.out_width;
    assert_int_equal(json_array_size(seen.last), seen.width);
    struct evaluator f = {
        .model = m, .device = d, .kv_type = exact ? DTYPE_F32 : DTYPE_F16, .row = compare_row};
    f.arg = &seen;
    f.chunk = 7; /* chunks that no page or tile likes */
    if (evaluate_run(&f, ids, n, &e) < 0)
        fail_msg("%s: %s", folder, e.text);
    bool good = seen.worst <= most && !(exact && seen.wrong);
    if (!good)
        print_error("%s: logits of %u tokens differ by %g (most %g), %u positions have another best token\n",
                    folder, n, seen.worst, most, seen.wrong);
    d->ops->close(d);
    model_close(m);
    store_close(s);
    free(ids);
    return good;
}

static void run_all(bool exact, double most)
{
    const char *root = getenv("QUERN_REFS") ? getenv("QUERN_REFS") : "test/data/arch";
    DIR *dir = opendir(root);
    uint32_t found = 0, bad = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char folder[512], file[600];
        snprintf(folder, sizeof folder, "%s/%s", root, entry->d_name);
        snprintf(file, sizeof file, "%s/ref.json", folder);
        json_t *ref = entry->d_name[0] == '.' ? NULL : json_load_file(file, 0, NULL);
        const json_t *cases = json_object_get(ref, "cases");
        for (size_t i = 0; i < json_array_size(cases); i++)
            bad += !run_case(folder, json_array_get(cases, i), exact, most);
        found += ref != NULL;
        json_decref(ref);
    }
    closedir(dir);
    assert_true(found > 0);
    assert_int_equal(bad, 0);
}

struct kept {
    float *last; /* (width) */
    uint32_t width, count;
};

static void keep_row(void *arg, uint32_t pos, const float *row)
{
    struct kept *k = arg;
    if (pos + 1 == k->count)
        memcpy(k->last, row, k->width * sizeof *row);
}

/* A prompt in pieces of 1 to all of its tokens: the last row is the same, but for rounding. False: the model keeps no
 * state. */
static bool cut_everywhere(const char *folder, struct store *s, const json_t *tokens)
{
    enum { TOKENS = 20, WIDTH = 512 };
    static float whole[WIDTH], cut[WIDTH];
    struct err e = {0};
    struct model *m = NULL;
    struct device *d = NULL;
    int32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
    if (model_open(&m, s, &(struct model_options){.ctx = TOKENS}, &e) < 0)
        fail_msg("%s: %s", folder, e.text);
    struct kept k = {.last = whole, .width = m->plan.out_width, .count = TOKENS};
    struct evaluator f = {.model = m, .kv_type = DTYPE_F32, .row = keep_row, .arg = &k};
    for (f.chunk = TOKENS; f.chunk && m->plan.states && k.width <= WIDTH; f.chunk--, k.last = cut) {
        if (cpu_open(&d, &(struct device_options){.threads = 1, .exact = true}, &e) < 0)
            fail_msg("%s", e.text);
        f.device = d;
        if (evaluate_run(&f, ids, TOKENS, &e) < 0)
            fail_msg("%s: %s", folder, e.text);
        d->ops->close(d);
        for (uint32_t i = 0; i < k.width && k.last == cut; i++)
            if (!(fabsf(cut[i] - whole[i]) <= 1e-4f))
                fail_msg("%s in pieces of %u: a logit is %g, in one piece it is %g", folder, f.chunk,
                         (double)cut[i], (double)whole[i]);
    }
    const bool keeps = m->plan.states > 0;
    model_close(m);
    return keeps;
}

static void cuts_do_not_show(void **state)
{
    (void)state;
    DIR *dir = opendir("test/data/arch");
    uint32_t found = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char folder[512], file[600];
        struct err e = {0};
        struct store *s = NULL;
        snprintf(folder, sizeof folder, "test/data/arch/%s", entry->d_name);
        snprintf(file, sizeof file, "%s/ref.json", folder);
        json_t *ref = entry->d_name[0] == '.' ? NULL : json_load_file(file, 0, NULL);
        const json_t *tokens = json_object_get(json_array_get(json_object_get(ref, "cases"), 1), "tokens");
        if (json_array_size(tokens) == 20 && !store_open(&s, folder, &e)) {
            found += cut_everywhere(folder, s, tokens);
            store_close(s);
        }
        json_decref(ref);
    }
    closedir(dir);
    assert_true(found > 20);
}

static void exact_is_exact(void **state)
{
    (void)state;
    run_all(true, 2e-3);
}

static void default_is_close(void **state)
{
    (void)state;
    run_all(false, 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_is_exact), cmocka_unit_test(default_is_close),
                                       cmocka_unit_test(cuts_do_not_show)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
