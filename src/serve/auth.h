/* Who may come in: the Host header, the Origin of a page, the key. The loop's. */
#pragma once

#include <stdbool.h>

struct conn;
struct failure;

/* Why the request may not come in; 0 = it may. */
int auth_check(struct conn *c, struct failure *f);
bool auth_key(struct conn *c);
