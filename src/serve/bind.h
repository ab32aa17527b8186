/* The addresses that a server listens at (server_bind of server.h), as URLs. */
#pragma once

#include "serve/server.h"

#include <stddef.h>

enum { BIND_URL = 1100 };

/* "http://127.0.0.1:8080" of a socket that listens; "" where it has no address. */
void bind_url(int fd, const char *scheme, char *out, size_t size);
