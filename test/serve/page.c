/* --mcp NAME=URL: what is taken, and what would get into a header. */
#include "test.h"

#include "serve/page.h"

#include <string.h>

static void takes_a_name_and_an_address(void **state)
{
    (void)state;
    struct mcp_server all[3];
    struct err e = {0};
    assert_int_equal(mcp_read("files=http://localhost:3000/mcp", all, 0, &e), 0);
    assert_string_equal(all[0].name, "files");
    assert_string_equal(all[0].url, "http://localhost:3000/mcp");
    assert_string_equal(all[0].origin, "http://localhost:3000");
    assert_int_equal(mcp_read("a_b-1=https://[::1]?x=1", all, 1, &e), 0);
    assert_string_equal(all[1].origin, "https://[::1]");
    assert_int_equal(mcp_read("files=http://other/", all, 2, &e), -1);
    assert_non_null(strstr(e.text, "two MCP servers are called files"));
}

static void refuses_everything_else(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "files",
                                      "=http://a",
                                      "a b=http://a",
                                      "a=",
                                      "a=localhost:3000",
                                      "a=ftp://x/",
                                      "a=http://",
                                      "a=http://x y/",
                                      "a=http://x;script-src *",
                                      "a=http://x/\r\nX: y",
                                      "a=http://*",
                                      "a=http://user@x/",
                                      "a=http://x/\"",
                                      "a=http://x:99999/"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mcp_server one;
        struct err e = {0};
        if (mcp_read(bad[i], &one, 0, &e) != -1)
            fail_msg("taken: %s", bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_a_name_and_an_address),
        cmocka_unit_test(refuses_everything_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
