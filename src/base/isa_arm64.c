#include "base/isa.h"

#include <stddef.h>
#include <sys/auxv.h>

static const struct isa_word {
    enum isa_tier_arm64 tier;
    unsigned long word, bit;
} isa[] = {
#define ISA(tier, name, word, bit) {ISA_##tier, word, bit},
#include "base/isa_rows_arm64.h"
#undef ISA
};

bool isa_has(int t)
{
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++)
        if ((int)isa[i].tier <= t && !(getauxval(isa[i].word) & isa[i].bit))
            return false;
    return true;
}
