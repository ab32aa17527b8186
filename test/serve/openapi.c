/* doc/openapi.json and the table of routes say the same, in both directions. */
#include "test.h"

#include "serve/route.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *read_paths(void)
{
    json_t *doc = json_load_file("doc/openapi.json", 0, NULL);
    assert_non_null(doc);
    json_t *paths = json_incref(json_object_get(doc, "paths"));
    json_decref(doc);
    assert_non_null(paths);
    return paths;
}

/* A name in braces is a star in the table, and /v1 is left out there. */
static void table_path(const char *path, char *out, size_t size)
{
    path += !strncmp(path, "/v1/", 4) ? 3 : 0;
    size_t n = 0;
    for (; *path && n + 1 < size; path++) {
        if (*path == '{') {
            out[n++] = '*';
            path += strcspn(path, "}");
        } else
            out[n++] = *path;
    }
    out[n] = 0;
}

static void lower(const char *method, char *out)
{
    for (; *method; method++)
        *out++ = (char)tolower((unsigned char)*method);
    *out = 0;
}

static const struct route *find(const char *method, const char *path)
{
    for (size_t i = 0; i < route_count; i++) {
        char small[16];
        lower(route_table[i].method, small);
        if (!strcmp(small, method) && !strcmp(route_table[i].path, path))
            return &route_table[i];
    }
    return NULL;
}

static void every_described_path_is_routed(void **state)
{
    (void)state;
    json_t *paths = read_paths(), *methods, *operation;
    const char *path, *method;
    json_object_foreach(paths, path, methods)
    {
        json_object_foreach(methods, method, operation)
        {
            char spelled[256];
            table_path(path, spelled, sizeof spelled);
            const struct route *r = find(method, spelled);
            if (!r)
                fail_msg("%s %s is described and not routed", method, path);
            /* what needs no key says so, and what takes a body describes it */
            const json_t *security = json_object_get(operation, "security");
            if (r->open != (json_is_array(security) && !json_array_size(security)))
                fail_msg("%s %s: the description is wrong about the key", method, path);
            bool body = r->prepare && strcmp(method, "get") != 0 && strcmp(method, "delete") != 0 &&
                        !strstr(path, "/cancel");
            if (body != (json_object_get(operation, "requestBody") != NULL))
                fail_msg("%s %s: the description is wrong about the body", method, path);
        }
    }
    json_decref(paths);
}

static void every_route_is_described(void **state)
{
    (void)state;
    json_t *paths = read_paths(), *methods;
    for (size_t i = 0; i < route_count; i++) {
        const char *path;
        char method[16];
        bool found = false;
        lower(route_table[i].method, method);
        json_object_foreach(paths, path, methods)
        {
            char spelled[256];
            table_path(path, spelled, sizeof spelled);
            found |= !strcmp(spelled, route_table[i].path) && json_object_get(methods, method);
        }
        if (!found)
            fail_msg("%s %s is routed and not described", method, route_table[i].path);
    }
    json_decref(paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_described_path_is_routed),
        cmocka_unit_test(every_route_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
