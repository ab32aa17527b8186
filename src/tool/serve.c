/* quern serve: the model behind HTTP, until it is told to end. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/name.h"
#include "serve/server.h"
#include "tool/load.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

enum { SERVE_SLOTS = 4, SERVE_KEYS = 1024, SERVE_HOSTS = 64, SERVE_KEY_FILE = 1 << 20 };

static const struct arg_option serve_options[] = {
    {"host", 0, ARG_TEXT, "H", "address to listen on (default: 127.0.0.1, this machine only)", 0, 0},
    {"port", 0, ARG_INT, "N", "port (default: 8080; 0 = any that is free)", 0, 65535},
    {"name", 0, ARG_TEXT, "NAME", "what clients call the model (default: the file's name)", 0, 0},
    {"slots", 0, ARG_INT, "N", "answers at once (default: 4)", 1, 256},
    {"queue", 0, ARG_INT, "N", "requests that may wait (default: 4 times the slots)", 1, 1 << 16},
    {"api-key-file", 0, ARG_TEXT, "FILE", "keys, one a line (or one in QUERN_API_KEY)", 0, 0},
    {"no-key", 0, ARG_FLAG, NULL, "others may reach it without a key: something else keeps strangers out", 0,
     0},
    {"allowed-host", 0, ARG_TEXT, "NAME", "a name that it is reached by; may be repeated", 0, 0},
    {"grace", 0, ARG_NUM, "S", "seconds that running answers get at the end (default: 30)", 0, 86400},
    {"template", 0, ARG_TEXT, "FILE", "a chat template instead of the model's own", 0, 0},
    LOAD_CACHE,
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

struct serve {
    const struct args *a;
    struct server_options o;
    struct loaded *loaded;
    struct engine *engine;
    struct buf key_text, chat_template;
    const char *keys[SERVE_KEYS];
    const char *hosts[SERVE_HOSTS];
    char *name;
};

static int serve_keys(struct serve *s, struct err *e)
{
    const char *file = args_text(s->a, "api-key-file"), *own = getenv("QUERN_API_KEY");
    size_t n = 0;
    if (own && *own)
        s->keys[n++] = own;
    if (file && file_read(file, &s->key_text, e))
        return -1;
    for (char *line = s->key_text.data, *next; line && *line; line = next) {
        char *end = line + strcspn(line, "\r\n");
        next = *end ? end + 1 : end;
        *end = 0;
        line += strspn(line, " \t");
        line[strcspn(line, " \t")] = 0;
        if (!*line || *line == '#')
            continue;
        if (n == SERVE_KEYS)
            return err_set(e, ERR_USAGE, "--api-key-file has more than %d keys", SERVE_KEYS);
        s->keys[n++] = line;
    }
    if (file && !n)
        return err_set(e, ERR_USAGE, "--api-key-file %s has no key", log_safe(file));
    s->o.keys = s->keys;
    s->o.key_count = n;
    return 0;
}

/* The file's name without its folder and its ending. */
static int serve_name(struct serve *s, struct err *e)
{
    const char *given = args_text(s->a, "name"), *model = s->a->count ? s->a->words[0] : HUB_DEFAULT;
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/')
        n--;
    const char *slash = memrchr(model, '/', n);
    const char *from = slash && slash + 1 < model + n ? slash + 1 : model;
    n -= (size_t)(from - model);
    if (n > 5 && !strncmp(from + n - 5, ".gguf", 5))
        n -= 5;
    s->name = given ? mem_strdup(given) : mem_strndup(from, n);
    s->o.name = s->name;
    return s->name ? 0 : err_memory(e, "the model's name", n);
}

static int serve_read(struct serve *s, struct err *e)
{
    int at = 0;
    const char *file = args_text(s->a, "template"), *host = args_text(s->a, "host");
    s->o.host = host ? host : "127.0.0.1";
    s->o.port = (int)args_int(s->a, "port", 8080);
    s->o.grace = args_num(s->a, "grace", 30);
    s->o.no_key = args_flag(s->a, "no-key");
    s->o.allowed_host = s->hosts;
    for (const char *name; (name = args_next(s->a, "allowed-host", &at));) {
        if (s->o.allowed_hosts == SERVE_HOSTS)
            return err_set(e, ERR_USAGE, "more than %d of --allowed-host", SERVE_HOSTS);
        s->hosts[s->o.allowed_hosts++] = name;
    }
    if (file && file_read(file, &s->chat_template, e))
        return -1;
    return serve_keys(s, e) || serve_name(s, e) || server_check(&s->o, e) ? -1 : 0;
}

static int serve_all(struct serve *s, struct err *e)
{
    if (serve_read(s, e))
        return -1;
    struct loaded_options o = {.chat_template = s->chat_template.data};
    struct engine_options g = {.slots = (uint32_t)args_int(s->a, "slots", SERVE_SLOTS),
                               .queue = (uint32_t)args_int(s->a, "queue", 0)};
    o.runner.seqs = g.slots;
    if (load_cache(s->a, &g, e) || load_model(&s->loaded, s->a->count ? s->a->words[0] : NULL, &o, s->a, e) ||
        engine_open(&s->engine, s->loaded, &g, e))
        return -1;
    return server_run(s->loaded, s->engine, &s->o, e);
}

static int serve_run(const struct args *a, struct err *e)
{
    struct serve s = {.a = a, .key_text.max = SERVE_KEY_FILE, .chat_template.max = 4 << 20};
    int result = serve_all(&s, e);
    engine_close(s.engine);
    loaded_close(s.loaded);
    mem_free(s.name);
    buf_free(&s.key_text);
    buf_free(&s.chat_template);
    return result;
}

const struct tool_verb tool_serve = {
    .name = "serve",
    .words = "[MODEL]",
    .brief = "answer programs over HTTP, as OpenAI's API does",
    .more = "Programs that speak OpenAI's API take http://127.0.0.1:8080/v1 as their base URL.\n"
            "  quern serve\n"
            "  quern serve model.gguf --port 9000 --slots 8\n"
            "  quern serve model.gguf --host 0.0.0.0 --api-key-file keys.txt\n",
    .options = serve_options,
    .least = 0,
    .most = 1,
    .run = serve_run,
};
