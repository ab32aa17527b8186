/* Hosts and origins: what they are, which are this machine's, and which of them --allowed-origin lets in. */
#include "test.h"

#include "serve/origin.h"

#include <string.h>

static void test_hosts(void **state)
{
    static const char *const good[] = {"localhost",   "localhost:8080", "127.0.0.1:1",
                                       "[::1]:65535", "LOCALHOST",      "a_b-c.d"};
    static const char *const bad[] = {
        "",    ":80",        "localhost:", "localhost:80x", "localhost:3000.evil.com",
        "a/b", "user@host",  "[::1",       "[::1]8080",     "[nonsense]:80",
        "a b", "host:65536", "host:-1",    "h\303\266st",   "host:80:80"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct origin o = {0};
        assert_true(origin_read_host(good[i], &o));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct origin o = {0};
        assert_false(origin_read_host(bad[i], &o));
    }
}

static void test_origins(void **state)
{
    struct origin o;
    (void)state;
    assert_true(origin_read("HTTP://LocalHost:3000", &o) && o.port == 3000 && origin_is_local(&o) &&
                origin_is_web(&o));
    assert_true(origin_read("https://app.localhost", &o) && o.port == 443 && origin_is_local(&o));
    assert_true(origin_read("http://[::1]", &o) && o.port == 80 && origin_is_local(&o));
    assert_true(origin_read("app://obsidian.md", &o) && o.port == -1 && !origin_is_web(&o));
    assert_true(origin_read("file://", &o) && !*o.host);
    assert_true(origin_read("http://localhost.evil.com", &o) && !origin_is_local(&o));
    assert_true(origin_read("http://127.0.0.1.evil.com", &o) && !origin_is_local(&o));
    assert_true(origin_read("http://evillocalhost", &o) && !origin_is_local(&o));
    static const char *const bad[] = {"http://localhost:3000.evil.com",
                                      "http://",
                                      "://a",
                                      "null",
                                      "localhost",
                                      "http:/a",
                                      "http://a/",
                                      "http://a@localhost",
                                      "http://localhost#.evil.com",
                                      "1a://b",
                                      "file://:80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(origin_read(bad[i], &o));
}

static void test_allowed(void **state)
{
    struct err e = {0};
    (void)state;
    static const char *const taken[] = {
        "https://chat.example", "app://obsidian.md", "vscode-webview://*", "null", "*", "file://"};
    static const char *const refused[] = {"https://*", "chat.example", "https://chat.example/", "",
                                          "https://*.example"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        assert_int_equal(origin_check_allowed(taken[i], &e), 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        e = (struct err){0};
        assert_int_equal(origin_check_allowed(refused[i], &e), -1);
        assert_int_equal(e.code, ERR_USAGE);
    }
    assert_true(origin_matches("https://chat.example", "https://CHAT.example:443"));
    assert_false(origin_matches("https://chat.example", "http://chat.example"));
    assert_false(origin_matches("https://chat.example", "https://chat.example:444"));
    assert_false(origin_matches("https://chat.example", "https://chat.example.evil.com"));
    assert_true(origin_matches("vscode-webview://*", "vscode-webview://1ql2s7ei0"));
    assert_false(origin_matches("vscode-webview://*", "vscode://1ql2s7ei0"));
    assert_true(origin_matches("app://obsidian.md", "app://obsidian.md"));
    assert_false(origin_matches("app://obsidian.md", "app://other.md"));
    assert_true(origin_matches("null", "null"));
    assert_false(origin_matches("app://obsidian.md", "null"));
    assert_true(origin_matches("*", "null"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_origins),
        cmocka_unit_test(test_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
