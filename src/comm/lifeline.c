#define _GNU_SOURCE
#include "comm/lifeline.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIFE_BEAT  0.5 /* seconds between two signs of life */
#define LIFE_LIMIT 7.0 /* without one a rank counts as lost */
#define LIFE_BYE   5.0 /* that rank 0 waits for the others' goodbyes */

enum { SIGN_ALIVE = 'l', SIGN_BYE = 'b', SIGN_ABORT = 'a', REASON = 512 };

/* What is sent: a sign, and after SIGN_ABORT the reason. */
struct sign {
    char kind;
    char why[REASON - 1];
};

void lifeline_init(struct lifeline *l, uint32_t rank, uint32_t size)
{
    *l = (struct lifeline){.rank = rank, .size = size};
    pthread_mutex_init(&l->lock, NULL);
    for (uint32_t i = 0; i < COMM_RANKS_MOST; i++)
        l->fd[i] = -1;
}

/* Never waits: a peer that reads nothing for so long is hung. */
static void send_sign(struct lifeline *l, char kind, const char *why)
{
    struct sign s = {.kind = kind};
    snprintf(s.why, sizeof s.why, "%s", why ? why : "");
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->size; i++)
        if (l->fd[i] >= 0 && !l->bye[i]) {
            ssize_t n = send(l->fd[i], &s, sizeof s, MSG_NOSIGNAL | MSG_DONTWAIT);
            (void)n;
        }
    pthread_mutex_unlock(&l->lock);
}

/* Another thread may be ending the process, too: the first one does. */
static _Noreturn void life_over(struct lifeline *l, const char *why)
{
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&taken))
        for (;;)
            pause();
    log_error("%s", why);
    send_sign(l, SIGN_ABORT, why);
    usleep(50000); /* the others read it before the connection ends */
    _exit(ERR_DEVICE);
}

_Noreturn void lifeline_abort(struct lifeline *l, const char *why)
{
    char text[REASON];
    snprintf(text, sizeof text, "rank %u: %.480s", l->rank, why);
    life_over(l, text);
}

static void lost(struct lifeline *l, uint32_t i, const char *how)
{
    char text[REASON];
    if (atomic_load(&l->leaving))
        return;
    snprintf(text, sizeof text, "rank %u of %u is lost: %s; the model cannot run without it", i, l->size,
             how);
    life_over(l, text);
}

/* Reads whole signs; they are short, so one is never in pieces for long. */
static void hear(struct lifeline *l, uint32_t i)
{
    struct sign s;
    ssize_t n = recv(l->fd[i], &s, sizeof s, MSG_DONTWAIT | MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        pthread_mutex_lock(&l->lock);
        close(l->fd[i]);
        l->fd[i] = -1;
        pthread_mutex_unlock(&l->lock);
        if (!l->bye[i])
            lost(l, i, "its connection has ended (was it killed, or out of memory?)");
        return;
    }
    if (n < (ssize_t)sizeof s)
        return;
    n = recv(l->fd[i], &s, sizeof s, MSG_DONTWAIT);
    s.why[sizeof s.why - 1] = 0;
    l->heard[i] = clock_now();
    if (s.kind == SIGN_BYE)
        atomic_store(&l->bye[i], true);
    if (s.kind == SIGN_ABORT)
        life_over(l, log_safe(s.why));
}

static void *life_main(void *arg)
{
    struct lifeline *l = arg;
    double next = 0;
    while (!atomic_load(&l->closing)) {
        struct pollfd p[COMM_RANKS_MOST];
        uint32_t who[COMM_RANKS_MOST], n = 0;
        for (uint32_t i = 0; i < l->size; i++)
            if (l->fd[i] >= 0) {
                who[n] = i;
                p[n++] = (struct pollfd){.fd = l->fd[i], .events = POLLIN};
            }
        poll(p, n, 200);
        for (uint32_t i = 0; i < n; i++)
            if (p[i].revents)
                hear(l, who[i]);
        double now = clock_now();
        for (uint32_t i = 0; i < n; i++)
            if (!l->bye[who[i]] && now - l->heard[who[i]] > LIFE_LIMIT)
                lost(l, who[i], "it has given no sign of life for 7 seconds (is it stopped, or cut off?)");
        if (now >= next && !atomic_load(&l->leaving)) {
            send_sign(l, SIGN_ALIVE, NULL);
            next = now + LIFE_BEAT;
        }
    }
    return NULL;
}

int lifeline_start(struct lifeline *l, struct err *e)
{
    if (l->running)
        return 0;
    for (uint32_t i = 0; i < l->size; i++)
        l->heard[i] = clock_now();
    l->running = !pthread_create(&l->thread, NULL, life_main, l);
    return l->running ? 0 : err_set(e, ERR_RESOURCE, "no thread for signs of life");
}

void lifeline_close(struct lifeline *l)
{
    atomic_store(&l->leaving, true);
    send_sign(l, SIGN_BYE, NULL);
    double until = clock_now() + LIFE_BYE;
    bool left = l->running;
    while (left && clock_now() < until) {
        left = false;
        for (uint32_t i = 0; i < l->size; i++)
            left |= l->fd[i] >= 0 && !l->bye[i];
        if (left)
            usleep(2000);
    }
    atomic_store(&l->closing, true);
    if (l->running)
        pthread_join(l->thread, NULL);
    for (uint32_t i = 0; i < l->size; i++)
        if (l->fd[i] >= 0)
            close(l->fd[i]);
    pthread_mutex_destroy(&l->lock);
}
