/* Finds the verb, runs it, and turns its error into one line on stderr and the exit code. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/log.h"
#include "base/watch.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* SIGBUS: a page of a mapped file cannot be read. If the file is watched, results computed from it are
 * discarded; otherwise the program ends. */
static void main_bus_error(int signal, siginfo_t *info, void *context)
{
    static const char text[] =
        "quern: the model file was cut short or could not be read while it was in use\n";
    (void)signal, (void)context;
    int was = errno;
    bool mended = info->si_code > 0 && watch_fault(info->si_addr); /* else a process has sent it */
    errno = was;
    if (mended)
        return;
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(ERR_CHANGED);
}

/* SIGIO: a process wants to write to a mapped file and waits for our lease. */
static void main_lease(int signal)
{
    (void)signal;
    watch_wake();
}

/* Ctrl-C where no verb has its own way of stopping: while a model loads, and in all that is short. */
static void main_interrupted(int signal)
{
    static const char clear[] = "\r\033[K", text[] = "quern: interrupted\n";
    (void)signal;
    ssize_t n = tool_colour(STDERR_FILENO) ? write(STDERR_FILENO, clear, sizeof clear - 1) : 0;
    n += write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(ERR_INTERRUPTED);
}

/* A standard stream that was closed must not become the model's descriptor. Each gets one that fails as the
 * closed one would: 0 cannot be read, 1 and 2 cannot be written. */
static void main_fill_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            return;
}

static int main_verb(const struct tool_verb *v, int argc, char **argv, struct err *e)
{
    struct args a;
    int result = args_parse(&a, v->options, argc, argv, e);
    if (!result && args_flag(&a, "help")) {
        struct buf out = {0};
        help_verb(&out, v);
        result = tool_print(&out, e);
    } else if (!result) {
        log_set_level(args_flag(&a, "quiet") ? LOG_ERROR : args_flag(&a, "verbose") ? LOG_DEBUG : LOG_INFO);
        if (args_flag(&a, "offline"))
            tool_offline();
        tool_config(args_text(&a, "config"));
        if (a.count < v->least)
            result = err_set(e, ERR_USAGE, "quern %s needs %s; 'quern help %s' says more", v->name, v->words,
                             v->name);
        else if (a.count > v->most)
            result =
                err_set(e, ERR_USAGE, "'%s' is one word too many for quern %s; 'quern help %s' says more",
                        log_safe(a.words[v->most]), v->name, v->name);
        else
            result = v->run(&a, e);
    }
    args_free(&a);
    return result;
}

/* The verb is the first word that is no option; it is taken out of argv. */
static int main_dispatch(int argc, char **argv, struct err *e)
{
    int at = 1;
    while (at < argc && argv[at][0] == '-')
        at++;
    const char *first = argc > 1 ? argv[1] : "--help";
    if (at < argc) {
        const struct tool_verb *v = tool_find(argv[at], e);
        if (!v)
            return -1;
        memmove(argv + at, argv + at + 1, (size_t)(argc - at) * sizeof *argv);
        return main_verb(v, argc - 2, argv + 1, e);
    }
    if (!strcmp(first, "--version") || !strcmp(first, "-V")) {
        printf("quern %s\n", QUERN_VERSION);
        return 0;
    }
    if (argc > 1 && strcmp(first, "--help") != 0 && strcmp(first, "-h") != 0)
        return err_set(e, ERR_USAGE,
                       "there is no option %s without a command; 'quern help' lists the commands",
                       log_safe(first));
    struct buf out = {0};
    help_short(&out);
    return tool_print(&out, e);
}

static int main_flush(void)
{
    int lost = tool_flush();
    if (!lost || lost == EPIPE) /* a reader that leaves, such as head, has what it wants */
        return 0;
    log_error("cannot write to standard output: %s", strerror(lost));
    return ERR_CHANGED;
}

int main(int argc, char **argv)
{
    struct sigaction bus = {.sa_sigaction = main_bus_error, .sa_flags = SA_SIGINFO};
    struct sigaction lease = {.sa_handler = main_lease, .sa_flags = SA_RESTART};
    struct sigaction interrupted = {.sa_handler = main_interrupted};
    main_fill_streams();
    signal(SIGPIPE, SIG_IGN); /* a failed write is reported at the end instead */
    signal(SIGXFSZ, SIG_IGN); /* so is a write beyond the limit of file sizes */
    sigaction(SIGINT, &interrupted, NULL);
    watch_start();
    sigaction(SIGBUS, &bus, NULL);
    sigaction(SIGIO, &lease, NULL);
    struct err e = {0};
    int result = main_dispatch(argc, argv, &e);
    if (result < 0 && tool_colour(STDERR_FILENO))
        fprintf(stderr, "\033[1;31mquern:\033[0m %s\n", e.text);
    else if (result < 0)
        log_error("%s", e.text);
    int lost = main_flush();
    return result < 0 ? (int)e.code : lost;
}
