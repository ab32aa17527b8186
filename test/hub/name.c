/* Names of models, and what is said where there is none. */
#define _GNU_SOURCE
#include "test.h"

#include "hub/name.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_names(void **state)
{
    (void)state;
    char cache[] = "/tmp/quern-hub-XXXXXX", models[64], file[128], path[256];
    assert_non_null(mkdtemp(cache));
    snprintf(models, sizeof models, "%s/models", cache);
    snprintf(file, sizeof file, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", models);
    struct err missing = {0}, e = {0};
    assert_int_equal(hub_resolve(cache, NULL, path, sizeof path, &missing), -1);
    assert_int_equal(missing.code, ERR_DATA);
    assert_non_null(strstr(missing.text, "scripts/fetch-model smollm2"));
    mkdir(models, 0700);
    close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(hub_resolve(cache, NULL, path, sizeof path, &e), 0);
    assert_string_equal(path, file);
    assert_int_equal(hub_resolve(cache, "smollm2", path, sizeof path, &e), 0);
    assert_string_equal(path, file);
    unlink(file);
    rmdir(models);
    rmdir(cache);
}

static void test_paths(void **state)
{
    (void)state;
    char path[64];
    static const char *const paths[] = {"/nowhere/at/all", "./x", "model.gguf", "/tmp", ""};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct err e = {0};
        assert_int_equal(hub_resolve("/cache", paths[i], path, sizeof path, &e), 0);
        assert_string_equal(path, paths[i]);
    }
}

static void test_refused(void **state)
{
    (void)state;
    char path[16];
    struct err unknown = {0}, hub = {0}, length = {0}, cache = {0};
    hub_resolve("/cache", "nonesuch", path, sizeof path, &unknown);
    assert_string_equal(unknown.text,
                        "there is no file, folder or model 'nonesuch'; the models known by name are "
                        "smollm2, gemma3, qwen05, qwen15, minilm-st, nomic");
    hub_resolve("/cache", "hf:user/repo", path, sizeof path, &hub);
    assert_int_equal(hub.code, ERR_USAGE);
    hub_resolve("/cache", "/a/path/that/is/longer", path, sizeof path, &length);
    assert_string_equal(length.text, "the path of the model is too long");
    hub_resolve("/cache", "smollm2", path, sizeof path, &cache);
    assert_string_equal(cache.text, "the path of the cache is too long: /cache");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
