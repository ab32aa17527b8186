#define _GNU_SOURCE
#include "base/child.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- messages ---- */

union child_control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

bool child_send(int fd, const void *data, size_t n, int pass)
{
    union child_control control = {0};
    struct iovec part = {(void *)(uintptr_t)data, n};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    if (pass >= 0) {
        h.msg_control = control.bytes;
        h.msg_controllen = sizeof control.bytes;
        control.head = (struct cmsghdr){CMSG_LEN(sizeof pass), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &pass, sizeof pass);
    }
    ssize_t sent;
    do
        sent = sendmsg(fd, &h, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)n;
}

size_t child_take(int fd, void *data, size_t room, int *passed)
{
    union child_control control;
    struct iovec part = {data, room};
    struct msghdr h = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t got;
    do
        got = recvmsg(fd, &h, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    *passed = -1;
    if (got <= 0)
        return 0;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof *passed))
        memcpy(passed, CMSG_DATA(c), sizeof *passed);
    else if (h.msg_flags & MSG_CTRUNC)
        *passed = -2;
    return (size_t)got;
}

int child_call(const struct child *c, const void *request, size_t n, unsigned seconds, struct err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return err_set(e, ERR_RESOURCE, "a socket to a helper process is not possible: %s", strerror(errno));
    struct timeval patience = {.tv_sec = (time_t)seconds};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    bool sent = child_send(c->fd, request, n, pair[1]);
    close(pair[1]);
    if (sent)
        return pair[0];
    close(pair[0]);
    return err_set(e, ERR_RESOURCE, "the helper process %d has ended; restart this program", (int)c->pid);
}

bool child_read(int fd, void *to, size_t n)
{
    for (char *at = to; n;) {
        ssize_t got = read(fd, at, n);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        at += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

bool child_write(int fd, const void *from, size_t n)
{
    for (const char *at = from; n;) {
        ssize_t put = send(fd, at, n, MSG_NOSIGNAL);
        if (put <= 0 && !(put < 0 && errno == EINTR))
            return false;
        at += put > 0 ? put : 0;
        n -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

/* ---- the process ---- */

void child_ready(int fd)
{
    child_send(fd, "", 1, -1);
}

/* Signals of a terminal or of systemd are for the parent. Of its descriptors only the socket and the log stay open.
 * Messages go to stderr: a sink may be code of a caller that waits for threads of the parent (Python's). */
static _Noreturn void child_run(int fd, pid_t parent, const char *name, void (*run)(int fd, void *arg),
                                void *arg)
{
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_DUMPABLE, 0);
    log_set_sink(NULL, NULL);
    if (getppid() != parent)
        _exit(0);
    if (dup2(fd, 0) < 0 || dup2(2, 1) < 0)
        _exit(1);
    if (syscall(SYS_close_range, 3U, ~0U, 0))
        for (int i = 3; i < 1024; i++)
            close(i);
    run(0, arg);
    _exit(0);
}

int child_start(struct child *c, const char *name, const char *what, void (*run)(int fd, void *arg),
                void *arg, struct err *e)
{
    int pair[2], passed;
    char ready;
    *c = (struct child){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return err_set(e, ERR_RESOURCE, "cannot start the process that %s: %s", what, strerror(errno));
    pid_t parent = getpid();
    c->pid = fork();
    if (!c->pid)
        child_run(pair[1], parent, name, run, arg);
    int why = errno;
    close(pair[1]);
    c->fd = pair[0];
    if (c->pid > 0 && child_take(c->fd, &ready, 1, &passed))
        return 0;
    err_set(e, ERR_RESOURCE, "cannot start the process that %s: %s", what,
            c->pid < 0 ? strerror(why) : "it ended");
    child_stop(c);
    return -1;
}

void child_stop(struct child *c)
{
    if (c->fd >= 0)
        close(c->fd);
    if (c->pid > 0)
        waitpid(c->pid, NULL, 0);
    *c = (struct child){.fd = -1};
}
