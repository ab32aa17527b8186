/* The instruction sets that a tier of kernels needs beyond the tier below it: tier, the compiler's name for the set, and
 * where CPUID says that the machine has it (leaf, subleaf, register, bit). The one table: tiers.c asks by it, and
 * cmake/device.cmake compiles the files of a tier with -mNAME of its rows. Included for its rows, by who defines ISA. */
ISA(avx2, "avx2", 7, 0, EBX, 5)
ISA(avx2, "fma", 1, 0, ECX, 12)
ISA(avx2, "f16c", 1, 0, ECX, 29)
ISA(avx2, "bmi2", 7, 0, EBX, 8)
ISA(avx512, "avx512f", 7, 0, EBX, 16)
ISA(avx512, "avx512bw", 7, 0, EBX, 30)
ISA(avx512, "avx512vl", 7, 0, EBX, 31)
ISA(avx512, "avx512dq", 7, 0, EBX, 17)
ISA(avx512, "avx512vnni", 7, 0, ECX, 11)
ISA(amx, "avx512bf16", 7, 1, EAX, 5)
ISA(amx, "amx-tile", 7, 0, EDX, 24)
ISA(amx, "amx-int8", 7, 0, EDX, 25)
ISA(amx, "amx-bf16", 7, 0, EDX, 22)
