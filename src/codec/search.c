/* The search for any machine, and the choice of the fastest that this one can run. */
#include "codec/search_inline.h"

#include "base/isa.h"

void search_plain(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    search_run(f, x, weight, out);
}

void search_block(const struct search_form *f, const float *x, const float *weight, struct search_result *out)
{
    const struct search_way *w = search_ways;
    while (w->tier != SEARCH_ANYWHERE && !isa_has(w->tier))
        w++;
    w->run(f, x, weight, out);
}
