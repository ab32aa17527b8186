#include "format/names.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static uint64_t names_secret[2];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static void names_seed(void)
{
    if (getrandom(names_secret, sizeof names_secret, GRND_NONBLOCK) != (ssize_t)sizeof names_secret)
        names_secret[0] ^= (uint64_t)time(NULL) << 20 ^ (uintptr_t)&names_secret;
    names_secret[0] |= 1; /* multipliers are odd */
    names_secret[1] |= 1;
}

/* Eight bytes a turn: the 128-bit product with a secret, folded. */
static uint64_t names_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint32_t names_hash(const char *s)
{
    size_t n = strlen(s);
    uint64_t h = names_secret[1] ^ n;
    for (size_t at = 0; at < n; at += 8) {
        uint64_t part = 0;
        memcpy(&part, s + at, n - at < 8 ? n - at : 8);
        h = names_mix(h ^ part ^ names_secret[1], names_secret[0]) + at;
    }
    return (uint32_t)(h ^ h >> 32);
}

/* The slot that holds the name, or the free one where it would go. */
static size_t names_probe(const struct names *n, const char *name, uint32_t hash)
{
    size_t i = hash & n->mask;
    while (n->slots[i].name && (n->slots[i].hash != hash || strcmp(n->slots[i].name, name) != 0))
        i = (i + 1) & n->mask;
    return i;
}

static int names_grow(struct names *n)
{
    size_t size = n->slots ? (n->mask + 1) * 2 : 64;
    struct names bigger = {.slots = mem_zalloc(size, sizeof *n->slots), .mask = size - 1, .count = n->count};
    if (!bigger.slots)
        return -1;
    for (size_t i = 0; n->slots && i <= n->mask; i++) {
        const struct names_slot *s = &n->slots[i];
        if (s->name)
            bigger.slots[names_probe(&bigger, s->name, s->hash)] = *s;
    }
    mem_free(n->slots);
    *n = bigger;
    return 0;
}

int names_add(struct names *n, const char *name, uint32_t value)
{
    pthread_once(&names_once, names_seed);
    if ((!n->slots || n->count * 2 > n->mask) && names_grow(n) < 0)
        return -1;
    uint32_t hash = names_hash(name);
    size_t i = names_probe(n, name, hash);
    if (n->slots[i].name)
        return 1;
    n->slots[i] = (struct names_slot){.name = name, .hash = hash, .value = value};
    n->count++;
    return 0;
}

int64_t names_find(const struct names *n, const char *name)
{
    if (!n->slots)
        return -1;
    const struct names_slot *s = &n->slots[names_probe(n, name, names_hash(name))];
    return s->name ? (int64_t)s->value : -1;
}

void names_free(struct names *n)
{
    mem_free(n->slots);
    *n = (struct names){0};
}
