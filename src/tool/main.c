/* Finds the verb, runs it, and turns its error into one line on stderr and the exit code. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/log.h"
#include "tool/tool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A page of the model that can no longer be read: the file was cut short, or the disk failed. Whatever was
 * computed from it is worth nothing. */
static void main_bus(int signal)
{
    static const char text[] =
        "quern: the model file was cut short or could not be read while it was in use\n";
    (void)signal;
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(ERR_CHANGED);
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

/* A reader that has gone away (EPIPE) is no news to anybody. */
static int main_flush(void)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    if (errno != EPIPE)
        log_error("cannot write to standard output: %s", errno ? strerror(errno) : "some of it was lost");
    return ERR_CHANGED;
}

int main(int argc, char **argv)
{
    struct sigaction bus = {.sa_handler = main_bus};
    sigaction(SIGBUS, &bus, NULL);
    struct err e = {0};
    int result = main_dispatch(argc, argv, &e);
    if (result < 0 && tool_colour(STDERR_FILENO))
        fprintf(stderr, "\033[1;31mquern:\033[0m %s\n", e.text);
    else if (result < 0)
        log_error("%s", e.text);
    int lost = main_flush();
    return result < 0 ? (int)e.code : lost;
}
