/* A tiny model of test/data/arch, without text, with plain kernels. */
#pragma once

#include "codec/dtype.h"
#include "run/session.h"

#include <stdio.h>

static inline struct session *open_tiny(const char *folder, const struct runner_options *o)
{
    char path[256];
    struct err e = {0};
    struct store *store;
    struct session *l;
    struct session_options lo = {.runner = *o, .no_text = true};
    snprintf(path, sizeof path, "test/data/arch/%s", folder);
    lo.runner.kv_type = DTYPE_F16;
    lo.runner.device_options.threads = 1;
    if (store_open(&store, path, &e) || session_open(&l, store, &lo, &e))
        fail_msg("%s", e.text);
    return l;
}
