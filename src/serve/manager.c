#define _GNU_SOURCE
#include "serve/manager.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/curl.h"
#include "hub/hub.h"
#include "hub/local_models.h"
#include "hub/path.h"
#include "hub/preset.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct manager {
    struct child child;
};

/* ---- one request, in a process of its own ---- */

struct manager_work {
    struct hub hub;
    int fd;
    double told; /* when the last line went out */
};

/* One line; takes the object over. Exits if the server has gone. */
static void work_tell(struct manager_work *w, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    if (!text || !child_write(w->fd, text, strlen(text)) || !child_write(w->fd, "\n", 1))
        _exit(1);
    mem_free(text);
    w->told = clock_now();
}

static int work_progress(void *arg, const struct hub_progress *p)
{
    struct manager_work *w = arg;
    char status[512];
    if (clock_now() - w->told < 0.2 && p->done < p->total)
        return 0;
    snprintf(status, sizeof status, "%s %s", p->checking ? "verifying" : "pulling", p->file ? p->file : "");
    work_tell(w, json_pack("{s:s,s:s,s:I,s:I}", "status", status, "digest", p->file ? p->file : "", "total",
                           (json_int_t)p->total, "completed", (json_int_t)p->done));
    return 0;
}

/* The model's path, downloaded where it is not here or, with `fresh`, has changed. */
static int work_pull(struct manager_work *w, const char *model, bool fresh, char path[PATH_MAX],
                     struct err *e)
{
    struct hub_name n;
    struct hub_pulled pulled;
    if (name_read(&n, &w->hub, model, e))
        return -1;
    int here = n.kind == HUB_PATH || !fresh || *n.text ? hub_find(&w->hub, &n, path, e) : 0;
    if (here)
        return here < 0 ? -1 : 0;
    if (n.kind == HUB_PATH)
        return err_set(e, ERR_DATA, "there is no model '%s'", log_safe(model));
    work_tell(w, json_pack("{s:s}", "status", "pulling manifest"));
    return hub_pull(&w->hub, &n, &pulled, e) || path_make(path, e, "%s", pulled.path) ? -1 : 0;
}

/* Success: what the server has to know of the model of this name. */
static int work_done(struct manager_work *w, const char *name, const char *path, struct err *e)
{
    json_t *preset = preset_read(&w->hub, name, e);
    if (e->code)
        return -1;
    work_tell(w, json_pack("{s:s,s:s,s:o*}", "status", "success", "path", path, "preset", preset));
    return 0;
}

static int work_create(struct manager_work *w, const char *model, const json_t *entry, struct err *e)
{
    char path[PATH_MAX];
    if (preset_check(entry, "the request", e) ||
        work_pull(w, json_string_value(json_object_get(entry, "from")), false, path, e))
        return -1;
    work_tell(w, json_pack("{s:s}", "status", "writing manifest"));
    return preset_write(&w->hub, model, entry, e) || work_done(w, model, path, e) ? -1 : 0;
}

static int work_copy(struct manager_work *w, const char *model, const char *to, struct err *e)
{
    char path[PATH_MAX];
    struct hub_name n;
    json_t *entry = preset_entry(&w->hub, model, e);
    if (!entry && !e->code)
        entry = json_string(model);
    int failed = e->code || !to || name_read(&n, &w->hub, model, e) || hub_find(&w->hub, &n, path, e) <= 0;
    if (failed && !e->code)
        err_set(e, ERR_DATA, "model '%s' not found", log_safe(model));
    failed = failed || preset_write(&w->hub, to, entry, e) || work_done(w, to, path, e);
    json_decref(entry);
    return failed ? -1 : 0;
}

static int work_delete(struct manager_work *w, const char *model, struct err *e)
{
    struct hub_name n;
    uint64_t freed = 0;
    int missing = preset_is_name(model) ? preset_write(&w->hub, model, NULL, e) : 1;
    if (missing < 0 ||
        (missing && (name_read(&n, &w->hub, model, e) || local_models_remove(&w->hub, &n, &freed, e))))
        return -1;
    work_tell(w, json_pack("{s:s}", "status", "success"));
    return 0;
}

static _Noreturn void manager_work(int fd, const struct hub *h, const char *request, size_t n)
{
    struct manager_work w = {.hub = *h, .fd = fd};
    struct err e = {0};
    json_error_t why;
    char path[PATH_MAX];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_DFL);
    w.hub.progress = work_progress;
    w.hub.progress_arg = &w;
    json_t *r = json_loadb(request, n, 0, &why);
    const char *verb = json_string_value(json_object_get(r, "do")),
               *model = json_string_value(json_object_get(r, "model")),
               *to = json_string_value(json_object_get(r, "to"));
    if (!verb || !model)
        err_set(&e, ERR_USAGE, "model is missing");
    else if (!strcmp(verb, "pull"))
        (void)(work_pull(&w, model, true, path, &e) || work_done(&w, model, path, &e));
    else if (!strcmp(verb, "create"))
        work_create(&w, model, json_object_get(r, "entry"), &e);
    else if (!strcmp(verb, "copy"))
        work_copy(&w, model, to, &e);
    else
        work_delete(&w, model, &e);
    if (e.code)
        work_tell(&w, json_pack("{s:s,s:i}", "error", e.text, "code", (int)e.code));
    _exit(0);
}

/* ---- the process that waits ---- */

/* What the cache, names, certificates and libcurl need. */
static void manager_confine(const struct hub *h)
{
    static const char *const read[] = {"/usr/lib",
                                       "/usr/lib64",
                                       "/lib",
                                       "/lib64",
                                       "/usr/local/lib",
                                       "/etc/ld.so.cache",
                                       "/etc/ssl",
                                       "/etc/pki",
                                       "/etc/ca-certificates",
                                       "/usr/share/ca-certificates",
                                       "/usr/local/share/ca-certificates",
                                       "/etc/resolv.conf",
                                       "/etc/hosts",
                                       "/etc/host.conf",
                                       "/etc/gai.conf",
                                       "/etc/nsswitch.conf",
                                       "/etc/services",
                                       "/dev/urandom"};
    enum { READ = sizeof read / sizeof *read };
    struct confine_rule rules[READ + 6];
    char config[PATH_MAX];
    struct err none = {0};
    size_t n = 0;
    for (size_t i = 0; i < READ; i++)
        rules[n++] = (struct confine_rule){read[i], CONFINE_READ};
    if (h->authorities[0])
        rules[n++] = (struct confine_rule){h->authorities, CONFINE_READ};
    const char *base = path_base(h->config);
    bool has = !path_make(config, &none, "%.*s", (int)(base - h->config), h->config);
    const char *const write[] = {h->cache, h->own, has ? config : NULL};
    for (size_t i = 0; i < 3; i++)
        if (write[i])
            rules[n++] = (struct confine_rule){write[i], CONFINE_LINKS};
    rules[n++] = (struct confine_rule){"/dev/null", CONFINE_DEVICE};
    confine_files(&(struct confine_files){.rules = rules, .count = n, .network = true});
}

/* A Landlock rule needs an existing folder. */
static void manager_folders(const struct hub *h)
{
    char inside[PATH_MAX];
    struct err none = {0};
    const char *const folders[] = {h->cache, h->own};
    for (size_t i = 0; i < 2; i++)
        if (!path_make(inside, &none, "%s/x", folders[i]))
            path_make_folders(inside, &none);
    path_make_folders(h->config, &none);
}

static void manager_child(int fd, void *arg)
{
    const struct hub *h = arg;
    static char request[MANAGER_REQUEST];
    struct err none = {0};
    curl_get(&none); /* before rights are given up; where it fails, each request reports it */
    signal(SIGCHLD, SIG_IGN);
    manager_folders(h);
    manager_confine(h);
    child_ready(fd);
    int own;
    for (size_t n; (n = child_take(fd, request, sizeof request, &own));) {
        if (own < 0)
            continue;
        if (!fork())
            manager_work(own, h, request, n);
        close(own);
    }
}

/* ---- the server's side ---- */

int manager_start(struct manager **out, const struct hub *h, struct err *e)
{
    struct hub copy = *h;
    struct manager *m = mem_zalloc(1, sizeof *m);
    if (!m)
        return err_memory(e, "the process that manages models", sizeof *m);
    if (child_start(&m->child, "quern-manager", "manages models", manager_child, &copy, e)) {
        mem_free(m);
        return -1;
    }
    *out = m;
    return 0;
}

int manager_call(struct manager *m, const char *request, size_t n, struct err *e)
{
    if (n > MANAGER_REQUEST)
        return err_set(e, ERR_USAGE, "the request has more than %d bytes", MANAGER_REQUEST);
    return child_call(&m->child, request, n, MANAGER_WAIT, e);
}

void manager_stop(struct manager *m)
{
    if (m)
        child_stop(&m->child);
    mem_free(m);
}
