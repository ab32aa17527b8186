/* Opening models: memory that runs out at any point, and what a model says of itself. */
#include "test.h"

#include "base/mem.h"
#include "format/store.h"
#include "model/arch.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

static const char *const folders[] = {
    "llama",   "llama-llama3-gguf", "deepseek-v2", "deepseek-v2-gguf", "gpt2",
    "gpt-oss", "stablelm-parallel", "neox",        "phi3-long",        "mixtral",
    "bert"};

/* The n-th allocation fails, for all n: an error or a model, and nothing is lost (the sanitizers look). */
static void memory_runs_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[128];
        struct err e = {0};
        struct store *s = NULL;
        snprintf(path, sizeof path, "test/data/arch/%s", folders[i]);
        if (store_open(&s, path, &e) < 0)
            fail_msg("%s", e.text);
        int ok = -1;
        for (long n = 1; ok < 0; n++) {
            struct model *m = NULL;
            struct err failed = {0};
            assert_true(n < 100000);
            mem_fail_at(n);
            ok = model_open(&m, s, NULL, &failed);
            mem_fail_at(0);
            if (ok < 0) {
                assert_int_equal(failed.code, ERR_RESOURCE);
                assert_true(strlen(failed.text) > 0);
            }
            model_close(m);
        }
        store_close(s);
    }
}

static struct model *open_one(const char *path, struct store **s)
{
    struct err e = {0};
    struct model *m = NULL;
    if (store_open(s, path, &e) < 0 || model_open(&m, *s, NULL, &e) < 0)
        fail_msg("%s", e.text);
    return m;
}

static void windows_make_groups(void **state)
{
    (void)state;
    struct store *s = NULL;
    struct model *m = open_one("test/data/arch/gemma3", &s);
    assert_int_equal(m->plan.groups, 2);
    assert_int_equal(m->plan.group[0].window, 8);
    assert_int_equal(m->plan.group[0].layers, 2);
    assert_int_equal(m->plan.group[1].window, 0);
    assert_int_equal(m->plan.layers, 3);
    model_close(m);
    store_close(s);
}

/* Latent attention keeps one row of latent and rotated dimensions a token. */
static void latent_is_small(void **state)
{
    (void)state;
    struct store *s = NULL;
    struct model *m = open_one("test/data/arch/deepseek-v3", &s);
    assert_int_equal(m->plan.groups, 1);
    assert_int_equal(m->plan.group[0].kv_heads, 1);
    assert_int_equal(m->plan.group[0].k_dim, 16 + 8);
    assert_int_equal(m->plan.group[0].v_dim, 0);
    model_close(m);
    store_close(s);
}

static void plain_weights_are_not_copied(void **state)
{
    (void)state;
    struct store *s = NULL;
    struct model *m = open_one("test/data/arch/phi3", &s);
    /* norms and the table of rope alone: fused tensors are views */
    assert_true(m->converted < 5 * 32 * sizeof(float) + 64);
    model_close(m);
    store_close(s);
}

static void names_are_known(void **state)
{
    (void)state;
    assert_string_equal(arch_by_gguf("qwen2")->name, "qwen2");
    assert_string_equal(arch_by_config("mistral", "MistralForCausalLM")->name, "mistral");
    assert_string_equal(arch_by_config(NULL, "Qwen2MoeForCausalLM")->name, "qwen2moe");
    assert_string_equal(arch_by_config(NULL, "GPT2LMHeadModel")->name, "gpt2");
    assert_string_equal(arch_by_config(NULL, "GPTNeoXForCausalLM")->name, "gptneox");
    assert_null(arch_by_config("wizard", "LlamaForCausalLM"));
    assert_null(arch_by_gguf("qwen2x"));
    struct err e = {0};
    arch_unknown("wizard", STORE_GGUF, &e);
    assert_non_null(strstr(e.text, "wizard"));
    assert_non_null(strstr(e.text, "nor one with a similar name"));
    e = (struct err){0};
    arch_unknown("nomic-burt", STORE_GGUF, &e);
    assert_non_null(strstr(e.text, "the nearest of the"));
    assert_non_null(strstr(e.text, "nomic-bert"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_runs_out), cmocka_unit_test(windows_make_groups),
        cmocka_unit_test(latent_is_small), cmocka_unit_test(plain_weights_are_not_copied),
        cmocka_unit_test(names_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
