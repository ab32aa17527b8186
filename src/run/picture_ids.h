/* What stands for rows of pictures among the token ids of sequences: negative numbers, which no two pictures share. A
 * picture is known by its digest and keeps its numbers as long as it is remembered; numbers are handed out in order and not
 * again before all others, so that the prefix tree, which compares numbers, never takes one picture for another.
 *
 * Other processes hand out other numbers. The cache on disk has, in their place, the pictures' own digests. Used by all
 * threads. */
#pragma once

#include "run/picture.h"

#include <stdbool.h>

struct picture_ids;

struct picture_ids *picture_ids_open(void); /* NULL: out of memory */
void picture_ids_close(struct picture_ids *t);
/* The first of as many numbers as the picture has rows. 0: out of memory. */
int32_t picture_ids_take(struct picture_ids *t, const struct picture *p);
/* How often numbers have begun anew: then what has the old ones has to be forgotten. */
uint32_t picture_ids_turns(struct picture_ids *t);
/* Which row of which picture it is; false: that is no longer known. */
bool picture_ids_find(struct picture_ids *t, int32_t id, uint8_t digest[PICTURE_DIGEST], uint32_t *row);
