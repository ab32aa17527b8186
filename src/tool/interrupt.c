#define _GNU_SOURCE
#include "tool/interrupt.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t flag;
/* A signal that comes just before a wait begins must end it, whatever thread it came to: its handler writes here. */
static int wake_pipe[2] = {-1, -1};

static void interrupt_on_signal(int signal)
{
    (void)signal;
    if (flag)
        _exit(ERR_INTERRUPTED);
    flag = 1;
    interrupt_wake();
}

void interrupt_catch(void)
{
    struct sigaction act = {.sa_handler = interrupt_on_signal};
    if (wake_pipe[0] < 0 && pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK))
        wake_pipe[0] = wake_pipe[1] = -1; /* signals still interrupt poll */
    sigaction(SIGINT, &act, NULL);
}

bool interrupted(void)
{
    return flag;
}

void interrupt_set(void)
{
    flag = 1;
}

void interrupt_forget(void)
{
    flag = 0;
}

void interrupt_wake(void)
{
    int before = errno;
    ssize_t written = write(wake_pipe[1], "", 1); /* full: a byte is there already */
    (void)written;
    errno = before;
}

bool interrupt_wait(int fd)
{
    struct pollfd on[] = {{.fd = fd, .events = POLLIN}, {.fd = wake_pipe[0], .events = POLLIN}};
    char drain[64];
    if (flag || (poll(on, 2, -1) < 0 && errno == EINTR))
        return false;
    if (!on[1].revents)
        return true;
    while (read(wake_pipe[0], drain, sizeof drain) > 0)
        ;
    return false;
}
