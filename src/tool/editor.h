/* The user's editor: VISUAL, EDITOR, or vi. */
#pragma once

#include "base/buf.h"
#include "base/err.h"

/* Opens a file with this text in it and waits. *out gets what it holds then, without the last newlines, ended by a 0. */
int editor_run(const char *text, size_t n, struct buf *out, struct err *e);
