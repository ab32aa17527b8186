/* The instruction sets of each vector tier of ARM64: ISA(tier, the compiler's -march, then the word and the bit of the
 * kernel's list: AT_HWCAP or AT_HWCAP2). Included for its rows. */
ISA(neon, "armv8-a", AT_HWCAP, HWCAP_ASIMD)
ISA(dotprod, "armv8.2-a+dotprod", AT_HWCAP, HWCAP_ASIMDDP)
ISA(i8mm, "armv8.2-a+dotprod+i8mm", AT_HWCAP2, HWCAP2_I8MM)
