#include "run/token_filter.h"

#include "base/mem.h"
#include "run/session.h"

#include <string.h>

struct token_filter {
    struct token_rules r; /* its lists are copies */
    int32_t *stops, *banned;
    uint32_t words;
    uint32_t *base; /* (words): what is ever allowed */
    uint32_t *ends; /* (words): what ends the output */
    uint32_t *mask; /* (words) */
};

static void mask_set(uint32_t *mask, int32_t id, bool on)
{
    if (on)
        mask[id / 32] |= 1u << id % 32;
    else
        mask[id / 32] &= ~(1u << id % 32);
}

static int32_t *filter_copy(const int32_t *ids, size_t n)
{
    int32_t *copy = mem_alloc(n, sizeof *copy);
    if (copy && n)
        memcpy(copy, ids, n * sizeof *copy);
    return copy;
}

/* The words that are one token are banned everywhere. */
static void filter_base(struct token_filter *f, const struct token_rules *r, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab && !r->allowed_count; i++)
        mask_set(f->base, (int32_t)i, true);
    for (size_t i = 0; i < r->allowed_count; i++)
        mask_set(f->base, r->allowed[i], true);
    for (size_t i = 0; i + 1 < r->banned_count; i++)
        if ((!i || r->banned[i - 1] < 0) && r->banned[i] >= 0 && r->banned[i + 1] < 0)
            mask_set(f->base, r->banned[i], false);
}

static int filter_check(const struct token_rules *r, uint32_t vocab, struct err *e)
{
    const struct {
        const char *name;
        const int32_t *ids;
        size_t n;
        int32_t least;
    } lists[] = {{"stop_token_ids", r->stops, r->stop_count, 0},
                 {"allowed_token_ids", r->allowed, r->allowed_count, 0},
                 {"bad_words", r->banned, r->banned_count, -1}};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        for (size_t i = 0; i < lists[k].n; i++)
            if (lists[k].ids[i] < lists[k].least ||
                (lists[k].ids[i] >= 0 && (uint32_t)lists[k].ids[i] >= vocab))
                return err_set(e, ERR_USAGE, "%s has token %d; the vocabulary has 0 to %u", lists[k].name,
                               lists[k].ids[i], vocab - 1);
    return 0;
}

int token_filter_open(struct token_filter **out, const struct token_rules *r, const struct session *l,
                      struct err *e)
{
    const uint32_t vocab = l->model->plan.out_width;
    *out = NULL;
    if (!r->least && !r->stop_count && !r->allowed_count && !r->banned_count)
        return 0;
    if (filter_check(r, vocab, e))
        return -1;
    struct token_filter *f = mem_zalloc(1, sizeof *f);
    if (!f)
        return err_memory(e, "a token filter", sizeof *f);
    f->words = (vocab + 31) / 32;
    f->base = mem_zalloc(f->words, sizeof *f->base);
    f->ends = mem_zalloc(f->words, sizeof *f->ends);
    f->mask = mem_zalloc(f->words, sizeof *f->mask);
    f->stops = filter_copy(r->stops, r->stop_count);
    f->banned = filter_copy(r->banned, r->banned_count);
    if (!f->base || !f->ends || !f->mask || !f->stops || !f->banned) {
        token_filter_close(f);
        return err_memory(e, "a token filter", 3 * f->words * sizeof *f->base);
    }
    f->r = *r;
    f->r.stops = f->stops;
    f->r.banned = f->banned;
    f->r.allowed = NULL; /* base has them */
    filter_base(f, r, vocab);
    for (uint32_t i = 0; i < vocab && r->least; i++)
        if (session_ends(l, (int32_t)i))
            mask_set(f->ends, (int32_t)i, true);
    for (size_t i = 0; i < r->stop_count; i++)
        mask_set(f->ends, r->stops[i], true);
    *out = f;
    return 0;
}

void token_filter_close(struct token_filter *f)
{
    if (!f)
        return;
    mem_free(f->base);
    mem_free(f->ends);
    mem_free(f->mask);
    mem_free(f->stops);
    mem_free(f->banned);
    mem_free(f);
}

bool token_filter_ends(const struct token_filter *f, int32_t id)
{
    for (size_t i = 0; f && i < f->r.stop_count; i++)
        if (f->stops[i] == id)
            return true;
    return false;
}

bool token_filter_acts(const struct token_filter *f, uint32_t made)
{
    return f && (f->r.allowed_count || f->r.banned_count || made < f->r.least);
}

/* Bans the last token of every word whose other tokens end the output so far. */
static void filter_ban(struct token_filter *f, const int32_t *answer, uint32_t made)
{
    for (size_t i = 0, n; i < f->r.banned_count; i += n + 1) {
        const int32_t *word = f->banned + i;
        for (n = 0; i + n < f->r.banned_count && word[n] >= 0;)
            n++;
        if (n > 1 && made >= n - 1 && !memcmp(answer + made - (n - 1), word, (n - 1) * sizeof *word))
            mask_set(f->mask, word[n - 1], false);
    }
}

/* Keeps what the constraint allows; is anything left? */
static bool filter_keep(uint32_t *mask, const uint32_t *within, uint32_t words)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < words; i++)
        any |= mask[i] &= within ? within[i] : ~0u;
    return any;
}

const uint32_t *token_filter_mask(struct token_filter *f, const uint32_t *mask, const int32_t *answer,
                                  uint32_t made)
{
    if (!token_filter_acts(f, made))
        return mask;
    memcpy(f->mask, f->base, f->words * sizeof *f->mask);
    filter_ban(f, answer, made);
    for (uint32_t i = 0; i < f->words && made < f->r.least; i++)
        f->mask[i] &= ~f->ends[i];
    if (filter_keep(f->mask, mask, f->words))
        return f->mask;
    return mask ? mask : f->base;
}
