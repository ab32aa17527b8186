/* Stored responses and conversations that have not been used for long are removed, and the oldest where all have too many
 * bytes. */
#pragma once

struct server;

/* A few times a second; the loop's. Nothing expires for a while after the start, and after the time of day has jumped: a
 * clock that was set wrong must not remove what is stored. */
void responses_expire(struct server *s, double now);
