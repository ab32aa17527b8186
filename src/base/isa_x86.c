#include "base/isa.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <stddef.h>

enum isa_register { EAX, EBX, ECX, EDX };

static const struct isa {
    enum isa_tier tier;
    unsigned leaf, subleaf;
    enum isa_register in;
    unsigned bit;
} isa[] = {
#define ISA(tier, name, leaf, subleaf, in, bit) {ISA_##tier, leaf, subleaf, in, bit},
#include "base/isa_rows_x86.h"
#undef ISA
};

static bool isa_ask(int t)
{
    if (!(t == ISA_avx2 ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("avx512f")))
        return false;
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++) {
        unsigned r[4];
        if ((int)isa[i].tier <= t &&
            (!__get_cpuid_count(isa[i].leaf, isa[i].subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) ||
             !(r[isa[i].in] >> isa[i].bit & 1)))
            return false;
    }
    return true;
}

bool isa_has(int t)
{
    enum { UNKNOWN, NO, YES };
    static _Atomic int known[ISA_x86_tiers];
    int k = atomic_load_explicit(&known[t], memory_order_relaxed);
    if (k == UNKNOWN)
        atomic_store_explicit(&known[t], k = isa_ask(t) ? YES : NO, memory_order_relaxed);
    return k == YES;
}
