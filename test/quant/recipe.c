/* The recipes against what llama-quantize gave the same tensors (test/data/recipes.json, made by
 * test/e2e/make_recipes.py). */
#include "test.h"

#include "codec/dtype.h"
#include "base/mem.h"
#include "format/jsonread.h"
#include "quant/recipe.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 };

struct facts {
    struct arena arena;
    struct recipe_tensor t[MOST];
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    const struct recipe_tensor *x = a, *y = b;
    return recipe_before(x->name, y->name);
}

static void add(struct facts *f, const char *name, json_t *shape)
{
    struct recipe_tensor *t = &f->t[f->n++];
    assert_true(f->n < MOST);
    *t = (struct recipe_tensor){.name = arena_strndup(&f->arena, name, strlen(name)),
                                .dims = (uint32_t)json_array_size(shape),
                                .cols = (uint64_t)json_integer_value(json_array_get(shape, 0))};
    t->kept = t->dims == 1 ? DTYPE_F32 : DTYPE_F16;
}

/* The tensors of a case, in order. */
static void list(struct facts *f, json_t *fact)
{
    const char *base;
    json_t *shape, *types = json_object_get(json_object_get(fact, "types"), "F16");
    uint32_t layers = (uint32_t)json_integer_value(json_object_get(fact, "layers"));
    json_object_foreach(json_object_get(fact, "shapes"), base, shape)
    {
        bool in_layers = strstr(json_string_value(json_object_get(types, base)), "*") || layers == 1;
        char name[128];
        if (!in_layers)
            add(f, base, shape);
        for (uint32_t i = 0; in_layers && i < layers; i++) {
            snprintf(name, sizeof name, "blk.%u.%s", i, base);
            add(f, name, shape);
        }
    }
    qsort(f->t, f->n, sizeof *f->t, by_name);
}

/* The type in place `at` of "Q6_K*2 Q4_K". */
static void type_at(const char *runs, uint32_t at, char out[16])
{
    for (const char *r = runs; *r; r += strcspn(r, " "), r += *r == ' ') {
        size_t n = strcspn(r, "* ");
        uint32_t count = r[n] == '*' ? (uint32_t)strtoul(r + n + 1, NULL, 10) : 1;
        if (at < count) {
            snprintf(out, 16, "%.*s", (int)n, r);
            return;
        }
        at -= count;
    }
    fail_msg("no type number %u in \"%s\"", at, runs);
}

static void check(struct facts *f, json_t *fact, const char *recipe, json_t *want, bool importance)
{
    struct err e = {0};
    const struct recipe *r = recipe_find(recipe, &e);
    assert_non_null(r);
    struct recipe_model m = {.arch = json_string_value(json_object_get(fact, "arch")),
                             .importance = importance};
    m.layers = (uint32_t)json_integer_value(json_object_get(fact, "layers"));
    m.heads = (uint32_t)json_integer_value(json_object_get(fact, "heads"));
    m.kv_heads = (uint32_t)json_integer_value(json_object_get(fact, "kv_heads"));
    m.experts = (uint32_t)json_integer_value(json_object_get(fact, "experts"));
    recipe_choose(r, &m, f->t, f->n, false);
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->t[i].name, *base = name;
        char type[16];
        uint32_t layer = 0;
        if (!strncmp(name, "blk.", 4)) {
            char *end;
            layer = (uint32_t)strtoul(name + 4, &end, 10);
            base = end + 1;
        }
        type_at(json_string_value(json_object_get(want, base)), layer, type);
        if (strcmp(type, dtype_get(f->t[i].type)->name))
            fail_msg("%s, %s: %s is %s here and %s there", json_string_value(json_object_get(fact, "case")),
                     recipe, name, dtype_get(f->t[i].type)->name, type);
    }
}

static void types_are_those_of_llama_cpp(void **state)
{
    (void)state;
    static const struct jsonread_limits most = {.text = 4 << 20, .memory = 64 << 20, .depth = 16};
    struct err e = {0};
    json_t *all = jsonread_file("test/data/recipes.json", &most, &e), *fact, *want;
    assert_non_null(all);
    size_t i, checked = 0;
    const char *recipe;
    json_array_foreach(json_object_get(all, "facts"), i, fact)
    {
        struct facts *f = mem_zalloc(1, sizeof *f);
        list(f, fact);
        json_object_foreach(json_object_get(fact, "types"), recipe, want)
        {
            check(f, fact, recipe, want, false);
            checked++;
        }
        json_object_foreach(json_object_get(fact, "with_importance"), recipe, want)
        {
            check(f, fact, recipe, want, true);
            checked++;
        }
        arena_free(&f->arena);
        mem_free(f);
    }
    assert_true(checked > 200);
    json_decref(all);
}

static void names_are_found(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(recipe_find("q4_k", &e)->file_type, 15);
    assert_int_equal(recipe_find("MXFP4_MOE", &e)->file_type, 38);
    assert_null(recipe_find("Q9_K", &e));
    assert_non_null(strstr(e.text, "Q4_K_M"));
}

static void pure_is_one_type(void **state)
{
    (void)state;
    struct err e = {0};
    struct recipe_tensor t[] = {{.name = "output.weight", .dims = 2, .cols = 512},
                                {.name = "token_embd.weight", .dims = 2, .cols = 512},
                                {.name = "blk.0.attn_v.weight", .dims = 2, .cols = 96},
                                {.name = "blk.0.ffn_down.weight", .dims = 2, .cols = 40},
                                {.name = "blk.0.ffn_norm.weight", .dims = 1, .cols = 512}};
    struct recipe_model m = {.arch = "llama", .layers = 1, .heads = 4, .kv_heads = 4};
    recipe_choose(recipe_find("Q4_K_M", &e), &m, t, 5, true);
    static const uint32_t want[] = {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q5_0, DTYPE_F16, DTYPE_F32};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(t[i].type, want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_are_those_of_llama_cpp),
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(pure_is_one_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
