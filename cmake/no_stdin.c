/* What the archives in a static libquern have for stdin: see layers.cmake. */
#include <stdio.h>

extern FILE *__wrap_stdin;
FILE *__wrap_stdin;
