/* Paths that terminals write for files that are dropped on them. */
#include "test.h"

#include "tool/dropped.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[64] = "/tmp/quern-dropped-XXXXXX";
static char plain[128], blank[128];

static size_t read_from(const char *before, const char *path, const char *after, char *out)
{
    char text[512];
    snprintf(text, sizeof text, "%s%s%s", before, path, after);
    return dropped_image(text, out, 256);
}

static void test_forms(void **state)
{
    (void)state;
    char out[256], escaped[160];
    snprintf(escaped, sizeof escaped, "%s/my\\ photo.JPG", folder);
    assert_int_equal(read_from("", plain, "", out), strlen(plain));
    assert_string_equal(out, plain);
    assert_int_equal(read_from("  '", blank, "' what?", out), strlen(blank) + 5);
    assert_string_equal(out, blank);
    assert_int_equal(read_from("\"", blank, "\"\n", out), strlen(blank) + 3);
    assert_string_equal(out, blank);
    assert_int_equal(read_from("", escaped, " what?", out), strlen(escaped) + 1);
    assert_string_equal(out, blank);
    assert_int_equal(read_from("file://", plain, "", out), strlen(plain) + 7);
    assert_string_equal(out, plain);
}

static void test_others(void **state)
{
    (void)state;
    char out[256], small[8];
    assert_int_equal(read_from("", blank, "", out), 0); /* two words */
    assert_int_equal(read_from("'", plain, "", out), 0);
    assert_int_equal(read_from("what is ", plain, "", out), 0);
    assert_int_equal(read_from("", plain, ".none.png", out), 0);
    assert_int_equal(dropped_image("/help", out, sizeof out), 0);
    assert_int_equal(dropped_image("", out, sizeof out), 0);
    assert_int_equal(dropped_image("/etc/passwd", out, sizeof out), 0);
    assert_int_equal(dropped_image(plain, small, sizeof small), 0);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(plain, sizeof plain, "%s/a.png", folder);
    snprintf(blank, sizeof blank, "%s/my photo.JPG", folder);
    FILE *a = fopen(plain, "w"), *b = fopen(blank, "w");
    return a && b && !fclose(a) && !fclose(b) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return unlink(plain) || unlink(blank) || rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_others)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
