/* Writing files: what was put in comes out, nothing stays behind when it fails, importance matrices are read with care. */
#define _GNU_SOURCE
#include "test.h"

#include "codec/dtype.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/gguf_write.h"
#include "format/store.h"
#include "quant/quantize.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/quern-test-XXXXXX";
static char place[512];

static const char *in_folder(const char *name)
{
    snprintf(place, sizeof place, "%s/%s", folder, name);
    return place;
}

/* How many files are there; they are taken away. */
static int sweep(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *f; (f = readdir(d));)
        if (f->d_name[0] != '.') {
            unlink(in_folder(f->d_name));
            n++;
        }
    closedir(d);
    return n;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    sweep();
    return rmdir(folder);
}

static void keys_and_tensors_come_back(void **state)
{
    (void)state;
    struct err e = {0};
    struct gguf_writer w = {0};
    float numbers[64];
    for (int i = 0; i < 64; i++)
        numbers[i] = (float)i;
    gguf_put_str(&w, "general.architecture", "llama", 5);
    gguf_put_u32(&w, "a.u32", 7);
    gguf_put_u32(&w, "a.u32", 8); /* the first stays */
    gguf_put_f32(&w, "a.f32", 0.5f);
    gguf_put_bool(&w, "a.bool", true);
    gguf_put_items(&w, "a.items", GGUF_I32, (int32_t[]){1, -2, 3}, 3);
    assert_true(gguf_put_strings(&w, "a.strings", 2));
    gguf_add_string(&w, "x", 1);
    gguf_add_string(&w, "", 0);
    assert_int_equal(gguf_add_tensor(&w, "one", DTYPE_F32, 2, (uint64_t[4]){8, 4, 1, 1}, &e), 0);
    assert_int_equal(gguf_add_tensor(&w, "two", DTYPE_F32, 1, (uint64_t[4]){5, 1, 1, 1}, &e), 0);
    assert_int_equal(gguf_add_tensor(&w, "three", DTYPE_F32, 1, (uint64_t[4]){64, 1, 1, 1}, &e), 0);
    assert_int_equal(gguf_begin(&w, in_folder("x.gguf"), 160, &e), 0);
    assert_int_equal(w.file_count, 2);
    assert_int_equal(gguf_put_data(&w, 2, 0, (uint8_t *)numbers, sizeof numbers, &e), 0);
    assert_int_equal(gguf_put_data(&w, 0, 0, (uint8_t *)numbers, 128, &e), 0);
    assert_int_equal(gguf_put_data(&w, 1, 0, (uint8_t *)numbers, 20, &e), 0);
    assert_int_equal(gguf_commit(&w, &e), 0);
    gguf_writer_close(&w);

    struct gguf *g;
    uint64_t v;
    double f;
    const struct gguf_key *k;
    assert_int_equal(gguf_open(&g, in_folder("x-00001-of-00002.gguf"), &e), 0);
    assert_int_equal(gguf_get_u64(g, "a.u32", 0, 100, &v, &e), 1);
    assert_int_equal(v, 7);
    assert_int_equal(gguf_get_f64(g, "a.f32", &f, &e), 1);
    assert_true(f == 0.5);
    assert_int_equal(gguf_get_array(g, "a.items", GGUF_I64, 3, &k, &e), 1);
    assert_int_equal(gguf_item_i64(k, 1), -2);
    assert_int_equal(gguf_get_array(g, "a.strings", GGUF_STRING, 2, &k, &e), 1);
    assert_int_equal(gguf_tensor_count(g), 3);
    const struct tensor *t = gguf_find_tensor(g, "three");
    assert_memory_equal(t->data, numbers, sizeof numbers);
    gguf_close(g);
    assert_int_equal(sweep(), 2);
}

/* The n-th allocation fails, for all n: an error and no file, or the file. */
static void memory_runs_out(void **state)
{
    (void)state;
    struct err none = {0};
    struct store *s;
    struct quantize_options o = {.recipe = recipe_find("Q8_0", &none), .threads = 1};
    struct quantize_override override = {"ffn_down", DTYPE_F16};
    o.overrides = &override;
    o.override_count = 1;
    assert_int_equal(store_open(&s, "test/data/arch/qwen3-moe", &none), 0);
    log_set_level(LOG_ERROR);
    struct quantize_result r;
    long before = mem_count();
    assert_int_equal(quantize_run(s, in_folder("x.gguf"), &o, &r, &none), 0);
    long all = mem_count() - before;
    sweep();
    for (long n = 1; n <= all; n++) {
        struct err e = {0};
        mem_fail_at(n);
        int failed = quantize_run(s, in_folder("x.gguf"), &o, &r, &e);
        mem_fail_at(0);
        assert_true(!failed == !e.code);
        assert_int_equal(sweep(), failed ? 0 : 1);
    }
    store_close(s);
}

static void a_cancelled_one_leaves_nothing(void **state)
{
    (void)state;
    struct err e = {0};
    struct store *s;
    struct quantize_result r;
    static const volatile int stop = 1;
    struct quantize_options o = {.recipe = recipe_find("Q8_0", &e), .threads = 2, .cancel = &stop};
    assert_int_equal(store_open(&s, "test/data/arch/llama", &e), 0);
    assert_int_equal(quantize_run(s, in_folder("x.gguf"), &o, &r, &e), -1);
    assert_int_equal(e.code, ERR_INTERRUPTED);
    assert_int_equal(sweep(), 0);
    store_close(s);
}

static void write_bytes(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void importance_is_written_and_read(void **state)
{
    (void)state;
    struct err e = {0};
    struct imatrix m = {.dataset = "some.txt", .chunks = 3, .chunk_size = 512}, back;
    struct imatrix_entry *x = imatrix_add(&m, "blk.0.ffn_up_exps.weight", 2, 3, &e);
    for (int i = 0; i < 6; i++)
        x->sums[i] = i + 1;
    x->rows[0] = 2, x->rows[2] = 4;
    assert_int_equal(imatrix_write(&m, in_folder("m.gguf"), &e), 0);
    imatrix_free(&m);
    assert_int_equal(imatrix_read(&back, in_folder("m.gguf"), &e), 0);
    assert_string_equal(back.dataset, "some.txt");
    struct importance known;
    assert_int_equal(imatrix_importance(&back, "blk.0.ffn_up_exps.weight", 2, 3, &known, &e), 0);
    static const float want[] = {0.5f, 1, 1, 1, 1.25f, 1.5f}; /* nobody asked the second expert */
    assert_int_equal(known.rows, 3);
    assert_memory_equal(known.mean, want, sizeof want);
    assert_int_equal(imatrix_importance(&back, "other", 2, 3, &known, &e), 0);
    assert_null(known.mean);
    assert_int_equal(imatrix_importance(&back, "blk.0.ffn_up_exps.weight", 4, 3, &known, &e), -1);
    imatrix_free(&back);
    sweep();
}

/* i32 entries | {i32 n, name, i32 calls, i32 values, f32...} | i32 chunks | i32 n, dataset */
static void the_older_format_is_read(void **state)
{
    (void)state;
    static const unsigned char file[] = {1,    0, 0, 0, 3, 0, 0, 0, 'a',  '.',  'b', 2,  0,
                                         0,    0, 2, 0, 0, 0, 0, 0, 0x80, 0x3f, 0,   0,  0,
                                         0x40, 9, 0, 0, 0, 3, 0, 0, 0,    't',  'x', 't'};
    struct imatrix m;
    struct importance known;
    struct err e = {0};
    write_bytes(in_folder("old.dat"), file, sizeof file);
    assert_int_equal(imatrix_read(&m, place, &e), 0);
    assert_int_equal(m.chunks, 9);
    assert_int_equal(imatrix_importance(&m, "a.b", 2, 1, &known, &e), 0);
    assert_true(known.mean[0] == 0.5f && known.mean[1] == 1);
    imatrix_free(&m);
    for (size_t n = 0; n < 27; n++) { /* cut short */
        struct err short_one = {0};
        write_bytes(in_folder("old.dat"), file, n);
        assert_int_equal(imatrix_read(&m, place, &short_one), -1);
    }
    sweep();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_tensors_come_back),     cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(a_cancelled_one_leaves_nothing), cmocka_unit_test(importance_is_written_and_read),
        cmocka_unit_test(the_older_format_is_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
