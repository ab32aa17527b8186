/* Names of models: what each spelling means, and what is said where there is none. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "hub/hub.h"
#include "hub/path.h"
#include "hub/local_models.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct hub hub;
static char root[] = "/tmp/quern-hub-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    struct err e = {0};
    assert_non_null(mkdtemp(root));
    assert_int_equal(chdir(root), 0);
    setenv("HOME", root, 1);
    setenv("HF_TOKEN", "hf_abc", 1);
    static const char *const unset[] = {"XDG_CACHE_HOME", "XDG_CONFIG_HOME",       "HF_HOME",
                                        "HF_HUB_CACHE",   "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT",
                                        "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",  "HF_HUB_DOWNLOAD_TIMEOUT"};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++)
        unsetenv(unset[i]);
    assert_int_equal(hub_read(&hub, &e), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    struct err e = {0};
    return chdir("/") || path_remove(root, &e);
}

static void put(const char *path, const char *text)
{
    struct err e = {0};
    assert_int_equal(path_make_folders(path, &e), 0);
    assert_int_equal(path_write(path, text, strlen(text), &e), 0);
}

static void test_environment(void **state)
{
    (void)state;
    struct hub h;
    struct err e = {0};
    char path[PATH_MAX];
    path_make(path, &e, "%s/.cache/huggingface/hub", root);
    assert_string_equal(hub.cache, path);
    path_make(path, &e, "%s/.config/quern/models.json", root);
    assert_string_equal(hub.config, path);
    assert_string_equal(hub.endpoint, "https://huggingface.co");
    assert_string_equal(hub.token, "hf_abc");
    setenv("HF_HOME", "~/hf", 1);
    setenv("HF_ENDPOINT", "http://localhost:1//", 1);
    setenv("HF_HUB_OFFLINE", "ON", 1);
    unsetenv("HF_TOKEN");
    path_make(path, &e, "%s/hf/token", root);
    put(path, " hf_file\n");
    assert_int_equal(hub_read(&h, &e), 0);
    assert_string_equal(h.endpoint, "http://localhost:1");
    assert_string_equal(h.token, "hf_file");
    assert_true(h.offline);
    path_make(path, &e, "%s/hf/hub", root);
    assert_string_equal(h.cache, path);
    static const char *const bad[][2] = {{"HF_ENDPOINT", "ftp://x"},
                                         {"HF_TOKEN", "a\r\nHost: b"},
                                         {"HF_TOKEN", "a b"},
                                         {"HF_HUB_DOWNLOAD_TIMEOUT", "soon"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err refused = {0};
        setenv(bad[i][0], bad[i][1], 1);
        assert_int_equal(hub_read(&h, &refused), -1);
        assert_int_equal(refused.code, ERR_USAGE);
        unsetenv(bad[i][0]);
    }
}

static void test_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *model, *repo, *revision, *quant;
    } repos[] = {
        {"user/repo", "user/repo", "main", ""},
        {"user/repo:Q8_0", "user/repo", "main", "Q8_0"},
        {"hf:user/repo:q4_k_m", "user/repo", "main", "q4_k_m"},
        {"hf:gpt2", "gpt2", "main", ""},
        {"hf.co/user/repo:Q2_K", "user/repo", "main", "Q2_K"},
        {"user/repo@v1.0:Q8_0", "user/repo", "v1.0", "Q8_0"},
        {"user/repo@refs/pr/1", "user/repo", "refs/pr/1", ""},
        {"user/Repo-1.5_x:sub/file.gguf", "user/Repo-1.5_x", "main", "sub/file.gguf"},
        {"https://huggingface.co/user/repo", "user/repo", "main", ""},
        {"https://huggingface.co/u/r/resolve/main/a/b.gguf?download=true", "u/r", "main", "a/b.gguf"},
        {"https://huggingface.co/u/r/blob/dev/b.gguf", "u/r", "dev", "b.gguf"},
        {"smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "main", ""},
    };
    for (size_t i = 0; i < sizeof repos / sizeof *repos; i++) {
        struct hub_name n;
        struct err e = {0};
        assert_int_equal(name_read(&n, &hub, repos[i].model, &e), 0);
        assert_int_equal(n.kind, HUB_REPO);
        assert_string_equal(n.repo, repos[i].repo);
        assert_string_equal(n.revision, repos[i].revision);
        assert_string_equal(n.quant, repos[i].quant);
    }
    static const char *const paths[] = {"/nowhere/at/all", "./x", "model.gguf",      "/tmp",   "", "a/b.gguf",
                                        "a/b/c",           "~/x", "x/y.safetensors", "folder/"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct hub_name n;
        struct err e = {0};
        assert_int_equal(name_read(&n, &hub, paths[i], &e), 0);
        assert_int_equal(n.kind, HUB_PATH);
        assert_string_equal(n.text, paths[i]);
    }
    struct hub_name n;
    struct err e = {0};
    assert_int_equal(name_read(&n, &hub, "https://example.org/a.gguf?x=1", &e), 0);
    assert_int_equal(n.kind, HUB_URL);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *phrase;
        int code;
    } rows[] = {
        {"nonesuch", "there is no file, folder or model 'nonesuch'; the models known by name are smollm2,",
         ERR_DATA},
        {"smolm2", "did you mean 'smollm2'?", ERR_DATA},
        {"hf:a/b/c", "names no repository", ERR_USAGE},
        {"hf:-a/b", "names no repository", ERR_USAGE},
        {"hf:a--b/c", "names no repository", ERR_USAGE},
        {"user/..", "names no repository", ERR_USAGE},
        {"hf:a/b:../../etc/passwd", "after the colon", ERR_USAGE},
        {"hf:a/b:", "after the colon", ERR_USAGE},
        {"hf:a/b@../x", "after @", ERR_USAGE},
        {"hf:a/b@", "after @", ERR_USAGE},
        {"ftp://example.org/a.gguf", "by https:// and http:// only", ERR_USAGE},
        {"file:///etc/passwd", "by https:// and http:// only", ERR_USAGE},
        {"https://example.org/a.bin", "the address of a .gguf file", ERR_USAGE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct hub_name n;
        struct err e = {0};
        assert_int_equal(name_read(&n, &hub, rows[i].model, &e), -1);
        assert_int_equal(e.code, rows[i].code);
        if (!strstr(e.text, rows[i].phrase))
            fail_msg("%s: %s", rows[i].model, e.text);
    }
}

static void test_a_path_goes_before_a_name(void **state)
{
    (void)state;
    struct hub_name n;
    struct err e = {0};
    put("user/here", "");
    put("smollm2", "");
    assert_int_equal(name_read(&n, &hub, "user/here", &e), 0);
    assert_int_equal(n.kind, HUB_PATH);
    assert_int_equal(name_read(&n, &hub, "smollm2", &e), 0);
    assert_int_equal(n.kind, HUB_PATH);
    assert_int_equal(name_read(&n, &hub, "hf:user/here", &e), 0);
    assert_int_equal(n.kind, HUB_REPO);
    unlink("smollm2");
}

static void test_aliases(void **state)
{
    (void)state;
    struct hub_name n;
    struct err e = {0}, circle = {0}, odd = {0}, broken = {0};
    put(hub.config, "{\"mine\": \"hf:user/repo:Q8_0\", \"other\": \"mine\", \"file\": \"~/m.gguf\","
                    " \"round\": \"about\", \"about\": \"round\", \"odd\": 1, \"smollm2\": \"/x.gguf\"}");
    assert_int_equal(name_read(&n, &hub, "other", &e), 0);
    assert_string_equal(n.repo, "user/repo");
    assert_string_equal(n.quant, "Q8_0");
    assert_int_equal(name_read(&n, &hub, "file", &e), 0);
    assert_int_equal(n.kind, HUB_PATH);
    assert_string_equal(strrchr(n.text, '/'), "/m.gguf");
    assert_int_equal(name_read(&n, &hub, NULL, &e), 0); /* the default can be another */
    assert_string_equal(n.text, "/x.gguf");
    assert_int_equal(name_read(&n, &hub, "round", &circle), -1);
    assert_non_null(strstr(circle.text, "leads in a circle"));
    assert_int_equal(name_read(&n, &hub, "odd", &odd), -1);
    assert_non_null(strstr(odd.text, "stands for no text"));
    put(hub.config, "{");
    assert_int_equal(name_read(&n, &hub, "mine", &broken), -1);
    unlink(hub.config);
}

static void test_what_is_here_is_found(void **state)
{
    (void)state;
    struct hub_name n;
    struct err e = {0};
    char path[PATH_MAX], file[PATH_MAX];
    assert_int_equal(name_read(&n, &hub, NULL, &e), 0);
    assert_int_equal(hub_find(&hub, &n, path, &e), 0);
    path_make(file, &e, "%s/models/SmolLM2-135M-Instruct.Q4_1.gguf", hub.own);
    put(file, "GGUF");
    assert_int_equal(hub_find(&hub, &n, path, &e), 1);
    assert_string_equal(path, file);
    const char *snapshot = "models--user--repo/snapshots/0123456789012345678901234567890123456789";
    path_make(file, &e, "%s/models--user--repo/refs/main", hub.cache);
    put(file, strrchr(snapshot, '/') + 1);
    path_make(file, &e, "%s/%s/m-Q8_0-00001-of-00002.gguf", hub.cache, snapshot);
    put(file, "GGUF");
    assert_int_equal(name_read(&n, &hub, "user/repo", &e), 0);
    assert_int_equal(hub_find(&hub, &n, path, &e), 0); /* half of a split is nothing */
    path_make(file, &e, "%s/%s/m-Q8_0-00002-of-00002.gguf", hub.cache, snapshot);
    put(file, "GGUF");
    assert_int_equal(hub_find(&hub, &n, path, &e), 1);
    assert_string_equal(strrchr(path, '/'), "/m-Q8_0-00001-of-00002.gguf");
}

/* The n-th allocation fails, for all n: an error that says so, and nothing is left behind. */
static void test_memory_runs_out(void **state)
{
    (void)state;
    bool whole = false;
    for (long n = 1; !whole && n < 1000; n++) {
        struct hub_name name;
        struct local_models stock = {0};
        struct err e = {0};
        char path[PATH_MAX];
        mem_fail_at(n);
        int bad = name_read(&name, &hub, "user/repo:Q8_0", &e) || hub_find(&hub, &name, path, &e) < 0 ||
                  local_models_read(&stock, &hub, &e);
        mem_fail_at(0);
        assert_int_equal(bad, e.code ? 1 : 0);
        whole = !bad && stock.count == 2;
        local_models_free(&stock);
    }
    assert_true(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_a_path_goes_before_a_name),
        cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_what_is_here_is_found),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
