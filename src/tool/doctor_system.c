#define _GNU_SOURCE
#include "tool/doctor_system.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "device/cpu/kernels.h"
#include "hub/curl.h"
#include "hub/hub.h"
#include "hub/path.h"
#include "tool/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- probing ---- */

static void doctor_advise(struct doctor_system *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void doctor_advise(struct doctor_system *s, const char *fmt, ...)
{
    va_list ap;
    if (s->advices == DOCTOR_ADVICE)
        return;
    va_start(ap, fmt);
    vsnprintf(s->advice[s->advices++], sizeof s->advice[0], fmt, ap);
    va_end(ap);
}

/* Kernels of ARM64 name no processor: the board or the machine is named instead. */
static void doctor_cpu_name(struct doctor_system *s)
{
    static const char *const files[] = {"/proc/cpuinfo", "/proc/device-tree/model",
                                        "/sys/devices/virtual/dmi/id/product_name"};
    char line[256];
    for (size_t i = 0; i < sizeof files / sizeof *files && !s->cpu[0]; i++) {
        FILE *f = fopen(files[i], "re");
        while (f && fgets(line, sizeof line, f) && !s->cpu[0]) {
            const char *name = i ? line : !strncmp(line, "model name", 10) ? strchr(line, ':') : NULL;
            line[strcspn(line, "\n")] = 0;
            if (name)
                snprintf(s->cpu, sizeof s->cpu, "%.127s", name + (i ? 0 : strspn(name, ": ")));
        }
        if (f)
            fclose(f);
    }
}

static void doctor_cpu(struct doctor_system *s)
{
    doctor_cpu_name(s);
    for (int i = 0; i < DOCTOR_TIERS_MOST && kernels_tier((size_t)i); i++) {
        struct err lacks = {0};
        s->tiers[i].name = kernels_tier((size_t)i);
        s->tiers[i].has = kernels_get(s->tiers[i].name, &lacks) != NULL;
        s->tier_count = i + 1;
    }
    if (!s->tiers[1].has)
        doctor_advise(s, "this CPU has no %s: models run, at a small part of the speed", s->tiers[1].name);
}

/* The folder itself, or the nearest one above it that is there. */
static void doctor_nearest(char path[PATH_MAX])
{
    while (!path_is_folder(path)) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            snprintf(path, PATH_MAX, "/");
            return;
        }
        *slash = 0;
    }
}

static void doctor_folder(struct doctor_system *s, int i, const char *what, const char *path)
{
    struct doctor_folder *f = &s->folders[i];
    struct statvfs fs;
    char near[PATH_MAX];
    f->what = what;
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(near, sizeof near, "%s", path);
    doctor_nearest(near);
    f->there = path_is_folder(path);
    f->writable = access(near, W_OK | X_OK) == 0;
    f->room = statvfs(near, &fs) ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;
    if (!f->writable && strcmp(what, "config"))
        doctor_advise(s, "%.150s may not be written: give it to your user, or set %s", near,
                      strcmp(what, "hub") ? "XDG_CACHE_HOME" : "HF_HOME");
}

static int doctor_hub(struct doctor_system *s, struct err *e)
{
    struct hub h;
    struct err missing = {0};
    char config[PATH_MAX];
    if (tool_hub(&h, e))
        return -1;
    snprintf(config, sizeof config, "%s", h.config);
    *strrchr(config, '/') = 0;
    doctor_folder(s, 0, "hub", h.cache);
    doctor_folder(s, 1, "own", h.own);
    doctor_folder(s, 2, "config", config);
    snprintf(s->endpoint, sizeof s->endpoint, "%s", h.endpoint);
    s->token = h.token[0];
    s->offline = h.offline;
    const struct curl *c = curl_get(&missing);
    if (c) {
        const char *version = c->version(), *tls = strchr(version, ' ');
        size_t n = tls ? (size_t)(tls - version) + 1 + strcspn(tls + 1, " ")
                       : strlen(version); /* itself and its TLS */
        snprintf(s->curl, sizeof s->curl, "%.*s", (int)n, version);
    }
    if (!c)
        doctor_advise(s, "%.250s", missing.text);
    if (!strncmp(h.endpoint, "https:", 6) && !path_is_folder("/etc/ssl/certs"))
        doctor_advise(s, "there are no certificates in /etc/ssl/certs: apt install ca-certificates");
    return 0;
}

/* Display and 3D controllers (class 0x03) of vendor 0x10de. */
static int doctor_count_nvidia(void)
{
    static const char bus[] = "/sys/bus/pci/devices";
    struct path_list all;
    struct err ignored = {0};
    int count = 0;
    if (path_list_entries(&all, bus, &ignored))
        return 0;
    for (size_t i = 0; i < all.count; i++) {
        static const char *const files[] = {"vendor", "class"}, *const heads[] = {"0x10de", "0x03"};
        bool is = true;
        for (int k = 0; k < 2 && is; k++) {
            char path[PATH_MAX], text[16] = "";
            FILE *f =
                path_make(path, &ignored, "%s/%s/%s", bus, all.names[i], files[k]) ? NULL : fopen(path, "re");
            is = f && fgets(text, sizeof text, f) && !strncmp(text, heads[k], strlen(heads[k]));
            if (f)
                fclose(f);
        }
        count += is;
    }
    path_list_free(&all);
    return count;
}

int doctor_system_look(struct doctor_system *s, int cards, struct err *e)
{
    struct rlimit lock;
    *s = (struct doctor_system){0};
    doctor_cpu(s);
    memory_read(&s->memory);
    s->lockable =
        getrlimit(RLIMIT_MEMLOCK, &lock) || lock.rlim_cur == RLIM_INFINITY ? UINT64_MAX : lock.rlim_cur;
    s->nvidia = doctor_count_nvidia();
    if (s->nvidia && cards <= 0)
        doctor_advise(s,
                      "there is an NVIDIA card, but no driver that works: apt install nvidia-driver (Debian, "
                      "non-free), or ubuntu-drivers install, and restart");
    return doctor_hub(s, e);
}

/* ---- output ---- */

static void doctor_bytes(struct buf *out, const char *before, uint64_t bytes, const char *after)
{
    buf_str(out, before);
    tool_scaled(out, (double)bytes, "B");
    buf_str(out, after);
}

void doctor_system_text(const struct doctor_system *s, struct buf *out)
{
    buf_printf(out, "        %s; tiers", *s->cpu ? log_safe(s->cpu) : "a CPU without a name");
    for (int i = 0; i < s->tier_count; i++)
        buf_printf(out, "%s %s%s", i ? "," : "", s->tiers[i].has ? "" : "no ", s->tiers[i].name);
    doctor_bytes(out, "\nmemory  ", s->memory.total, ", ");
    tool_scaled(out, (double)s->memory.available, "B free; ");
    if (s->lockable == UINT64_MAX)
        buf_str(out, "--mlock limit: unlimited\n");
    else
        doctor_bytes(out, "--mlock limit: ", s->lockable, " (ulimit -l)\n");
    for (int i = 0; i < DOCTOR_FOLDERS; i++) {
        const struct doctor_folder *f = &s->folders[i];
        buf_printf(out, "%-7s %s, ", f->what, log_safe(f->path));
        if (!f->there)
            buf_str(out, f->writable ? "not there yet, " : "not there and cannot be made, ");
        else
            buf_str(out, f->writable ? "writable, " : "not writable, ");
        doctor_bytes(out, "", f->room, " free\n");
    }
    buf_printf(out, "fetch   %s, %s token%s; %s\n", log_safe(s->endpoint), s->token ? "with a" : "no",
               s->offline ? ", offline" : "",
               *s->curl ? log_safe(s->curl) : "without libcurl nothing is fetched");
    for (int i = 0; i < s->advices; i++)
        buf_printf(out, "to do   %s\n", log_safe(s->advice[i]));
}

static void doctor_json_folder(const struct doctor_folder *f, struct json *j)
{
    json_key(j, f->what);
    json_begin(j, '{');
    json_key(j, "path");
    json_str(j, f->path);
    json_key(j, "there");
    json_bool(j, f->there);
    json_key(j, "writable");
    json_bool(j, f->writable);
    json_key(j, "free");
    json_uint(j, f->room);
    json_end(j, '}');
}

void doctor_system_json(const struct doctor_system *s, struct json *j)
{
    json_key(j, "processor");
    json_str(j, *s->cpu ? s->cpu : NULL);
    json_key(j, "tiers");
    json_begin(j, '{');
    for (int i = 0; i < s->tier_count; i++) {
        json_key(j, s->tiers[i].name);
        json_bool(j, s->tiers[i].has);
    }
    json_end(j, '}');
    json_key(j, "memory");
    json_begin(j, '{');
    json_key(j, "total");
    json_uint(j, s->memory.total);
    json_key(j, "free");
    json_uint(j, s->memory.available);
    json_key(j, "lockable");
    if (s->lockable == UINT64_MAX)
        json_nil(j);
    else
        json_uint(j, s->lockable);
    json_end(j, '}');
    json_key(j, "folders");
    json_begin(j, '{');
    for (int i = 0; i < DOCTOR_FOLDERS; i++)
        doctor_json_folder(&s->folders[i], j);
    json_end(j, '}');
    json_key(j, "hub");
    json_begin(j, '{');
    json_key(j, "endpoint");
    json_str(j, s->endpoint);
    json_key(j, "token");
    json_bool(j, s->token);
    json_key(j, "offline");
    json_bool(j, s->offline);
    json_key(j, "libcurl");
    json_str(j, *s->curl ? s->curl : NULL);
    json_end(j, '}');
    json_key(j, "nvidia_cards");
    json_int(j, s->nvidia);
    json_key(j, "advice");
    json_begin(j, '[');
    for (int i = 0; i < s->advices; i++)
        json_str(j, s->advice[i]);
    json_end(j, ']');
}
