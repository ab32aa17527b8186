/* MODEL of the command line: found on this machine, or fetched with a bar. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "format/store.h"
#include "hub/hub.h"
#include "hub/path.h"
#include "hub/preset.h"
#include "tool/progress.h"
#include "tool/tool.h"

#include <limits.h>
#include <stdio.h>

static bool model_offline;

static const char *model_config;

void tool_config(const char *file)
{
    model_config = file;
}

void tool_offline(void)
{
    model_offline = true;
}

int tool_hub(struct hub *h, struct err *e)
{
    if (hub_read(h, e))
        return -1;
    h->offline |= model_offline;
    if (!model_config)
        return 0;
    if (!path_is_file(model_config))
        return err_set(e, ERR_USAGE, "--config %s: there is no such file", log_safe(model_config));
    return path_make(h->config, e, "%s", model_config);
}

/* The bar of a pull, with the speed of the last seconds. */
struct model_bar {
    struct progress bar;
    bool checking;
    double then, speed; /* bytes a second, at time `then` */
    uint64_t done;      /* at time `then` */
};

static void model_speed(struct model_bar *b, uint64_t done)
{
    double now = clock_now(), passed = now - b->then;
    if (!b->then || done < b->done) {
        b->then = now, b->done = done;
        return;
    }
    if (passed < 0.5)
        return;
    double speed = (double)(done - b->done) / passed;
    b->speed = b->speed > 0 ? 0.7 * b->speed + 0.3 * speed : speed;
    b->then = now, b->done = done;
}

static int model_show(void *arg, const struct hub_progress *p)
{
    struct model_bar *b = arg;
    if (b->checking != p->checking) {
        progress_end(&b->bar);
        progress_start(&b->bar, p->checking ? "checking" : "fetching");
        b->checking = p->checking;
    }
    model_speed(b, p->done);
    struct buf note = {0};
    tool_scaled(&note, (double)p->done, "B of ");
    tool_scaled(&note, (double)p->total, "B");
    if (!p->checking) {
        buf_str(&note, ", ");
        tool_scaled(&note, b->speed, "B/s");
    }
    progress_show(&b->bar, p->total ? (double)p->done / (double)p->total : 0, note.failed ? NULL : note.data);
    buf_free(&note);
    return 0;
}

int tool_fetch(struct hub *h, const struct hub_name *n, struct hub_pulled *out, struct err *e)
{
    struct model_bar b = {0};
    progress_start(&b.bar, "fetching");
    h->progress = model_show;
    h->progress_arg = &b;
    int bad = hub_pull(h, n, out, e);
    progress_end(&b.bar);
    return bad;
}

int tool_model_path(const char *model, char *path, size_t size, struct err *e)
{
    struct hub h;
    struct hub_name n;
    struct hub_pulled pulled;
    char found[PATH_MAX];
    if (tool_hub(&h, e) || name_read(&n, &h, model, e))
        return -1;
    int here = hub_find(&h, &n, found, e);
    if (!here && !h.offline)
        log_info("%s is not here: fetching it", name_text(&n));
    if (here < 0 || (!here && tool_fetch(&h, &n, &pulled, e)))
        return -1;
    int length = snprintf(path, size, "%s", here ? found : pulled.path);
    return length >= 0 && (size_t)length < size ? 0
                                                : err_set(e, ERR_USAGE, "the path of the model is too long");
}

json_t *tool_preset(const char *model, struct err *e)
{
    struct hub h;
    const char *name = model ? model : HUB_DEFAULT;
    bool path = name[0] == '/' || path_is_file(name) || path_is_folder(name); /* which has none */
    return path || tool_hub(&h, e) ? NULL : preset_read(&h, name, e);
}

int tool_open(struct store **out, const char *model, struct err *e)
{
    char path[PATH_MAX];
    return tool_model_path(model, path, sizeof path, e) < 0 ? -1 : store_open(out, path, e);
}
