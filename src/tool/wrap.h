/* Breaks the lines of a text at words while it is written to a terminal. A word is held back until it ends, so that it
 * never has to be moved. Widths are those of the locale (wide and combining characters); between ideographs and kana a
 * line may break anywhere except in front of closing punctuation; a word that is longer than a line is cut at its end.
 * Lines of a fenced block (```) are left alone. Control characters, which could change the terminal, become U+FFFD. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

struct wrap {
    int width;       /* columns of the terminal; 0 = lines are not broken */
    int column;      /* where the next character goes */
    int blanks;      /* columns of white space before the word */
    int word_width;  /* columns of the word */
    struct buf word; /* held back */
    char part[4];    /* the beginning of a character */
    size_t part_n;
    bool code;  /* in a fenced block */
    bool wide;  /* the word's last character is one that a line may break after */
    bool begun; /* the line has had a character that is not white space */
};

/* Appends to out what can be written now. */
void wrap_feed(struct wrap *w, const char *text, size_t n, struct buf *out);
/* The text ends: the last word, too. */
void wrap_end(struct wrap *w, struct buf *out);
void wrap_free(struct wrap *w);
/* Columns of the terminal behind this descriptor; 0 = it is none, or too narrow to wrap. */
int wrap_columns(int fd);
