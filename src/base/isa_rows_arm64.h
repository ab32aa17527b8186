/* The instruction sets of each vector tier of ARM64: ISA(tier, the compiler's name, then the word and the bit of the
 * kernel's list: AT_HWCAP or AT_HWCAP2). The build compiles the files of a tier with -march=armv8-a and +NAME of its
 * rows and of the tiers below it. Included for its rows. */
ISA(neon, "simd", AT_HWCAP, HWCAP_ASIMD)
ISA(dotprod, "dotprod", AT_HWCAP, HWCAP_ASIMDDP)
ISA(i8mm, "i8mm", AT_HWCAP2, HWCAP2_I8MM)
