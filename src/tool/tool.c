#define _GNU_SOURCE
#include "tool/tool.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/edit_distance.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In the order in which help lists them. */
const struct tool_verb *const tool_verbs[] = {
    &tool_run,    &tool_serve,  &tool_batch,      &tool_ps,      &tool_stop,     &tool_drain,
    &tool_usage,  &tool_state,  &tool_pull,       &tool_search,  &tool_create,   &tool_cp,
    &tool_ls,     &tool_show,   &tool_rm,         &tool_info,    &tool_tokenize, &tool_template,
    &tool_logits, &tool_embed,  &tool_perplexity, &tool_compare, &tool_quantize, &tool_imatrix,
    &tool_bench,  &tool_doctor, &tool_completion, &tool_help,    NULL,
};

const struct tool_verb *tool_find(const char *name, struct err *e)
{
    struct nearest near = {.word = name};
    name = !strcmp(name, "list") ? "ls" : name; /* Ollama's word */
    for (int i = 0; tool_verbs[i]; i++) {
        if (!strcmp(name, tool_verbs[i]->name))
            return tool_verbs[i];
        nearest_offer(&near, tool_verbs[i]->name);
    }
    if (near.best)
        err_set(e, ERR_USAGE, "there is no command '%s'; did you mean '%s'?", log_safe(name), near.best);
    else
        err_set(e, ERR_USAGE, "there is no command '%s'; 'quern help' lists them", log_safe(name));
    return NULL;
}

static int tool_set_value(json_t *all, const char *pair, struct err *e)
{
    const char *eq = strchr(pair, '=');
    if (!eq || eq == pair)
        return err_set(e, ERR_USAGE, "--set wants NAME=VALUE, not '%s'", log_safe(pair));
    json_t *v = json_loads(eq + 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    v = v ? v : json_string(eq + 1);
    if (!v || json_object_setn_new(all, pair, (size_t)(eq - pair), v))
        return err_set(e, ERR_USAGE, "--set %s: the value is not valid UTF-8", log_safe(pair));
    return 0;
}

int tool_set_values(const struct args *a, json_t **out, struct err *e)
{
    int at = 0;
    *out = NULL;
    for (const char *pair; (pair = args_next(a, "set", &at));) {
        if (!*out && !(*out = json_object()))
            return err_memory(e, "the template's variables", 64);
        if (tool_set_value(*out, pair, e))
            return -1;
    }
    return 0;
}

static int tool_lost; /* errno of the first write that failed */

void tool_write(const char *text, size_t n)
{
    errno = 0;
    if (n && fwrite(text, 1, n, stdout) < n && !tool_lost)
        tool_lost = errno ? errno : EIO;
}

int tool_flush(void)
{
    errno = 0;
    if ((fflush(stdout) || ferror(stdout)) && !tool_lost)
        tool_lost = errno ? errno : EIO;
    return tool_lost;
}

int tool_print(struct buf *b, struct err *e)
{
    bool failed = b->failed;
    if (!failed)
        tool_write(b->data, b->len);
    buf_free(b);
    return failed ? err_set(e, ERR_RESOURCE, "out of memory for what was to be printed") : 0;
}

void tool_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

bool tool_colour(int fd)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

void tool_scaled(struct buf *out, double v, const char *unit)
{
    static const char letters[] = " kMGT";
    int i = 0;
    for (; v >= 999.95 && i < 4; i++)
        v /= 1000;
    char letter[2] = {i ? letters[i] : 0, 0};
    buf_printf(out, i ? "%.1f %s%s" : "%.0f %s%s", v, letter, unit);
}

int32_t *tool_tokens(const char *text, uint32_t *count, struct err *e)
{
    size_t most = 1;
    for (const char *c = text; *c; c++)
        most += *c == ',';
    int32_t *ids = mem_alloc(most, sizeof *ids);
    if (!ids) {
        err_memory(e, "tokens", most * sizeof *ids);
        return NULL;
    }
    *count = 0;
    for (const char *at = text;; at++) {
        at += strspn(at, " ");
        size_t n = strcspn(at, ",");
        uint64_t id;
        if (!num_u64(at, n, INT32_MAX, &id)) {
            err_set(e, ERR_USAGE,
                    "--tokens: \"%s\" is not a token id; whole numbers with commas between are expected",
                    log_safe_n(at, n));
            mem_free(ids);
            return NULL;
        }
        ids[(*count)++] = (int32_t)id;
        at += n;
        if (!*at)
            return ids;
    }
}
