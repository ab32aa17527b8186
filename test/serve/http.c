/* Requests whole and broken, each fed at once, byte by byte, and in odd pieces: the same result. */
#include "test.h"

#include "serve/http.h"
#include "serve/limit.h"

#include <stdio.h>
#include <string.h>

#define GET     "GET / HTTP/1.1\r\n"
#define POST    "POST /v1/x HTTP/1.1\r\n"
#define HOST    "Host: localhost\r\n"
#define CHUNK   POST HOST "Transfer-Encoding: chunked\r\n\r\n"
#define TEXT(s) s, sizeof s - 1

struct bad {
    const char *text;
    size_t n;
    int status;
};

static const struct bad bad[] = {
    /* the first line */
    {TEXT("GET\r\n" HOST "\r\n"), 400},
    {TEXT("GET /\r\n" HOST "\r\n"), 400},
    {TEXT("GET  / HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET /  HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET / HTTP/1.1 \r\n" HOST "\r\n"), 400},
    {TEXT(" GET / HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET\t/\tHTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("G(T / HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("G\0T / HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET / http/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET / HTTP/1\r\n" HOST "\r\n"), 400},
    {TEXT("GET / HTTP/1.10\r\n" HOST "\r\n"), 400},
    {TEXT("GET / HTTP/x.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET / HTTP/2.0\r\n" HOST "\r\n"), 505},
    {TEXT("GET / HTTP/0.9\r\n" HOST "\r\n"), 505},
    {TEXT("GET index HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET * HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET http:// HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET http:///a HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET http://host HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("CONNECT host:80 HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET /#a HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET /\x01 HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET /\0a HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET /\xc3\xa4 HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("GET /\x7f HTTP/1.1\r\n" HOST "\r\n"), 400},
    {TEXT("ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOP / HTTP/1.1\r\n" HOST "\r\n"), 501},
    {TEXT("\r\n\r\n" GET HOST "\r\n"), 400},
    /* line ends */
    {TEXT("GET / HTTP/1.1\n" HOST "\r\n"), 400},
    {TEXT(GET "Host: localhost\n\r\n"), 400},
    {TEXT(GET HOST "\n"), 400},
    {TEXT(GET "Host: local\rhost\r\n\r\n"), 400},
    {TEXT(GET "Host: localhost\r\r\n\r\n"), 400},
    {TEXT("GET / HTTP/1.1\r\r\n" HOST "\r\n"), 400},
    {TEXT("\n" GET HOST "\r\n"), 400},
    /* headers */
    {TEXT(GET HOST "A: b\r\n c\r\n\r\n"), 400},
    {TEXT(GET HOST "A: b\r\n\tc\r\n\r\n"), 400},
    {TEXT(GET " Host: localhost\r\n\r\n"), 400},
    {TEXT(GET "Host : localhost\r\n\r\n"), 400},
    {TEXT(GET HOST "A\t: b\r\n\r\n"), 400},
    {TEXT(GET HOST "A b: c\r\n\r\n"), 400},
    {TEXT(GET HOST ": c\r\n\r\n"), 400},
    {TEXT(GET HOST "no colon\r\n\r\n"), 400},
    {TEXT(GET HOST "A: b\0c\r\n\r\n"), 400},
    {TEXT(GET HOST "A\0: b\r\n\r\n"), 400},
    {TEXT(GET HOST "A: \x01\r\n\r\n"), 400},
    {TEXT(GET HOST "A: \x7f\r\n\r\n"), 400},
    {TEXT(GET HOST "\xc3\xa4: b\r\n\r\n"), 400},
    {TEXT(GET HOST "A(: b\r\n\r\n"), 400},
    /* Host */
    {TEXT(GET "\r\n"), 400},
    {TEXT(GET HOST HOST "\r\n"), 400},
    {TEXT(GET HOST "HOST: other\r\n\r\n"), 400},
    {TEXT(GET "Host:\r\n\r\n"), 400},
    {TEXT(GET "Host: a b\r\n\r\n"), 400},
    {TEXT(GET "Host: a, b\r\n\r\n"), 400},
    {TEXT(GET "Host: user@host\r\n\r\n"), 400},
    {TEXT(GET "Host: host/path\r\n\r\n"), 400},
    {TEXT(GET "Host: host:port\r\n\r\n"), 400},
    {TEXT(GET "Host: host:65536\r\n\r\n"), 400},
    {TEXT(GET "Host: [::1\r\n\r\n"), 400},
    {TEXT(GET "Host: []\r\n\r\n"), 400},
    /* lengths */
    {TEXT(POST HOST "\r\n"), 411},
    {TEXT("PUT / HTTP/1.1\r\n" HOST "\r\n"), 411},
    {TEXT(POST HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"), 400},
    {TEXT(POST HOST "Content-Length: 5, 5\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: +5\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: -5\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: 0x5\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: 5.0\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: 5e0\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: five\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length:\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: 5 5\r\n\r\nhello"), 400},
    {TEXT(POST HOST "Content-Length: 16777217\r\n\r\n"), 413},
    {TEXT(POST HOST "Content-Length: 18446744073709551621\r\n\r\n"), 413},
    {TEXT(POST HOST "Content-Length: 99999999999999999999999999\r\n\r\n"), 413},
    {TEXT(POST HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST HOST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST HOST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST HOST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST HOST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST HOST "Transfer-Encoding: identity\r\n\r\n"), 501},
    {TEXT(POST HOST "Transfer-Encoding:\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST HOST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"), 501},
    {TEXT(POST HOST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {TEXT(POST HOST "Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello"), 415},
    {TEXT(POST HOST "Content-Length: 5\r\nExpect: miracles\r\n\r\nhello"), 417},
    /* chunks */
    {TEXT(CHUNK "\r\n"), 400},
    {TEXT(CHUNK "x\r\n"), 400},
    {TEXT(CHUNK "0x5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "+5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "-5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK " 5\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "5 \r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "5\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "5\r\nhello\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "5\r\nhello!\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "5\r\nhello0\r\n\r\n"), 400},
    {TEXT(CHUNK "5;a\x01\r\nhello\r\n0\r\n\r\n"), 400},
    {TEXT(CHUNK "1000001\r\n"), 413},
    {TEXT(CHUNK "ffffffffffffffff\r\n"), 413},
    {TEXT(CHUNK "10000000000000005\r\nhello\r\n0\r\n\r\n"), 413},
    {TEXT(CHUNK "000000005\r\nhello\r\n0\r\n\r\n"), 413},
    {TEXT(CHUNK "0\r\n folded\r\n\r\n"), 400},
    {TEXT(CHUNK "0\r\nA : b\r\n\r\n"), 400},
    {TEXT(CHUNK "0\r\nA: b\n\r\n"), 400},
    {TEXT(CHUNK "0\r\n\n"), 400},
};

/* Feeds in pieces of so many bytes, each in memory of exactly its size; how many were taken. */
static size_t feed(struct http *h, const char *text, size_t n, size_t piece)
{
    size_t at = 0;
    while (at < n && h->state != HTTP_DONE && h->state != HTTP_BAD) {
        size_t len = n - at < piece ? n - at : piece;
        char *copy = malloc(len);
        memcpy(copy, text + at, len);
        at += http_feed(h, copy, len);
        free(copy);
    }
    return at;
}

static const size_t pieces[] = {SIZE_MAX, 1, 2, 7};
enum { PIECES = sizeof pieces / sizeof *pieces };

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (size_t p = 0; p < PIECES; p++) {
            struct http h = {0};
            feed(&h, bad[i].text, bad[i].n, pieces[p]);
            if (h.state != HTTP_BAD || h.status != bad[i].status)
                fail_msg("case %zu in pieces of %zu: state %d, status %d instead of %d: %s", i, pieces[p],
                         h.state, h.status, bad[i].status, bad[i].text);
            assert_non_null(h.why);
            assert_false(h.keep);
            http_free(&h);
        }
    assert_true(sizeof bad / sizeof *bad >= 110);
}

static void test_good(void **state)
{
    (void)state;
    static const struct {
        const char *text, *method, *target, *body;
        bool keep, expects;
    } good[] = {
        {GET HOST "\r\n", "GET", "/", "", true, false},
        {"\r\n" GET HOST "\r\n", "GET", "/", "", true, false},
        {"GET /a?b=%20c HTTP/1.1\r\nhOsT:\tlocalhost:8080 \r\n\r\n", "GET", "/a?b=%20c", "", true, false},
        {"GET http://localhost:80/a HTTP/1.1\r\n" HOST "\r\n", "GET", "/a", "", true, false},
        {GET "Host: [::1]:80\r\nA:\r\n\r\n", "GET", "/", "", true, false},
        {GET HOST "Connection: Upgrade, Close\r\n\r\n", "GET", "/", "", false, false},
        {"GET / HTTP/1.0\r\n\r\n", "GET", "/", "", false, false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET", "/", "", true, false},
        {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", "OPTIONS", "*", "", true, false},
        {"HEAD /x HTTP/1.1\r\n" HOST "\r\n", "HEAD", "/x", "", true, false},
        {POST HOST "Content-Length: 0\r\n\r\n", "POST", "/v1/x", "", true, false},
        {POST HOST "Content-Length: 005\r\n\r\nhello", "POST", "/v1/x", "hello", true, false},
        {POST HOST "Expect: 100-Continue\r\nContent-Length: 5\r\n\r\nhello", "POST", "/v1/x", "hello", true,
         true},
        {CHUNK "5\r\nhello\r\n0\r\n\r\n", "POST", "/v1/x", "hello", true, false},
        {CHUNK "2;a=b\r\nhe\r\n0003\r\nllo\r\n000\r\nA: b\r\nC: d\r\n\r\n", "POST", "/v1/x", "hello", true,
         false},
        {CHUNK "A\r\n0123456789\r\n0;x\r\n\r\n", "POST", "/v1/x", "0123456789", true, false},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        for (size_t p = 0; p < PIECES; p++) {
            struct http h = {0};
            size_t n = strlen(good[i].text);
            assert_int_equal(feed(&h, good[i].text, n, pieces[p]), n);
            if (h.state != HTTP_DONE)
                fail_msg("case %zu in pieces of %zu: %s", i, pieces[p], h.why ? h.why : "not done");
            assert_string_equal(http_method(&h), good[i].method);
            assert_string_equal(http_target(&h), good[i].target);
            assert_string_equal(h.body.data ? h.body.data : "", good[i].body);
            assert_int_equal(h.keep, good[i].keep);
            assert_int_equal(h.expects, good[i].expects);
            http_free(&h);
        }
}

static void test_pipeline(void **state)
{
    (void)state;
    static const char text[] =
        POST HOST "Content-Length: 3\r\nX-Name: One\r\n\r\none" CHUNK "3\r\ntwo\r\n0\r\n\r\n" GET HOST "\r\n";
    static const char *const bodies[] = {"one", "two", ""};
    struct http h = {0};
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        at += http_feed(&h, text + at, sizeof text - 1 - at);
        assert_int_equal(h.state, HTTP_DONE);
        assert_string_equal(h.body.data, bodies[i]);
        assert_int_equal(http_field(&h, "x-name") != NULL, i == 0);
        if (i == 0)
            assert_string_equal(http_field(&h, "x-name"), "One");
        http_reset(&h);
    }
    assert_int_equal(at, sizeof text - 1);
    http_free(&h);
}

/* One more byte than a limit allows, and exactly as many. */
static int limit(const char *before, size_t fill, const char *after, size_t piece)
{
    struct http h = {0};
    size_t b = strlen(before), a = strlen(after);
    char *text = malloc(b + fill + a);
    memcpy(text, before, b);
    memset(text + b, 'a', fill);
    memcpy(text + b + fill, after, a);
    feed(&h, text, b + fill + a, piece);
    int status = h.state == HTTP_BAD ? h.status : h.state == HTTP_DONE ? 200 : 0;
    http_free(&h);
    free(text);
    return status;
}

static void test_limits(void **state)
{
    (void)state;
    size_t rest = sizeof HOST - 1 + 5; /* "A: " and its line end */
    for (size_t p = 0; p < PIECES; p++) {
        assert_int_equal(limit("GET /", limit_of(LIMIT_URI) - 1, " HTTP/1.1\r\n" HOST "\r\n", pieces[p]),
                         200);
        assert_int_equal(limit("GET /", limit_of(LIMIT_URI), " HTTP/1.1\r\n" HOST "\r\n", pieces[p]), 414);
        assert_int_equal(limit("GET /", 1 << 20, "", pieces[p]), 414);
        assert_int_equal(limit("", 1 << 20, "", pieces[p]), 414);
        assert_int_equal(limit(GET HOST "A: ", limit_of(LIMIT_HEADERS) - rest - 2, "\r\n\r\n", pieces[p]),
                         200);
        assert_int_equal(limit(GET HOST "A: ", limit_of(LIMIT_HEADERS) - rest + 1, "\r\n\r\n", pieces[p]),
                         431);
        assert_int_equal(limit(GET HOST "A: ", 1 << 20, "", pieces[p]), 431);
        assert_int_equal(limit(CHUNK "1;", 300, "\r\n", pieces[p]), 400);
        assert_int_equal(limit(CHUNK "0\r\nA: ", 1 << 20, "", pieces[p]), 431);
        assert_int_equal(limit(CHUNK, 1 << 20, "", pieces[p]), 400);
    }
    assert_int_equal(limit(POST HOST "Content-Length: 16777216\r\n\r\n", limit_of(LIMIT_BODY), "", SIZE_MAX),
                     200);
    assert_int_equal(limit(CHUNK "1000000\r\n", limit_of(LIMIT_BODY), "\r\n0\r\n\r\n", SIZE_MAX), 200);
    assert_int_equal(limit(CHUNK "1000000\r\n", limit_of(LIMIT_BODY), "\r\n1\r\na\r\n0\r\n\r\n", SIZE_MAX),
                     413);
}

static void test_many_headers(void **state)
{
    (void)state;
    for (int extra = 0; extra < 2; extra++) {
        struct buf text = {0};
        struct http h = {0};
        buf_str(&text, GET HOST);
        for (int i = 1; i < HTTP_FIELDS_MOST + extra; i++)
            buf_str(&text, "A: b\r\n");
        buf_str(&text, "\r\n");
        http_feed(&h, text.data, text.len);
        assert_int_equal(h.state, extra ? HTTP_BAD : HTTP_DONE);
        assert_int_equal(h.status, extra ? 431 : 0);
        http_free(&h);
        buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),    cmocka_unit_test(test_good),         cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_many_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
