/* quern drain: takes a running server out of service, and waits until its requests have ended. */
#include "base/buf.h"
#include "base/clock.h"
#include "tool/client.h"
#include "tool/tool.h"

#include <time.h>

enum { DRAIN_KEY_FILE = 1 << 20, DRAIN_MOST = 600 };

static const struct arg_option drain_options[] = {
    CLIENT_OPTIONS,
    {"admin-key-file", 0, ARG_TEXT, "FILE", "the admin key of a server that has keys (or QUERN_ADMIN_KEY)", 0,
     0},
    {"least", 0, ARG_NUM, "S",
     "wait at least as many seconds, so that those who route requests see that it is not ready (default: 0)",
     0, 86400},
    {"most", 0, ARG_NUM, "S", "and at most as many (default: 600)", 0, 86400},
    {0},
};

/* Asks four times a second. */
static int drain_wait(const struct args *a, const char *key, struct err *e)
{
    double since = clock_now(), least = args_num(a, "least", 0), most = args_num(a, "most", DRAIN_MOST);
    for (;;) {
        json_t *body = json_object(), *reply = body ? client_ask(a, "/drain", key, body, e) : NULL;
        long long running = json_integer_value(json_object_get(reply, "running"));
        json_decref(body);
        if (!reply)
            return -1;
        json_decref(reply);
        double waited = clock_now() - since;
        if (!running && waited >= least)
            return 0;
        if (waited >= most)
            return err_set(e, ERR_RESOURCE, "%lld requests are still running after %.0f s", running, waited);
        nanosleep(&(struct timespec){.tv_nsec = 250000000}, NULL);
    }
}

static int drain_run(const struct args *a, struct err *e)
{
    struct buf text = {.max = DRAIN_KEY_FILE};
    const char *key = client_admin_key(a, &text, e);
    int failed = e->code || drain_wait(a, key, e) ? -1 : 0;
    buf_free(&text);
    return failed;
}

const struct tool_verb tool_drain = {
    .name = "drain",
    .words = "",
    .brief = "take a running server out of service, and wait until its requests have ended",
    .more = "From then on it is not ready, but serves what comes; SIGTERM ends it. Needs an admin key, or "
            "the port of\n"
            "--metrics-port on the server's own machine:\n"
            "  quern drain --url http://127.0.0.1:9090 --least 5\n",
    .options = drain_options,
    .most = 0,
    .run = drain_run,
};
