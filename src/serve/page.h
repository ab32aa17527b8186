/* What the chat page learns from the server beside the APIs: whether its key is an admin's, and which MCP servers it may
 * reach. */
#pragma once

#include "base/err.h"

#include <stddef.h>

struct conn;

enum { MCP_NAME = 64, MCP_ORIGIN = 300 };

/* One --mcp NAME=URL. The browser connects to it, this server never does. */
struct mcp_server {
    char name[MCP_NAME];     /* letters, digits, - and _ */
    const char *url;         /* points into the option */
    char origin[MCP_ORIGIN]; /* of the url: what the page's policy allows */
};

/* out[count]: appended to. A name may come once. */
int mcp_read(const char *text, struct mcp_server *out, size_t count, struct err *e);
void page_session(struct conn *c);
