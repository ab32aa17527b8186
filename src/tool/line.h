/* Reads lines from a terminal, with editing and a saved history. Plain lines if quern was built without
 * libedit. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

struct line;

struct line *line_open(void); /* NULL: memory is out */
void line_close(struct line *l);
/* One line without its newline into out (emptied first). false at the end of the input. Ctrl-C gives an
 * empty line. */
bool line_read(struct line *l, const char *prompt, struct buf *out);
void line_remember(struct line *l, const char *text);
