#include "codec/search.h"

#include "base/isa.h"

const struct search_way search_ways[] = {
    {ISA_avx512, search_avx512},
    {ISA_avx2, search_avx2},
    {SEARCH_ANYWHERE, search_plain},
};
