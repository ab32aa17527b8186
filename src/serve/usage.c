#include "serve/usage.h"

#include "base/buf.h"

#include <stddef.h>

const char *usage_admit(struct key_usage *u, const struct key_limits *most, double now)
{
    if (most->a_minute > 0) { /* what was not used is kept, but for no more than a minute */
        double left =
            u->requests + u->refused ? u->left + (now - u->since) * most->a_minute / 60 : most->a_minute;
        u->left = left < most->a_minute ? left : most->a_minute;
        u->since = now;
    }
    const char *why = most->a_minute > 0 && u->left < 1
                          ? "this key has reached its rate limit (requests a minute)"
                      : most->parallel && u->running >= most->parallel
                          ? "this key has reached its limit of concurrent sequences"
                          : NULL;
    if (why) {
        u->refused++;
        return why;
    }
    u->left -= 1;
    u->requests++;
    u->running++;
    return NULL;
}

bool usage_grow(struct key_usage *u, const struct key_limits *most, uint32_t more)
{
    bool fits = !more || !most->parallel || u->running + more <= most->parallel;
    if (fits)
        u->running += more;
    else
        u->refused++;
    return fits;
}

void usage_end(struct key_usage *u, uint32_t sequences, uint64_t prompt_tokens, uint64_t made_tokens)
{
    u->running -= sequences;
    u->prompt_tokens += prompt_tokens;
    u->made_tokens += made_tokens;
}

void usage_write(const struct key_usage *all, uint32_t only, struct buf *out)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } rows[] = {
        {"requests", "Requests of a key, by its index.", offsetof(struct key_usage, requests)},
        {"refused", "Requests refused by the key's limits.", offsetof(struct key_usage, refused)},
        {"prompt_tokens", "Tokens of a key's prompts.", offsetof(struct key_usage, prompt_tokens)},
        {"generated_tokens", "Tokens generated for a key.", offsetof(struct key_usage, made_tokens)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf_printf(out, "# HELP quern_key_%s_total %s\n# TYPE quern_key_%s_total counter\n", rows[i].name,
                   rows[i].help, rows[i].name);
        for (uint32_t key = 0; key < USAGE_KEYS; key++)
            if ((only == USAGE_ALL || only == key) && all[key].requests + all[key].refused)
                buf_printf(out, "quern_key_%s_total{key=\"%u\"} %llu\n", rows[i].name, key,
                           (unsigned long long)*(const uint64_t *)((const char *)&all[key] + rows[i].at));
    }
}
