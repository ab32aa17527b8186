#include "comm/greet.h"

#include <stdio.h>
#include <string.h>

static const char greet_magic[8] = "quernrk1";

void greet_fill(struct greeting *g, const struct rank_job *j, enum greet_kind kind, uint16_t port)
{
    *g = (struct greeting){.kind = kind, .rank = j->rank, .size = j->size, .port = port};
    memcpy(g->magic, greet_magic, sizeof g->magic);
    snprintf(g->version, sizeof g->version, "%s", QUERN_VERSION);
    memcpy(g->key, j->key, strnlen(j->key, sizeof g->key));
}

/* Reads every byte whatever they are. */
static bool same_key(const char *a, const char *b, size_t n)
{
    unsigned differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)(a[i] ^ b[i]);
    return !differ;
}

const char *greet_refuse(const struct greeting *g, const struct rank_job *j, char reply[GREET_REPLY])
{
    struct greeting want;
    greet_fill(&want, j, GREET_DATA, 0);
    if (memcmp(g->magic, want.magic, sizeof g->magic) || !same_key(g->key, want.key, sizeof g->key))
        return "";
    if (g->kind != GREET_LIFE && g->kind != GREET_DATA)
        return "";
    if (memcmp(g->version, want.version, sizeof g->version))
        snprintf(reply, GREET_REPLY, "rank %u has quern %.23s, and rank %u has %.23s", g->rank, g->version,
                 j->rank, want.version);
    else if (g->size != j->size || g->rank >= j->size || g->rank == j->rank)
        snprintf(reply, GREET_REPLY, "rank %u of %u came to a job of %u ranks", g->rank, g->size, j->size);
    else
        return NULL;
    return reply;
}
