#include "lang/grammar/pattern_unicode.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

/* Runs of code points with one category, made once: asking the library for each would cost 10 ms a class. */
static struct unicode_run {
    uint32_t from;
    char name[3];
} runs[8192];
static size_t run_count;
static pthread_once_t runs_once = PTHREAD_ONCE_INIT;

static void runs_make(void)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        const char *name = utf8proc_category_string((utf8proc_int32_t)cp);
        if (run_count && !memcmp(runs[run_count - 1].name, name, 2))
            continue;
        if (run_count == sizeof runs / sizeof *runs - 1)
            break;
        runs[run_count].from = cp;
        memcpy(runs[run_count++].name, name, 2);
    }
    runs[run_count].from = 0x110000;
}

bool pattern_category(struct grammar *g, const char *name, size_t n, struct ranges *out)
{
    static const char *const longer[] = {"Letter", "Mark",      "Number", "Punctuation",
                                         "Symbol", "Separator", "Other"};
    static const char letters[] = "LMNPSZC";
    char wanted[2] = {n ? name[0] : 0, n == 2 ? name[1] : 0};
    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (strlen(longer[i]) == n && !memcmp(longer[i], name, n)) {
            wanted[0] = letters[i];
            n = 1;
        }
    if (n < 1 || n > 2)
        return false;
    pthread_once(&runs_once, runs_make);
    bool found = false;
    for (size_t i = 0; i < run_count; i++)
        if (runs[i].name[0] == wanted[0] && (n == 1 || runs[i].name[1] == wanted[1])) {
            found = true;
            ranges_add(g, out, runs[i].from, runs[i + 1].from - 1);
        }
    return found;
}
