/* Reads lines from a terminal, with editing, a saved history (Ctrl-R searches it) and completion.
 * Plain lines if quern was built without libedit. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

struct line;

/* Tab: appends to `insert` what continues the text before the cursor, and to `list` the choices, one a line, where there
 * are several. */
typedef void line_complete(const char *text, size_t n, struct buf *insert, struct buf *list);

/* history: the file where lines are kept; NULL = nowhere. complete may be NULL. NULL: memory is out. */
struct line *line_open(const char *history, line_complete *complete);
void line_close(struct line *l);
/* One line without its newline into out (emptied first). Lines that are pasted together come together, with the newlines
 * between them. false at the end of the input. Ctrl-C gives an empty line. */
bool line_read(struct line *l, const char *prompt, struct buf *out);
void line_remember(struct line *l, const char *text);
