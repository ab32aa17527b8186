#include "serve/tls.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdbool.h>

enum { TLS_FILE = 1 << 20 };

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

/* A server cannot ask for a password. */
static int tls_no_password(char *to, int size, int writing, void *arg)
{
    (void)to, (void)size, (void)writing, (void)arg;
    return -1;
}

/* The first certificate is the server's, the others are its chain. */
static bool tls_use_chain(SSL_CTX *context, BIO *pem)
{
    X509 *cert = PEM_read_bio_X509_AUX(pem, NULL, tls_no_password, NULL);
    bool done =
        cert && SSL_CTX_use_certificate(context, cert) == 1 && SSL_CTX_clear_chain_certs(context) == 1;
    X509_free(cert);
    while (done && (cert = PEM_read_bio_X509(pem, NULL, tls_no_password, NULL)))
        if (SSL_CTX_add0_chain_cert(context, cert) != 1) {
            X509_free(cert);
            done = false;
        }
    if (!done || ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
        return false;
    ERR_clear_error(); /* the end of the file */
    return true;
}

static bool tls_use_key(SSL_CTX *context, BIO *pem)
{
    EVP_PKEY *key = PEM_read_bio_PrivateKey(pem, NULL, tls_no_password, NULL);
    bool done = key && SSL_CTX_use_PrivateKey(context, key) == 1 && SSL_CTX_check_private_key(context) == 1;
    EVP_PKEY_free(key);
    return done;
}

/* Through base/file.h: in the sandbox OpenSSL cannot open it. */
static int tls_use(struct tls *t, const char *option, const char *file, bool (*use)(SSL_CTX *, BIO *),
                   struct err *e)
{
    struct buf text = {.max = TLS_FILE};
    struct err why = {0};
    if (file_read(file, &text, &why)) {
        buf_free(&text);
        return err_set(e, ERR_USAGE, "%s: %s", option, why.text);
    }
    BIO *pem = BIO_new_mem_buf(text.data ? text.data : "", (int)text.len);
    int failed = pem && use(t->context, pem) ? 0 : tls_fail(e, option, file);
    BIO_free(pem);
    if (text.data)
        OPENSSL_cleanse(text.data, text.cap);
    buf_free(&text);
    return failed;
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
    if (tls_use(t, "--tls-cert", cert, tls_use_chain, e) || tls_use(t, "--tls-key", key, tls_use_key, e)) {
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
