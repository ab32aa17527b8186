#define _GNU_SOURCE
#include "hub/name.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/edit_distance.h"
#include "format/jsonread.h"
#include "hub/catalogue.h"
#include "hub/hub.h"
#include "hub/path.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* scripts/fetch-model puts these files into hub.own/models; where they are not, the Hub has the model. */
static const struct {
    const char *name, *file, *repo;
} name_table[] = {
    {HUB_DEFAULT, "SmolLM2-135M-Instruct.Q4_1.gguf", "HuggingFaceTB/SmolLM2-135M-Instruct"},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf", "google/gemma-3-270m"},
    {"qwen05", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"},
    {"qwen15", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"},
    {"minilm-st", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"},
    {"nomic", "nomic-embed-text-v1.5.f16.gguf", "nomic-ai/nomic-embed-text-v1.5-GGUF"},
};
enum { NAME_TABLE = sizeof name_table / sizeof *name_table, NAME_CHAIN = 8 };

const char *name_built_in(int i, const char **file)
{
    if (i >= NAME_TABLE)
        return NULL;
    *file = name_table[i].file;
    return name_table[i].name;
}

static bool name_has(const char *text, const char *head)
{
    return !strncasecmp(text, head, strlen(head));
}

static bool name_ends(const char *text, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n > m && !strncasecmp(text + n - m, end, m);
}

/* A word of a repository's name: letters, digits, '-', '_' and '.', after a letter or digit; '-' and '.'
 * neither doubled nor last. */
static bool name_is_word(const char *s, size_t n)
{
    enum { MOST = 96 };
    if (!n || n > MOST || !isalnum((unsigned char)s[0]) || s[n - 1] == '-' || s[n - 1] == '.')
        return false;
    for (size_t i = 0; i < n; i++) {
        bool mark = s[i] == '-' || s[i] == '.';
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && !mark)
            return false;
        if (mark && s[i + 1] == s[i])
            return false;
    }
    return true;
}

static bool name_is_repo_n(const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n);
    if (!slash)
        return name_is_word(s, n);
    size_t user = (size_t)(slash - s);
    return name_is_word(s, user) && name_is_word(slash + 1, n - user - 1);
}

bool name_is_repo(const char *text)
{
    return name_is_repo_n(text, strlen(text));
}

/* REPO[@REVISION][:QUANT]. A revision may hold a slash (refs/pr/1), a quant may be a file's name. */
static int name_repo(struct hub_name *n, const char *text, struct err *e)
{
    size_t repo = strcspn(text, "@:");
    const char *revision = text[repo] == '@' ? text + repo + 1 : NULL;
    size_t length = revision ? strcspn(revision, ":") : 4;
    const char *rest = revision ? revision + length : text + repo;
    const char *quant = *rest == ':' ? rest + 1 : "";
    revision = revision ? revision : "main";
    if (!name_is_repo_n(text, repo) || repo >= sizeof n->repo)
        return err_set(e, ERR_USAGE,
                       "'%s' names no repository of the Hub: USER/REPO[@REVISION][:QUANT] was expected",
                       log_safe(text));
    char branch[sizeof n->revision];
    if (length >= sizeof branch || snprintf(branch, sizeof branch, "%.*s", (int)length, revision) < 0 ||
        !path_is_inside(branch) || strpbrk(branch, "?#% "))
        return err_set(e, ERR_USAGE, "'%s': after @ the name of a branch, a tag or a commit was expected",
                       log_safe(text));
    if ((*rest == ':' && !path_is_inside(quant)) || strlen(quant) >= sizeof n->quant)
        return err_set(e, ERR_USAGE,
                       "'%s': after the colon a type such as Q4_K_M was expected, or a file's name",
                       log_safe(text));
    n->kind = HUB_REPO;
    snprintf(n->repo, sizeof n->repo, "%.*s", (int)repo, text);
    snprintf(n->revision, sizeof n->revision, "%s", branch);
    snprintf(n->quant, sizeof n->quant, "%s", quant);
    return 0;
}

/* ENDPOINT/user/repo[/resolve/rev/file.gguf], as it is copied from a browser: 1 where it is that. */
static int name_hub_url(struct hub_name *n, const struct hub *h, const char *url, struct err *e)
{
    size_t host = strlen(h->endpoint);
    if (strncasecmp(url, h->endpoint, host) || url[host] != '/')
        return 0;
    char text[PATH_MAX];
    const char *at = url + host + 1, *user = strchr(at, '/');
    const char *verb = user ? strchr(user + 1, '/') : NULL;
    size_t all = strcspn(at, "?#"), repo = verb ? (size_t)(verb - at) : all;
    if (!user || !name_is_repo_n(at, repo))
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)repo, at);
    if (verb) {
        static const char *const verbs[] = {"/resolve/", "/blob/", "/raw/"};
        const char *revision = NULL;
        for (int i = 0; i < 3 && !revision; i++)
            revision = strncmp(verb, verbs[i], strlen(verbs[i])) ? NULL : verb + strlen(verbs[i]);
        const char *file = revision ? strchr(revision, '/') : NULL;
        if (!file || file >= at + all || memchr(file, '%', (size_t)(at + all - file)))
            return 0;
        snprintf(text, sizeof text, "%.*s@%.*s:%.*s", (int)repo, at, (int)(file - revision), revision,
                 (int)(at + all - file - 1), file + 1);
    }
    return name_repo(n, text, e) ? -1 : 1;
}

static int name_url(struct hub_name *n, const struct hub *h, const char *url, struct err *e)
{
    int hub = name_hub_url(n, h, url, e);
    if (hub)
        return hub < 0 ? -1 : 0;
    size_t path = strcspn(url, "?#");
    if (!name_ends(url, path, ".gguf"))
        return err_set(e, ERR_USAGE, "%s: the address of a .gguf file was expected", log_safe(url));
    if (strlen(url) >= sizeof n->text)
        return err_set(e, ERR_USAGE, "the address is too long: %s", log_safe(url));
    n->kind = HUB_URL;
    snprintf(n->text, sizeof n->text, "%s", url);
    return 0;
}

static int name_path(struct hub_name *n, const char *path, struct err *e)
{
    n->kind = HUB_PATH;
    int got = snprintf(n->text, sizeof n->text, "%s", path);
    return got >= 0 && (size_t)got < sizeof n->text
               ? 0
               : err_set(e, ERR_USAGE, "the path of the model is too long");
}

static bool name_is_there(const char *model)
{
    struct stat st;
    return stat(model, &st) == 0 || errno != ENOENT;
}

/* Spelt like a path: opening it reports that it does not exist. */
static bool name_is_path(const char *model)
{
    size_t n = strlen(model);
    const char *slash = strchr(model, '/');
    bool two = slash && memchr(slash + 1, '/', strcspn(slash + 1, ":@"));
    return !n || strchr("/.~", model[0]) || model[n - 1] == '/' || two ||
           name_ends(model, n, ".safetensors") || (name_ends(model, n, ".gguf") && !strchr(model, ':'));
}

static int name_unknown(const char *model, const json_t *aliases, struct err *e)
{
    struct nearest near = {.word = model};
    char known[512] = "";
    int at = 0;
    for (int i = 0; i < NAME_TABLE; i++) {
        nearest_offer(&near, name_table[i].name);
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "", name_table[i].name);
    }
    const char *alias;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)aliases, alias, v)
    {
        nearest_offer(&near, alias);
        if ((size_t)at + strlen(alias) + 3 < sizeof known)
            at += snprintf(known + at, sizeof known - (size_t)at, ", %s", alias);
    }
    for (int i = 0; catalogue_row(i); i++)
        nearest_offer(&near, catalogue_row(i)->name);
    if (near.best)
        return err_set(e, ERR_DATA, "there is no file, folder or model '%s'; did you mean '%s'?",
                       log_safe(model), log_safe(near.best));
    return err_set(e, ERR_DATA,
                   "there is no file, folder or model '%s'; the models known by name are %s and those that "
                   "'quern search' lists, and USER/REPO names one on the Hub",
                   log_safe(model), log_safe(known));
}

/* Names that are explicitly not paths: 1 where it is one. */
static int name_marked(struct hub_name *n, const struct hub *h, const char *model, struct err *e)
{
    static const char *const hosts[] = {"hf.co/", "huggingface.co/"};
    if (name_has(model, "hf:"))
        return name_repo(n, model + 3 + strspn(model + 3, "/"), e) ? -1 : 1;
    if (name_has(model, "https://") || name_has(model, "http://"))
        return name_url(n, h, model, e) ? -1 : 1;
    const char *scheme = strstr(model, "://");
    if (scheme && scheme < model + 16)
        return err_set(e, ERR_USAGE, "%s: models are fetched by https:// and http:// only", log_safe(model));
    for (int i = 0; i < 2; i++)
        if (name_has(model, hosts[i]) && !name_is_there(model))
            return name_repo(n, model + strlen(hosts[i]), e) ? -1 : 1;
    return 0;
}

static int name_plain(struct hub_name *n, const struct hub *h, const char *model, const json_t *aliases,
                      struct err *e)
{
    n->plain = true;
    for (int i = 0; i < NAME_TABLE; i++)
        if (!strcmp(model, name_table[i].name))
            return name_repo(n, name_table[i].repo, e) ||
                           path_make(n->text, e, "%s/models/%s", h->own, name_table[i].file)
                       ? -1
                       : 0;
    const struct catalogue_row *row = catalogue_find(model);
    if (row) {
        char repo[512];
        snprintf(repo, sizeof repo, "%s%s%s", row->repo, *row->quant ? ":" : "", row->quant);
        return name_repo(n, repo, e);
    }
    return strchr(model, '/') ? name_repo(n, model, e) : name_unknown(model, aliases, e);
}

/* "name:latest" is "name". */
static const json_t *name_alias(const json_t *aliases, const char *model)
{
    char plain[256];
    const char *latest = strstr(model, ":latest");
    const json_t *to = json_object_get(aliases, model);
    if (to || !latest || latest[7] || (size_t)(latest - model) >= sizeof plain)
        return to;
    snprintf(plain, sizeof plain, "%.*s", (int)(latest - model), model);
    return json_object_get(aliases, plain);
}

/* An alias may refer to another one; a path in the file may begin with a ~. */
static int name_follow(struct hub_name *n, const struct hub *h, const char *model, const json_t *aliases,
                       struct err *e)
{
    for (int i = 0; i < NAME_CHAIN; i++) {
        const char *home = getenv("HOME");
        int marked = name_marked(n, h, model, e);
        if (marked)
            return marked < 0 ? -1 : 0;
        if (i && !strncmp(model, "~/", 2))
            return path_make(n->text, e, "%s%s", home ? home : "", model + 1);
        if (name_is_there(model) || name_is_path(model))
            return name_path(n, model, e);
        const json_t *to = name_alias(aliases, model);
        if (!to)
            return name_plain(n, h, model, aliases, e);
        const json_t *from = json_is_object(to) ? json_object_get(to, "from") : to; /* a preset (preset.h) */
        if (!json_is_string(from) || !*json_string_value(from))
            return err_set(e, ERR_DATA, "%s: '%s' stands for no text", log_safe(h->config), log_safe(model));
        if (!strcmp(model, json_string_value(from))) /* settings for a model of the same name */
            return name_plain(n, h, model, aliases, e);
        model = json_string_value(from);
    }
    return err_set(e, ERR_DATA, "%s: the alias '%s' leads in a circle", log_safe(h->config), log_safe(model));
}

/* Read, not mapped: a map is watched by a thread, and a server has none before its sandbox is closed. */
json_t *name_file(const struct hub *h, struct err *e)
{
    struct buf text = {.max = jsonread_config.text};
    json_t *all = NULL;
    if (!path_is_file(h->config))
        all = json_object();
    else if (!file_read(h->config, &text, e))
        all = jsonread_object(text.data ? text.data : "", text.len, &jsonread_config, h->config, e);
    buf_free(&text);
    return all || e->code ? all : (err_memory(e, "models.json", 64), NULL);
}

int name_read(struct hub_name *n, const struct hub *h, const char *model, struct err *e)
{
    json_t *aliases = NULL;
    *n = (struct hub_name){.kind = HUB_PATH};
    /* no name: a server's sandbox has no right to the file of names */
    if (model && !name_has(model, "hf:") && (name_is_there(model) || (*model && strchr("/.~", *model))))
        return name_path(n, model, e);
    if (!(aliases = name_file(h, e)))
        return -1;
    int result = name_follow(n, h, model ? model : HUB_DEFAULT, aliases, e);
    json_decref(aliases);
    return result;
}

const char *name_text(const struct hub_name *n)
{
    if (n->kind != HUB_REPO)
        return log_safe(n->text);
    char text[sizeof n->repo + sizeof n->revision + sizeof n->quant + 4];
    bool main = !strcmp(n->revision, "main");
    snprintf(text, sizeof text, "%s%s%s%s%s", n->repo, main ? "" : "@", main ? "" : n->revision,
             *n->quant ? ":" : "", n->quant);
    return log_safe(text);
}
