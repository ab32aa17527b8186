#include "tool/args.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/edit_distance.h"
#include "base/num.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

const struct arg_option args_common[] = {
    {.name = "help", .letter = 'h', .help = "this text"},
    {.name = "quiet", .letter = 'q', .help = "only errors on stderr"},
    {.name = "verbose", .letter = 'v', .help = "more on stderr"},
    {.name = "offline", .help = "fetch nothing: models that are here only (also HF_HUB_OFFLINE=1)"},
    {0},
};

/* Finds an option in the verb's table and in the common one: by name (n letters) or by its letter. */
static const struct arg_option *args_find(const struct args *a, const char *name, size_t n, char letter)
{
    const struct arg_option *const tables[] = {a->options, args_common};
    for (int t = 0; t < 2; t++)
        for (const struct arg_option *o = tables[t]; o && o->name; o++)
            if (name ? strlen(o->name) == n && !memcmp(o->name, name, n) : o->letter == letter)
                return o;
    return NULL;
}

static int args_unknown(const struct args *a, const char *word, struct err *e)
{
    char name[64] = "";
    size_t n = strcspn(word, "=");
    memcpy(name, word, n < sizeof name ? n : sizeof name - 1);
    const struct arg_option *const tables[] = {a->options, args_common};
    const char *best = NULL;
    int least = EDIT_DISTANCE_FAR;
    for (int t = 0; t < 2 && word[1] == '-'; t++)
        for (const struct arg_option *o = tables[t]; o && o->name; o++) {
            int far = edit_distance(name + 2, o->name);
            if (far < least || (!best && n > 4 && !strncmp(o->name, name + 2, n - 2))) {
                least = far < least ? far : least;
                best = o->name;
            }
        }
    if (best)
        return err_set(e, ERR_USAGE, "there is no option %s; did you mean --%s?", log_safe(name), best);
    return err_set(e, ERR_USAGE, "there is no option %s; --help lists them", log_safe(name));
}

static int args_value(const struct arg_option *o, struct arg_seen *s, struct err *e)
{
    const char *text = log_safe(s->text);
    size_t n = strlen(s->text);
    uint64_t bytes = 0;
    bool good = true;
    double v = 0;
    if (o->kind == ARG_INT) {
        good = num_i64(s->text, n, INT64_MIN, INT64_MAX, &s->integer);
        v = good ? (double)s->integer : 0;
    } else if (o->kind == ARG_NUM) {
        good = num_f64(s->text, n, -1e300, 1e300, &s->number);
        v = good ? s->number : 0;
    } else if (o->kind == ARG_BYTES) {
        good = num_bytes(s->text, n, &bytes);
        s->integer = (int64_t)bytes;
        v = (double)bytes;
    }
    const char *what = o->kind == ARG_INT   ? "a whole number"
                       : o->kind == ARG_NUM ? "a number"
                                            : "a size such as 512M";
    if (!good)
        return err_set(e, ERR_USAGE, "--%s takes %s, not '%s'", o->name, what, text);
    if (o->kind != ARG_TEXT && (v < o->least || v > o->most))
        return err_set(e, ERR_USAGE, "--%s takes %s from %.15g to %.15g, not %s", o->name, what, o->least,
                       o->most, text);
    return 0;
}

/* One option, with `inside` the value in the same word, or NULL. Consumes one more word for a value. */
static int args_take(struct args *a, const struct arg_option *o, const char *inside, const char *next,
                     int *used, struct err *e)
{
    struct arg_seen *s = &a->seen[a->seen_count++];
    s->option = o;
    if (o->kind == ARG_FLAG)
        return inside ? err_set(e, ERR_USAGE, "--%s takes no value", o->name) : 0;
    if (!inside && !next)
        return err_set(e, ERR_USAGE, "--%s needs a value (%s)", o->name, o->value ? o->value : "VALUE");
    *used += !inside;
    s->text = inside ? inside : next;
    return args_value(o, s, e);
}

/* -abc: flags, the last of which may take a value, in the same word or the next. */
static int args_letters(struct args *a, const char *word, const char *next, int *used, struct err *e)
{
    for (const char *p = word + 1; *p; p++) {
        const struct arg_option *o = args_find(a, NULL, 0, *p);
        if (!o)
            return args_unknown(a, word, e);
        if (o->kind != ARG_FLAG) {
            const char *rest = p[1] == '=' ? p + 2 : p + 1;
            return args_take(a, o, p[1] ? rest : NULL, next, used, e);
        }
        if (args_take(a, o, NULL, NULL, used, e) < 0)
            return -1;
    }
    return 0;
}

int args_parse(struct args *a, const struct arg_option *options, int argc, char **argv, struct err *e)
{
    *a = (struct args){.options = options};
    size_t letters = 1;
    for (int i = 0; i < argc; i++)
        letters += strlen(argv[i]);
    a->words = mem_zalloc((size_t)argc + 1, sizeof *a->words);
    a->seen = mem_zalloc(letters, sizeof *a->seen); /* no word holds more options than letters */
    if (!a->words || !a->seen)
        return err_memory(e, "the command line", letters * sizeof *a->seen);
    bool ended = false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        int used = 0;
        if (ended || word[0] != '-' || !word[1]) { /* "-" alone is a word: standard input */
            a->words[a->count++] = word;
        } else if (!strcmp(word, "--")) {
            ended = true;
        } else if (word[1] == '-') {
            size_t n = strcspn(word + 2, "=");
            const struct arg_option *o = args_find(a, word + 2, n, 0);
            if (!o)
                return args_unknown(a, word, e);
            if (args_take(a, o, word[2 + n] ? word + 3 + n : NULL, next, &used, e) < 0)
                return -1;
        } else if (args_letters(a, word, next, &used, e) < 0) {
            return -1;
        }
        i += used;
    }
    return 0;
}

void args_free(struct args *a)
{
    mem_free(a->words);
    mem_free(a->seen);
    *a = (struct args){0};
}

static const struct arg_seen *args_last(const struct args *a, const char *name)
{
    const struct arg_option *o = args_find(a, name, strlen(name), 0);
    assert(o); /* a verb asks only for what its table has */
    for (int i = a->seen_count; i-- > 0;)
        if (a->seen[i].option == o)
            return &a->seen[i];
    return NULL;
}

bool args_flag(const struct args *a, const char *name)
{
    return args_last(a, name) != NULL;
}

const char *args_text(const struct args *a, const char *name)
{
    const struct arg_seen *s = args_last(a, name);
    return s ? s->text : NULL;
}

int64_t args_int(const struct args *a, const char *name, int64_t otherwise)
{
    const struct arg_seen *s = args_last(a, name);
    return s ? s->integer : otherwise;
}

double args_num(const struct args *a, const char *name, double otherwise)
{
    const struct arg_seen *s = args_last(a, name);
    return s ? s->number : otherwise;
}

const char *args_next(const struct args *a, const char *name, int *at)
{
    while (*at < a->seen_count) {
        const struct arg_seen *s = &a->seen[(*at)++];
        if (!strcmp(s->option->name, name))
            return s->text;
    }
    return NULL;
}
