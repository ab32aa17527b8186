/* What the archives in a static libquern have for stdin and stderr: see layers.cmake. */
#include <stdio.h>

#define HIDDEN __attribute__((visibility("hidden")))

extern FILE *__real_stderr;
extern FILE *__wrap_stdin, *__wrap_stderr;
HIDDEN FILE *__wrap_stdin, *__wrap_stderr;

__attribute__((constructor)) static void take_stderr(void)
{
    __wrap_stderr = __real_stderr;
}
