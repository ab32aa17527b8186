/* The filters, in three files: of text and numbers, of sequences, of HTML and URLs. */
#pragma once

#include "lang/jinja/jinja_call.h"

struct jfilters {
    const struct jfunc *f; /* (n) */
    size_t n;
};

extern const struct jfilters jfilters_text, jfilters_seq, jfilters_html;

/* jinja_urlize.c */
struct jv jurlize_filter(struct jrt *rt, struct jv v, struct jv *arg);
