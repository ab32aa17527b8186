#include "codec/search.h"

/* Sixteen lanes are four registers of any ARM64. */
const struct search_way search_ways[] = {{SEARCH_ANYWHERE, search_plain}};
