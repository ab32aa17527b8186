/* TLS with OpenSSL behind libevent's buffers. A struct tls belongs to the loop's thread; when it is replaced,
 * open connections keep the old one. */
#pragma once

#include "base/err.h"

#include <event2/util.h>

struct bufferevent;
struct event_base;
struct tls;

/* PEM files: the certificate with its chain, and its key. */
int tls_open(struct tls **out, const char *cert, const char *key, struct err *e);
void tls_close(struct tls *t); /* NULL is fine */
/* A connection that begins with the handshake. NULL: no memory. */
struct bufferevent *tls_accept(struct tls *t, struct event_base *base, evutil_socket_t fd);
/* Sends close_notify, so that the client can tell the end from a truncation. Does nothing to a plain
 * connection. */
void tls_goodbye(struct bufferevent *bev);
