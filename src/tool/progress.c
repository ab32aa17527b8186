#include "tool/progress.h"

#include "base/clock.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { PROGRESS_CELLS = 28 };

void progress_start(struct progress *p, const char *label)
{
    *p =
        (struct progress){.label = label, .start = clock_now(), .on = tool_colour(STDERR_FILENO), .from = -1};
}

/* The columns of the terminal; 80 if unknown. */
static int progress_columns(void)
{
    struct winsize w;
    return ioctl(2, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}

void progress_show(struct progress *p, double share, const char *note)
{
    double t = clock_now();
    p->from = p->from < 0 ? share : p->from;
    if (!p->on || t - p->start < 0.3 || (t - p->last < 0.1 && share < 1))
        return;
    p->last = t;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    char bar[PROGRESS_CELLS * 3 + 1], line[512];
    size_t at = 0;
    for (int i = 0; i < PROGRESS_CELLS; i++) {
        const char *cell = i < share * PROGRESS_CELLS ? "\xe2\x96\x88" : "\xe2\x96\x91";
        memcpy(bar + at, cell, 3);
        at += 3;
    }
    bar[at] = 0;
    double did = share - p->from, left = did > 0 ? (t - p->start) * (1 - share) / did : 0;
    int room = progress_columns() - PROGRESS_CELLS - 16;
    snprintf(line, sizeof line, "%s %s %3.0f%% %.0f s left", p->label, note ? note : "", 100 * share, left);
    if (room > 0)
        fprintf(stderr, "\r%s %.*s\033[K", bar, room + 12, line);
    p->drawn = true;
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}
