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
    {.name = "config",
     .kind = ARG_TEXT,
     .value = "FILE",
     .help = "names and settings of models (default: ~/.config/quern/models.json)"},
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

/* How llama.cpp, Ollama and others spell an option; MODEL: the first of the words. A verb's own spelling goes first. */
static const struct args_synonym {
    const char *spelling, *option;
    const char *before; /* of the value; NULL: nothing */
} args_synonyms[] = {
    {"-m", "MODEL", NULL},
    {"--model", "MODEL", NULL},
    {"-hf", "MODEL", "hf:"},
    {"-hfr", "MODEL", "hf:"},
    {"--hf-repo", "MODEL", "hf:"},
    {"-ngl", "gpu-layers", NULL},
    {"--n-gpu-layers", "gpu-layers", NULL},
    {"--temperature", "temp", NULL},
    {"--ctx-size", "ctx", NULL},
    {"--num-ctx", "ctx", NULL},
    {"--n-predict", "predict", NULL},
    {"--num-predict", "predict", NULL},
    {"--max-tokens", "predict", NULL},
    {"-sys", "system", NULL},
    {"--system-prompt", "system", NULL},
    {"-r", "stop", NULL},
    {"--reverse-prompt", "stop", NULL},
    {"-md", "draft", NULL},
    {"--model-draft", "draft", NULL},
    {"--draft-max", "draft-n", NULL},
    {"-np", "slots", NULL},
    {"--parallel", "slots", NULL},
    {"--chat-template-file", "template", NULL},
    {"-cmoe", "cpu-moe", NULL},
};

/* The word up to its value, as a synonym whose option this verb has. */
static const struct args_synonym *args_synonym(const struct args *a, const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof args_synonyms / sizeof *args_synonyms; i++) {
        const struct args_synonym *s = &args_synonyms[i];
        if (strlen(s->spelling) == n && !memcmp(s->spelling, word, n))
            return !strcmp(s->option, "MODEL") || args_find(a, s->option, strlen(s->option), 0) ? s : NULL;
    }
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

/* MODEL, given by an option: it becomes the first word. */
static int args_model(struct args *a, const char *before, const char *inside, const char *next, int *used,
                      struct err *e)
{
    const char *name = inside ? inside : next;
    if (a->model)
        return err_set(e, ERR_USAGE, "the model is given twice: -m and -hf name it");
    if (!name || !*name)
        return err_set(e, ERR_USAGE, "-m and -hf need a value (MODEL)");
    *used += !inside;
    before = before ? before : "";
    size_t lead = strlen(before), n = strlen(name);
    a->model = mem_alloc(lead + n + 1, 1);
    if (!a->model)
        return err_memory(e, "the command line", lead + n + 1);
    memcpy(a->model, before, lead);
    memcpy(a->model + lead, name, n + 1);
    return 0;
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

/* One word that begins with a dash: an option by its name, by a synonym, or letters. */
static int args_option(struct args *a, const char *word, const char *next, int *used, struct err *e)
{
    const bool is_long = word[1] == '-';
    const size_t n = strcspn(word, "=");
    const char *inside = word[n] ? word + n + 1 : NULL;
    const struct arg_option *o = is_long  ? args_find(a, word + 2, n - 2, 0)
                                 : n == 2 ? args_find(a, NULL, 0, word[1])
                                          : NULL;
    const struct args_synonym *s = o ? NULL : args_synonym(a, word, n);
    if (s && !strcmp(s->option, "MODEL"))
        return args_model(a, s->before, inside, next, used, e);
    if (s)
        o = args_find(a, s->option, strlen(s->option), 0);
    if (o)
        return args_take(a, o, inside, next, used, e);
    return is_long ? args_unknown(a, word, e) : args_letters(a, word, next, used, e);
}

int args_parse(struct args *a, const struct arg_option *options, int argc, char **argv, struct err *e)
{
    *a = (struct args){.options = options};
    size_t letters = 1;
    for (int i = 0; i < argc; i++)
        letters += strlen(argv[i]);
    a->words = mem_zalloc((size_t)argc + 2, sizeof *a->words); /* MODEL may come to the front */
    a->seen = mem_zalloc(letters, sizeof *a->seen);            /* no word holds more options than letters */
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
        } else if (args_option(a, word, next, &used, e) < 0) {
            return -1;
        }
        i += used;
    }
    if (a->model) {
        memmove(a->words + 1, a->words, (size_t)a->count * sizeof *a->words);
        a->words[0] = a->model;
        a->count++;
    }
    return 0;
}

void args_free(struct args *a)
{
    mem_free(a->words);
    mem_free(a->seen);
    mem_free(a->model);
    *a = (struct args){0};
}

bool args_has(const struct args *a, const char *name)
{
    return args_find(a, name, strlen(name), 0) != NULL;
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
