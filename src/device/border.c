#include "device/border.h"

#include <stddef.h>

/* Of a step about which nothing is known, this part of the experts stays: enough to measure, and little for a slow CPU. */
enum { FIRST_PART = 32 };
/* After this many divided steps the cost of dividing is known. */
enum { DIVIDED_MOST = 16 };
/* At least this part is sent, so that the link's speed is always known. */
enum { SENT_PART = 16 };

static uint32_t part_of(uint32_t experts, uint32_t part)
{
    return (experts + part - 1) / part;
}

/* An expert's rows, and what reading its weights costs in their unit. */
static double border_work(const struct border *b, uint32_t rows)
{
    return (double)rows * b->used / b->experts + 4;
}

static uint32_t class_of(uint32_t rows)
{
    uint32_t n = 0;
    while (rows >>= 1)
        n++;
    return n < BORDER_CLASSES ? n : BORDER_CLASSES - 1;
}

/* Of steps of about as many rows; NULL: there was none yet. */
static const struct border_class *nearest(const struct border *b, uint32_t rows)
{
    const uint32_t own = class_of(rows);
    for (uint32_t away = 0; away < BORDER_CLASSES; away++) {
        if (away <= own && b->class[own - away].known)
            return &b->class[own - away];
        if (own + away < BORDER_CLASSES && b->class[own + away].known)
            return &b->class[own + away];
    }
    return NULL;
}

uint32_t border_choose(const struct border *b, uint32_t rows)
{
    const uint32_t all = b->experts, most = all - part_of(all, SENT_PART);
    if (b->fixed || !all)
        return b->at < all ? b->at : all;
    const struct border_class *c = nearest(b, rows);
    if (!c)
        return all - part_of(all, FIRST_PART);
    const double cpu = c->cpu * border_work(b, rows), both = c->link + cpu,
                 stay = both > 0 ? (c->link * all - c->other + c->link) / both
                                 : 0; /* rounded to what is faster */
    return stay < 1 ? all : stay < most ? all - (uint32_t)stay : all - most;
}

/* A step may be slow for reasons that do not come again: less time is believed at once, more by half. */
static void follow(double *old, double now, bool known)
{
    *old = !known || now < *old ? now : (*old + now) / 2;
}

void border_learn(struct border *b, const struct border_step *s)
{
    if (!b->experts)
        return;
    struct border_class *c = &b->class[class_of(s->rows)];
    const struct border_class *like = nearest(b, s->rows);
    const uint32_t stayed = b->experts - s->at;
    const double rest = s->seconds - s->cpu - s->waited, other = rest > 0 ? rest : 0;
    if (!c->known && like) /* what this step does not show */
        c->cpu = like->cpu, c->link = like->link;
    if (stayed) {
        follow(&c->cpu, s->cpu / stayed / border_work(b, s->rows), c->known);
        follow(&c->other, other, c->known);
        c->divided += c->divided < DIVIDED_MOST;
    } else {
        c->cpu *= 31.0 / 32; /* after some steps it is tried again */
        if (!c->known || other > c->other)
            c->other = other;
        else /* it passes no rows to the rest; how much that is, divided steps know the better the more there were */
            c->other -= (c->other - other) / (c->divided ? c->divided : 1);
    }
    if (s->at)
        follow(&c->link, s->link / s->at, c->known);
    c->known = true;
}
