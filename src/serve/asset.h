/* Files that are bytes of this program: the pages, and the description of all routes. The loop's. */
#pragma once

struct conn;

void asset_show(struct conn *c);
