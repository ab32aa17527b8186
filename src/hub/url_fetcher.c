#define _GNU_SOURCE
#include "hub/url_fetcher.h"

#include "base/child.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/curl.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct url_fetcher {
    struct child child;
};

struct fetch_request {
    struct url_limits limits;
    char url[URL_FETCH_MOST];
};

/* The bytes follow it. */
struct fetch_reply {
    int32_t code;
    uint64_t size;
    char text[sizeof((struct err *)0)->text];
};

/* ---- the child of one URL ---- */

struct url_transfer {
    const struct curl *c;
    bool (*allowed)(const struct sockaddr *a);
    bool refused; /* an address was not allowed */
    struct buf body;
    char detail[CURL_ERROR_SIZE];
};

static curl_socket_t fetch_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct url_transfer *f = arg;
    (void)purpose;
    if (f->allowed(&a->addr))
        return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    f->refused = true;
    return CURL_SOCKET_BAD;
}

static size_t fetch_body(char *data, size_t size, size_t n, void *arg)
{
    struct url_transfer *f = arg;
    return buf_add(&f->body, data, size * n) ? size * n : 0;
}

/* http and https, by the older option: the newer one came with 7.85. */
#define FETCH_PROTOCOLS ((long)(CURLPROTO_HTTP | CURLPROTO_HTTPS))

static void fetch_options(struct url_transfer *f, CURL *easy, const struct fetch_request *r)
{
    const struct curl *c = f->c;
    c->easy_setopt(easy, CURLOPT_URL, r->url);
    c->easy_setopt(easy, CURLOPT_PROXY, "");
    c->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(easy, CURLOPT_FAILONERROR, 1L);
    c->easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
    c->easy_setopt(easy, CURLOPT_MAXREDIRS, (long)URL_FETCH_HOPS);
    c->easy_setopt(easy, CURLOPT_TIMEOUT, (long)r->limits.seconds);
    c->easy_setopt(easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)r->limits.bytes);
    c->easy_setopt(easy, CURLOPT_USERAGENT, "quern/" QUERN_VERSION);
    c->easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, fetch_socket);
    c->easy_setopt(easy, CURLOPT_OPENSOCKETDATA, f);
    c->easy_setopt(easy, CURLOPT_WRITEFUNCTION, fetch_body);
    c->easy_setopt(easy, CURLOPT_WRITEDATA, f);
    c->easy_setopt(easy, CURLOPT_ERRORBUFFER, f->detail);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    c->easy_setopt(easy, CURLOPT_PROTOCOLS, FETCH_PROTOCOLS);
    c->easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS, FETCH_PROTOCOLS);
#pragma GCC diagnostic pop
}

static int fetch_url(struct url_transfer *f, const struct fetch_request *r, struct err *e)
{
    f->c = curl_get(e);
    CURL *easy = f->c ? f->c->easy_init() : NULL;
    if (!easy)
        return f->c ? err_memory(e, "libcurl", 4096) : -1;
    f->body.max = r->limits.bytes;
    fetch_options(f, easy, r);
    CURLcode code = f->c->easy_perform(easy);
    if (f->refused)
        err_set(e, ERR_DATA, "%s leads to an address that is not public; such images are not fetched",
                log_safe(r->url));
    else if (code == CURLE_FILESIZE_EXCEEDED || f->body.failed)
        err_set(e, ERR_DATA, "%s has more than %llu bytes", log_safe(r->url),
                (unsigned long long)r->limits.bytes);
    else if (code)
        err_set(e, ERR_DATA, "%s cannot be fetched: %s", log_safe(r->url),
                log_safe(f->detail[0] ? f->detail : f->c->easy_strerror(code)));
    f->c->easy_cleanup(easy);
    return e->code ? -1 : 0;
}

static _Noreturn void fetch_one(int fd, const struct fetch_request *r,
                                bool (*allowed)(const struct sockaddr *a))
{
    struct url_transfer f = {.allowed = allowed};
    struct fetch_reply reply = {0};
    struct err e = {0};
    signal(SIGALRM, SIG_DFL);
    alarm(r->limits.seconds + 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fetch_url(&f, r, &e);
    reply.code = e.code;
    reply.size = e.code ? 0 : f.body.len;
    snprintf(reply.text, sizeof reply.text, "%s", e.text);
    if (child_write(fd, &reply, sizeof reply) && reply.size)
        child_write(fd, f.body.data, f.body.len);
    _exit(0);
}

/* ---- the process that waits ---- */

/* What names, certificates and libcurl need. */
static const struct confine_rule fetch_rules[] = {
    {"/usr/lib", CONFINE_READ},
    {"/usr/lib64", CONFINE_READ},
    {"/lib", CONFINE_READ},
    {"/lib64", CONFINE_READ},
    {"/usr/local/lib", CONFINE_READ},
    {"/etc/ld.so.cache", CONFINE_READ},
    {"/etc/ssl", CONFINE_READ},
    {"/etc/pki", CONFINE_READ},
    {"/etc/ca-certificates", CONFINE_READ},
    {"/usr/share/ca-certificates", CONFINE_READ},
    {"/usr/local/share/ca-certificates", CONFINE_READ},
    {"/etc/resolv.conf", CONFINE_READ},
    {"/etc/hosts", CONFINE_READ},
    {"/etc/host.conf", CONFINE_READ},
    {"/etc/gai.conf", CONFINE_READ},
    {"/etc/nsswitch.conf", CONFINE_READ},
    {"/etc/services", CONFINE_READ},
    {"/dev/urandom", CONFINE_READ},
    {"/dev/null", CONFINE_DEVICE},
};

struct fetch_start {
    bool (*allowed)(const struct sockaddr *a);
};

static void fetcher_child(int fd, void *arg)
{
    const struct fetch_start *s = arg;
    struct fetch_request r;
    struct err none = {0};
    curl_get(&none); /* before rights are given up; where it fails, each request reports it */
    signal(SIGCHLD, SIG_IGN);
    confine_files(&(struct confine_files){
        .rules = fetch_rules, .count = sizeof fetch_rules / sizeof *fetch_rules, .network = true});
    child_ready(fd);
    for (int own; child_take(fd, &r, sizeof r, &own) == sizeof r;) {
        r.url[sizeof r.url - 1] = 0;
        if (own < 0)
            continue;
        if (!fork())
            fetch_one(own, &r, s->allowed);
        close(own);
    }
}

/* ---- the program's side ---- */

int url_fetcher_start(struct url_fetcher **out, bool (*allowed)(const struct sockaddr *a), struct err *e)
{
    struct fetch_start start = {allowed};
    struct url_fetcher *f = mem_zalloc(1, sizeof *f);
    if (!f)
        return err_memory(e, "the process that fetches images", sizeof *f);
    if (child_start(&f->child, "quern-fetcher", "fetches images", fetcher_child, &start, e)) {
        mem_free(f);
        return -1;
    }
    *out = f;
    return 0;
}

void url_fetcher_stop(struct url_fetcher *f)
{
    if (f)
        child_stop(&f->child);
    mem_free(f);
}

int url_fetch(struct url_fetcher *f, const char *url, const struct url_limits *limits, struct buf *out,
              struct err *e)
{
    struct fetch_request r = {.limits = *limits};
    struct fetch_reply reply;
    if (strlen(url) >= sizeof r.url)
        return err_set(e, ERR_DATA, "the URL has %zu bytes; at most %zu are taken", strlen(url),
                       sizeof r.url - 1);
    memcpy(r.url, url, strlen(url));
    int fd = child_call(&f->child, &r, sizeof r, limits->seconds + 5, e);
    if (fd < 0)
        return -1;
    char *to = NULL;
    int failed = -1;
    if (child_read(fd, &reply, sizeof reply)) {
        reply.text[sizeof reply.text - 1] = 0;
        if (reply.code)
            err_set(e, reply.code == ERR_RESOURCE ? ERR_RESOURCE : ERR_DATA, "%s", reply.text);
        else if (reply.size <= limits->bytes && (to = buf_reserve(out, reply.size)) &&
                 child_read(fd, to, reply.size)) {
            out->len += reply.size;
            to[reply.size] = 0;
            failed = 0;
        }
    }
    close(fd);
    return failed ? err_set(e, ERR_DATA, "%s was not fetched within %u s", log_safe(url), limits->seconds)
                  : 0;
}
