#define _GNU_SOURCE
#include "hub/hub.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "hub/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HUB_PATIENCE = 20, HUB_CONNECTIONS = 8, HUB_RETRIES = 5, HUB_TOKEN_FILE = 1 << 17 };

/* The first of these variables that is set to something. */
static const char *hub_variable(const char *name, const char *older)
{
    const char *v = getenv(name);
    v = v && *v ? v : older ? getenv(older) : NULL;
    return v && *v ? v : NULL;
}

static bool hub_truth(const char *v)
{
    static const char *const yes[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; v && i < sizeof yes / sizeof *yes; i++)
        if (!strcasecmp(v, yes[i]))
            return true;
    return false;
}

/* $NAME, or `otherwise` below `base`. The Hub's own tools read a ~ in these, so it is read here. */
static int hub_folder(char out[PATH_MAX], const char *value, const char *base, const char *otherwise,
                      struct err *e)
{
    const char *home = getenv("HOME");
    if (value && value[0] == '~' && (value[1] == '/' || !value[1]))
        return path_make(out, e, "%s%s", home ? home : "", value + 1);
    return value ? path_make(out, e, "%s", value) : path_make(out, e, "%s/%s", base, otherwise);
}

/* XDG's folders: a relative one is to be ignored. */
static int hub_xdg(char out[PATH_MAX], const char *name, const char *otherwise, struct err *e)
{
    const char *v = getenv(name), *home = getenv("HOME");
    return hub_folder(out, v && v[0] == '/' ? v : NULL, home ? home : "", otherwise, e);
}

/* A token becomes part of a header line: refuses characters that are not allowed there. */
static int hub_keep_token(struct hub *h, const char *token, const char *where, struct err *e)
{
    size_t n = strcspn(token, " \t\r\n");
    if (n >= sizeof h->token || token[n + strspn(token + n, " \t\r\n")])
        return err_set(e, ERR_USAGE, "%s does not hold a token: one word was expected", where);
    for (size_t i = 0; i < n; i++)
        if (token[i] <= 0x20 || token[i] > 0x7e)
            return err_set(e, ERR_USAGE, "the token in %s has a character that no token has", where);
    snprintf(h->token, sizeof h->token, "%.*s", (int)n, token);
    return 0;
}

static int hub_token(struct hub *h, const char *home, struct err *e)
{
    const char *token = hub_variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN");
    char path[PATH_MAX];
    if (hub_truth(getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")))
        return 0;
    if (token)
        return hub_keep_token(h, token + strspn(token, " \t\r\n"), "HF_TOKEN", e);
    struct buf text = {.max = HUB_TOKEN_FILE};
    if (hub_folder(path, hub_variable("HF_TOKEN_PATH", NULL), home, "token", e))
        return -1;
    int bad = path_is_file(path) && file_read(path, &text, e);
    if (!bad && text.len)
        bad = hub_keep_token(h, text.data + strspn(text.data, " \t\r\n"), path, e);
    buf_free(&text);
    return bad ? -1 : 0;
}

static int hub_endpoint(struct hub *h, struct err *e)
{
    const char *v = hub_variable("HF_ENDPOINT", NULL);
    v = v ? v : "https://huggingface.co";
    size_t n = strlen(v);
    while (n && v[n - 1] == '/')
        n--;
    if (n >= sizeof h->endpoint || (strncmp(v, "https://", 8) && strncmp(v, "http://", 7)))
        return err_set(e, ERR_USAGE, "HF_ENDPOINT is '%s': an address with https:// or http:// was expected",
                       log_safe(v));
    snprintf(h->endpoint, sizeof h->endpoint, "%.*s", (int)n, v);
    return 0;
}

int hub_read(struct hub *h, struct err *e)
{
    char cache[PATH_MAX], config[PATH_MAX], home[PATH_MAX];
    uint64_t seconds = HUB_PATIENCE;
    const char *patience = hub_variable("HF_HUB_DOWNLOAD_TIMEOUT", NULL);
    const char *authorities = hub_variable("SSL_CERT_FILE", "CURL_CA_BUNDLE");
    authorities = authorities ? authorities : hub_variable("REQUESTS_CA_BUNDLE", NULL);
    *h = (struct hub){.connections = HUB_CONNECTIONS, .retries = HUB_RETRIES};
    if (hub_xdg(cache, "XDG_CACHE_HOME", ".cache", e) || hub_xdg(config, "XDG_CONFIG_HOME", ".config", e) ||
        path_make(h->own, e, "%s/quern", cache) || path_make(h->config, e, "%s/quern/models.json", config) ||
        path_make(h->authorities, e, "%s", authorities ? authorities : "") ||
        hub_folder(home, hub_variable("HF_HOME", NULL), cache, "huggingface", e) ||
        hub_folder(h->cache, hub_variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"), home, "hub", e))
        return -1;
    if (patience && (!num_u64(patience, strlen(patience), 86400, &seconds) || !seconds))
        return err_set(e, ERR_USAGE, "HF_HUB_DOWNLOAD_TIMEOUT is '%s': seconds were expected",
                       log_safe(patience));
    h->patience = (int)seconds;
    h->offline = hub_truth(hub_variable("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"));
    return hub_endpoint(h, e) || hub_token(h, home, e) ? -1 : 0;
}
