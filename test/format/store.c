/* A model on disk through the one door, store_open: shards and splits, what lies beside, and failures one by one. */
#define _GNU_SOURCE
#include "format/bytes.h"

#include "base/mem.h"
#include "format/gguf.h"
#include "format/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/quern-store-XXXXXX";

static const char *put(const char *name, const void *data, size_t n)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
    return path;
}

static void put_safetensors(const char *name, const char *header, size_t data)
{
    struct buf b = {0};
    uint64_t n = strlen(header);
    buf_add(&b, &n, 8);
    buf_str(&b, header);
    for (size_t i = 0; i < data; i++)
        buf_char(&b, (char)('0' + i));
    put(name, b.data, b.len);
    buf_free(&b);
}

static void put_words(const char *name, const char *words)
{
    struct buf b = {0};
    bytes_add(&b, words);
    put(name, b.data, b.len);
    buf_free(&b);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static int make(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    put_safetensors("a.safetensors",
                    "{\"x\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
                    "\"empty\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                    4);
    put_safetensors("b.safetensors", "{\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    put_text(
        "model.safetensors.index.json",
        "{\"weight_map\":{\"y\":\"b.safetensors\",\"x\":\"a.safetensors\",\"empty\":\"a.safetensors\"}}");
    put_text("config.json", "{\"model_type\":\"llama\"}");
    put_text("generation_config.json", "{\"temperature\":0.5}");
    put_text("tokenizer.json", "{}");
    put_words("m-00001-of-00002.gguf", "'GGUF' 4:3 8:1 8:3 s:split.no 4:2 2:0 s:split.count 4:2 2:2 "
                                       "s:split.tensors.count 4:5 4:2 s:p 4:1 8:2 4:0 8:0 pad:32 z:8");
    put_words("m-00002-of-00002.gguf",
              "'GGUF' 4:3 8:1 8:1 s:split.no 4:4 4:1 s:q 4:1 8:2 4:0 8:32 pad:32 z:32 'abcdefgh'");
    return 0;
}

static int clear(void **state)
{
    (void)state;
    DIR *d = opendir(folder);
    for (struct dirent *f; (f = readdir(d));)
        unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
    return rmdir(folder);
}

static int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void test_shards(void **state)
{
    (void)state;
    struct store *s;
    struct err e = {0};
    assert_int_equal(store_open(&s, folder, &e), 0);
    assert_int_equal(s->kind, STORE_SAFETENSORS);
    assert_int_equal(s->count, 3);
    assert_null(store_find(s, "none"));
    const struct tensor *x = store_find(s, "x"), *y = store_find(s, "y"), *none = store_find(s, "empty");
    assert_memory_equal(x->data, "0123", 4);
    assert_memory_equal(y->data, "012", 3);
    assert_int_equal(none->bytes, 0);
    size_t at;
    assert_string_equal(strrchr(store_tensor_file(s, y, &at), '/'), "/b.safetensors");
    assert_string_equal(strrchr(store_tensor_file(s, none, &at), '/'), "/a.safetensors");
    assert_string_equal(json_string_value(json_object_get(s->config, "model_type")), "llama");
    assert_true(json_real_value(json_object_get(s->generation, "temperature")) == 0.5);
    const char *beside = store_beside(s, "tokenizer.json");
    assert_string_equal(strrchr(beside, '/'), "/tokenizer.json");
    assert_ptr_equal(store_beside(s, "tokenizer.json"), beside);
    assert_null(store_beside(s, "tokenizer.model"));
    assert_null(store_beside(s, "")); /* the folder itself is no file */
    store_close(s);
}

/* The ninth byte of a GGUF file is that of its number of tensors, which may be a brace. */
static void test_brace(void **state)
{
    (void)state;
    enum { N = '{' };
    struct buf words = {0};
    struct store *s;
    struct err e = {0};
    char path[256];
    buf_printf(&words, "'GGUF' 4:3 8:%d 8:0 ", N);
    for (int i = 0; i < N; i++)
        buf_printf(&words, "s:t%d 4:1 8:2 4:0 8:%d ", i, 32 * i);
    buf_printf(&words, "pad:32 z:%d", 32 * N);
    buf_char(&words, 0);
    put_words("brace.gguf", words.data);
    buf_free(&words);
    snprintf(path, sizeof path, "%s/brace.gguf", folder);
    assert_int_equal(store_open(&s, path, &e), 0);
    assert_int_equal(s->kind, STORE_GGUF);
    assert_int_equal(s->count, N);
    store_close(s);
    assert_int_equal(unlink(path), 0);
}

static void test_split(void **state)
{
    (void)state;
    struct store *s;
    struct err e = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", folder);
    assert_int_equal(store_open(&s, path, &e), 0);
    assert_int_equal(s->count, 2);
    const struct tensor *q = store_find(s, "q");
    assert_ptr_equal(q, &s->tensors[1]);
    assert_memory_equal(q->data, "abcdefgh", 8);
    size_t at;
    const char *file = store_tensor_file(s, q, &at);
    assert_string_equal(strrchr(file, '/'), "/m-00002-of-00002.gguf");
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(at + 8, st.st_size);
    assert_null(store_beside(s, "tokenizer.json"));
    store_close(s);
}

/* The n-th allocation fails, for all n: a clean error, nothing left open; and then it works. */
static void fail_all(const char *path)
{
    int before = descriptors(), n = 1;
    for (;; n++) {
        struct store *s = NULL;
        struct err e = {0};
        mem_fail_at(n);
        int result = store_open(&s, path, &e);
        mem_fail_at(0);
        if (result == 0) {
            store_close(s);
            break;
        }
        assert_int_equal(e.code, ERR_RESOURCE);
        assert_non_null(strstr(e.text, "memory"));
        assert_int_equal(descriptors(), before);
    }
    assert_true(n > 5);
    assert_int_equal(descriptors(), before);
    print_message("%d allocations\n", n - 1);
}

static void test_memory(void **state)
{
    (void)state;
    char path[256];
    fail_all(folder);
    snprintf(path, sizeof path, "%s/m-00001-of-00002.gguf", folder);
    fail_all(path);
}

static void test_failures_leave_nothing_open(void **state)
{
    (void)state;
    int before = descriptors();
    struct store *s;
    struct err e = {0}, f = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/m-00002-of-00002.gguf", folder);
    put_text("generation_config.json", "{");
    assert_int_equal(store_open(&s, folder, &e), -1);
    assert_non_null(strstr(e.text, "generation_config.json, line 1"));
    put_text("generation_config.json", "{\"temperature\":0.5}");
    /* without its count the second part is a file like any other */
    assert_int_equal(store_open(&s, path, &f), 0);
    store_close(s);
    assert_int_equal(descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_brace),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_failures_leave_nothing_open),
    };
    return cmocka_run_group_tests(tests, make, clear);
}
