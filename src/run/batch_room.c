#include "run/batch_room.h"

enum {
    ROOM_TRIAL = 2 * COST_LAST, /* steps of a trial */
    ROOM_NEXT = 16,             /* steps between a good trial and one of more rows */
    ROOM_CHECK = 256,           /* steps between two trials of what was found */
    ROOM_PAUSE = 512,           /* steps after a bad trial: its slow ones are a hundredth of these */
    ROOM_PAUSE_MOST = 8192
};

static const double room_slower = 1.05;

static void room_begin(struct batch_room *b, uint32_t rows)
{
    b->tried = rows;
    b->left = ROOM_TRIAL;
    b->with = b->alone = (struct cost){0};
}

static void room_end(struct batch_room *b)
{
    bool good = cost_of(&b->with) <= room_slower * cost_of(&b->alone), more = b->tried > b->rows;
    b->check = ROOM_CHECK;
    if (good && more) {
        b->rows = b->tried;
        b->pause = 0;
        b->grow = ROOM_NEXT;
    } else if (!good) {
        b->rows = more ? b->rows : b->rows / 2;
        b->pause = b->pause ? 2 * b->pause : ROOM_PAUSE;
        b->pause = b->pause < ROOM_PAUSE_MOST ? b->pause : ROOM_PAUSE_MOST;
        b->grow = b->pause;
    }
    b->tried = 0;
}

uint32_t batch_room_ask(struct batch_room *b, uint32_t ready)
{
    if (ready < b->tried) /* it cannot go on */
        b->tried = 0;
    if (!b->tried && !b->grow && ready > b->rows)
        room_begin(b, !b->rows ? 1 : ready < 2 * b->rows ? ready : 2 * b->rows);
    else if (!b->tried && !b->check && b->rows && ready >= b->rows)
        room_begin(b, b->rows);
    if (b->tried)
        return b->left % 2 ? b->tried : 0;
    b->grow -= b->grow > 0;
    b->check -= b->check > 0;
    return ready < b->rows ? ready : b->rows;
}

void batch_room_note(struct batch_room *b, uint32_t rows, double seconds)
{
    if (!b->tried)
        return;
    if (rows != (b->left % 2 ? b->tried : 0)) { /* there was no room for them: not now */
        b->tried = 0;
        b->grow = b->check = ROOM_CHECK;
        return;
    }
    cost_note(rows ? &b->with : &b->alone, seconds);
    if (!--b->left)
        room_end(b);
}
