#include "serve/tls.h"

#include "base/log.h"
#include "base/mem.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

struct tls {
    SSL_CTX *context;
};

static int tls_fail(struct err *e, const char *what, const char *file)
{
    char text[256] = "no reason given";
    unsigned long code = ERR_get_error();
    if (code)
        ERR_error_string_n(code, text, sizeof text);
    ERR_clear_error();
    return err_set(e, ERR_USAGE, "%s %s: %s", what, log_safe(file), text);
}

int tls_open(struct tls **out, const char *cert, const char *key, struct err *e)
{
    struct tls *t = mem_zalloc(1, sizeof *t);
    if (!t || !(t->context = SSL_CTX_new(TLS_server_method()))) {
        tls_close(t);
        return err_memory(e, "TLS", sizeof *t);
    }
    SSL_CTX_set_min_proto_version(t->context, TLS1_2_VERSION);
    SSL_CTX_set_options(t->context,
                        SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(t->context, SSL_MODE_RELEASE_BUFFERS); /* a thousand connections that rest */
    int failed = 0;
    if (SSL_CTX_use_certificate_chain_file(t->context, cert) != 1)
        failed = tls_fail(e, "--tls-cert", cert);
    else if (SSL_CTX_use_PrivateKey_file(t->context, key, SSL_FILETYPE_PEM) != 1 ||
             SSL_CTX_check_private_key(t->context) != 1)
        failed = tls_fail(e, "--tls-key", key);
    if (failed) {
        tls_close(t);
        return -1;
    }
    *out = t;
    return 0;
}

void tls_close(struct tls *t)
{
    if (t)
        SSL_CTX_free(t->context);
    mem_free(t);
}

struct bufferevent *tls_accept(struct tls *t, struct event_base *base, evutil_socket_t fd)
{
    SSL *ssl = SSL_new(t->context);
    struct bufferevent *bev =
        ssl ? bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE)
            : NULL;
    if (!bev)
        SSL_free(ssl);
    return bev;
}

void tls_goodbye(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl)
        SSL_shutdown(ssl);
    ERR_clear_error();
}
