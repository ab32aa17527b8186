/* Addresses that may be fetched from, and the fetcher against a small server on this machine. */
#include "test.h"

#include "hub/public_address.h"
#include "hub/url_fetcher.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_public(const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
        return address_is_public((const struct sockaddr *)&in);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return address_is_public((const struct sockaddr *)&in6);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const yes[] = {
        "1.1.1.1",          "8.8.8.8",        "93.184.216.34",    "100.63.255.255",
        "100.128.0.0",      "172.15.0.1",     "172.32.0.1",       "192.0.1.1",
        "198.17.0.1",       "198.20.0.1",     "223.255.255.255",  "2606:4700:4700::1111",
        "2a00:1450:400c::", "::ffff:1.1.1.1", "64:ff9b::808:808", "2002:0808:0808::1"};
    static const char *const no[] = {
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.1.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.1",
        "198.51.100.7",
        "203.0.113.9",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "3fff::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "ff02::1",
    };
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!is_public(yes[i]))
            fail_msg("%s is public", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (is_public(no[i]))
            fail_msg("%s is not public", no[i]);
}

/* ---- a server: /file, /hop (to /file), /away (to 127.0.0.2), /missing ---- */

static int listener;
static int port;

static void *serve(void *arg)
{
    (void)arg;
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; close(fd)) {
        char in[2048] = "", out[512];
        if (read(fd, in, sizeof in - 1) <= 0)
            continue;
        const char *body = strstr(in, " /file") ? "0123456789" : "";
        int n = strstr(in, " /hop") ? snprintf(out, sizeof out, "HTTP/1.1 302 Found\r\nLocation: /file\r\n")
                : strstr(in, " /away")
                    ? snprintf(out, sizeof out,
                               "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:%d/file\r\n", port)
                : strstr(in, " /loop")
                    ? snprintf(out, sizeof out, "HTTP/1.1 302 Found\r\nLocation: /loop\r\n")
                : strstr(in, " /disk")
                    ? snprintf(out, sizeof out, "HTTP/1.1 302 Found\r\nLocation: file:///x\r\n")
                    : snprintf(out, sizeof out, "HTTP/1.1 %s\r\n", *body ? "200 OK" : "404 Not Found");
        n += snprintf(out + n, sizeof out - (size_t)n, "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                      strlen(body), body);
        if (write(fd, out, (size_t)n) != n)
            continue;
    }
    return NULL;
}

static bool only_first(const struct sockaddr *a)
{
    struct sockaddr_in in;
    memcpy(&in, a, sizeof in);
    return a->sa_family == AF_INET && in.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
}

static struct url_fetcher *fetcher, *strict;

static int fetch(struct url_fetcher *f, const char *path, uint64_t bytes, struct buf *out, struct err *e)
{
    char url[128];
    const struct url_limits limits = {bytes, 20};
    snprintf(url, sizeof url, *path == '/' ? "http://127.0.0.1:%d%s" : "%.0d%s", port, path);
    return url_fetch(f, *path == '/' ? url : path, &limits, out, e);
}

static void refused(struct url_fetcher *f, const char *path, uint64_t bytes, const char *words)
{
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(fetch(f, path, bytes, &out, &e), -1);
    assert_int_equal(e.code, ERR_DATA);
    if (!strstr(e.text, words))
        fail_msg("'%s' without '%s'", e.text, words);
    buf_free(&out);
}

static void test_fetch(void **state)
{
    (void)state;
    struct buf out = {0};
    struct err e = {0};
    if (fetch(fetcher, "/file", 10, &out, &e) && strstr(e.text, "libcurl"))
        skip();
    assert_string_equal(out.data, "0123456789");
    buf_clear(&out);
    assert_int_equal(fetch(fetcher, "/hop", 10, &out, &e), 0);
    assert_string_equal(out.data, "0123456789");
    buf_free(&out);
    refused(fetcher, "/file", 9, "more than 9 bytes");
    refused(fetcher, "/missing", 10, "cannot be fetched");
    refused(fetcher, "/away", 10, "not public");
    refused(fetcher, "/loop", 10, "cannot be fetched");
    refused(fetcher, "/disk", 10, "cannot be fetched");
    refused(fetcher, "file:///etc/passwd", 10000, "cannot be fetched");
    refused(strict, "/file", 10, "not public");
    refused(strict, "http://localhost:1/x", 10, "not public");
    refused(strict, "http://[::1]:1/x", 10, "not public");
    refused(strict, "http://2130706433/", 10, "not public"); /* 127.0.0.1 as one number */
}

static int setup(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t n = sizeof at;
    struct err e = {0};
    pthread_t t;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (const struct sockaddr *)&at, sizeof at) || listen(listener, 8) ||
        getsockname(listener, (struct sockaddr *)&at, &n) || url_fetcher_start(&fetcher, only_first, &e) ||
        url_fetcher_start(&strict, address_is_public, &e))
        return -1;
    port = ntohs(at.sin_port);
    return pthread_create(&t, NULL, serve, NULL);
}

static int teardown(void **state)
{
    (void)state;
    url_fetcher_stop(fetcher);
    url_fetcher_stop(strict);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_addresses), cmocka_unit_test(test_fetch)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
