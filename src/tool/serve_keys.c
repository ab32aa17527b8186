#include "tool/serve_keys.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "hub/sha.h"
#include "tool/args.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_FILE = 1 << 20, KEY_NAME = 64 };

static bool key_is(const struct server_key *k, const char *text)
{
    return k->text && !strcmp(k->text, text);
}

/* How the state knows the key: not the key itself, and the same for ever. */
static int64_t key_owner(const char *text)
{
    struct sha s;
    char hex[SHA_HEX];
    sha_start(&s, SHA_256);
    sha_add(&s, text, strlen(text));
    sha_end(&s, hex);
    hex[16] = 0;
    int64_t owner = (int64_t)(strtoull(hex, NULL, 16) >> 1);
    return owner ? owner : 1; /* 0 is a client without a key */
}

/* A known key keeps its index, a new one gets the next. A key in both files is an admin key. */
static int key_add(const struct serve_keys *old, struct serve_keys *k, const struct server_key *key,
                   struct err *e)
{
    size_t at = 0;
    while (at < k->count && !key_is(&k->all[at], key->text) &&
           !(at < old->count && key_is(&old->all[at], key->text)))
        at++;
    if (at == SERVE_KEYS)
        return err_set(e, ERR_USAGE, "there have been more than %d keys; restart the server", SERVE_KEYS);
    struct server_key *own = &k->all[at];
    bool admin = own->admin || key->admin;
    if (!own->text || key->name || key->quota.day || key->quota.month)
        *own = *key;
    own->admin = admin;
    own->owner = key_owner(own->text);
    k->count = at < k->count ? k->count : at + 1;
    return 0;
}

/* The next word of a line, ended with NUL; NULL = none, or a comment begins. */
static char *key_word(char **line)
{
    char *word = *line + strspn(*line, " \t"), *end = word + strcspn(word, " \t");
    *line = *end ? end + 1 : end;
    *end = 0;
    return *word && *word != '#' ? word : NULL;
}

static int key_quota(const char *word, const char *what, uint64_t *out, struct err *e)
{
    if (!word || !strcmp(word, "-"))
        return 0;
    if (num_count(word, strlen(word), out) && *out)
        return 0;
    return err_set(e, ERR_USAGE, "'%s' is no number of tokens a %s such as 200k or 1.5M, or - for no limit",
                   log_safe(word), what);
}

/* KEY [DAY [MONTH [NAME]]]. 1: there is no key on the line. */
static int key_line(char *line, struct server_key *out, struct err *e)
{
    char *text = key_word(&line), *day = text ? key_word(&line) : NULL, *month = day ? key_word(&line) : NULL,
         *name = month ? key_word(&line) : NULL;
    if (!text)
        return 1;
    out->text = text;
    out->name = name;
    if (name && strlen(name) > KEY_NAME)
        return err_set(e, ERR_USAGE, "a name of a key has at most %d bytes", KEY_NAME);
    return key_quota(day, "day", &out->quota.day, e) || key_quota(month, "month", &out->quota.month, e) ? -1
                                                                                                        : 0;
}

/* The keys of one file, one a line, and of one variable of the environment. */
static int keys_read(const struct args *a, const struct serve_keys *old, struct serve_keys *k, bool admin,
                     struct err *e)
{
    const char *option = admin ? "admin-key-file" : "api-key-file", *file = args_text(a, option);
    const char *own = getenv(admin ? "QUERN_ADMIN_KEY" : "QUERN_API_KEY");
    struct buf *text = admin ? &k->admin_text : &k->text;
    size_t n = 0, number = 0;
    if (own && *own && key_add(old, k, &(struct server_key){.text = own, .admin = admin}, e))
        return -1;
    if (file && file_read(file, text, e))
        return -1;
    for (char *line = text->data, *next; line && *line; line = next) {
        struct server_key key = {.admin = admin};
        char *end = line + strcspn(line, "\n");
        next = *end ? end + 1 : end;
        *end = 0;
        line[strcspn(line, "\r")] = 0;
        number++;
        int r = key_line(line, &key, e);
        if (r < 0 || (!r && key_add(old, k, &key, e)))
            return err_prefix(e, "--%s %s, line %zu", option, log_safe(file), number);
        n += !r;
    }
    return file && !n && !(own && *own) ? err_set(e, ERR_USAGE, "--%s %s has no key", option, log_safe(file))
                                        : 0;
}

int serve_keys_read(struct serve_keys *k, const struct args *a, struct err *e)
{
    struct serve_keys *fresh = mem_zalloc(1, sizeof *fresh);
    if (!fresh)
        return err_memory(e, "the keys", sizeof *fresh);
    fresh->text.max = fresh->admin_text.max = KEY_FILE;
    fresh->count = k->count;
    if (keys_read(a, k, fresh, false, e) || keys_read(a, k, fresh, true, e)) {
        serve_keys_free(fresh);
        mem_free(fresh);
        return -1;
    }
    serve_keys_free(k);
    *k = *fresh;
    mem_free(fresh);
    return 0;
}

void serve_keys_free(struct serve_keys *k)
{
    buf_free(&k->text);
    buf_free(&k->admin_text);
}
