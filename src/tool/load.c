#include "tool/load.h"

#include "base/dtype.h"
#include "base/file.h"
#include "tool/progress.h"
#include "tool/tool.h"

void load_options(const struct args *a, struct loaded_options *o)
{
    struct runner_options *r = &o->runner;
    r->device = args_text(a, "device");
    r->ctx = (uint32_t)args_int(a, "ctx", r->ctx);
    r->device_options.threads = (int)args_int(a, "threads", 0);
    r->device_options.exact = args_flag(a, "exact");
    r->device_options.tier = args_text(a, "tier");
    r->kv_type = DTYPE_F16;
    o->lock = args_flag(a, "mlock");
    map_into_memory(args_flag(a, "no-mmap"));
}

static void load_show(void *arg, double share)
{
    progress_show(arg, share, NULL);
}

int load_model(struct loaded **out, const char *model, struct loaded_options *o, const struct args *a,
               struct err *e)
{
    struct progress bar;
    struct store *store;
    load_options(a, o);
    if (tool_open(&store, model, e))
        return -1;
    progress_start(&bar, "loading");
    o->runner.progress = load_show;
    o->runner.progress_arg = &bar;
    int r = loaded_open(out, store, o, e);
    progress_end(&bar);
    return r;
}
