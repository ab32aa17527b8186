#define _GNU_SOURCE
#include "comm/tcp.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/greet.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREET_SECONDS 5 /* that a newcomer has for its greeting */

/* Where a rank listens; rank 0 tells all of them. */
struct rank_place {
    struct sockaddr_storage address;
    uint32_t length, unused;
};

/* Before the bytes of a move. */
struct move_head {
    uint32_t magic, count;
    uint64_t bytes;
};
enum { MOVE_MAGIC = 0x7173686d };

struct tcp_comm {
    struct comm base;
    struct lifeline life;
    int fd[COMM_RANKS_MOST];
    uint32_t sent[COMM_RANKS_MOST], received[COMM_RANKS_MOST]; /* moves so far */
};

/* ---- bytes on a connection that blocks ---- */

static bool wait_for(int fd, short what, double until)
{
    struct pollfd p = {.fd = fd, .events = what};
    double left = until - clock_now();
    return left > 0 && poll(&p, 1, (int)(left * 1000) + 1) > 0;
}

static bool put_all(int fd, const void *data, size_t n, double until)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, (const uint8_t *)data + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0)
            at += (size_t)k;
        else if ((errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, until))
            return false;
    }
    return true;
}

static bool get_all(int fd, void *data, size_t n, double until)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = recv(fd, (uint8_t *)data + at, n - at, MSG_DONTWAIT);
        if (k > 0)
            at += (size_t)k;
        else if (!k || (errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLIN, until))
            return false;
    }
    return true;
}

static void prepare_fd(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* ---- meeting ---- */

int tcp_listen(bool any, uint16_t *port, struct err *e)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(*port)};
    socklen_t n = sizeof at;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    at.sin_addr.s_addr = htonl(any ? INADDR_ANY : INADDR_LOOPBACK);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, COMM_RANKS_MOST) ||
        getsockname(fd, (struct sockaddr *)&at, &n)) {
        err_set(e, ERR_RESOURCE, "ranks cannot meet at port %u: %s", *port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *port = ntohs(at.sin_port);
    return fd;
}

static bool is_here(const char *address)
{
    return !strcmp(address, "localhost") || !strncmp(address, "127.", 4);
}

/* The next connection of another rank; -1 and an error where none came in time. Strangers are turned away. */
static int greet_accept(int listener, const struct rank_job *j, double until, struct greeting *g,
                        struct err *e)
{
    while (wait_for(listener, POLLIN, until)) {
        char reply[GREET_REPLY] = {0};
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        bool whole = get_all(fd, g, sizeof *g, clock_now() + GREET_SECONDS);
        const char *refuse = whole ? greet_refuse(g, j, reply) : "";
        if (!refuse && put_all(fd, reply, sizeof reply, until)) {
            prepare_fd(fd);
            return fd;
        }
        if (refuse && *refuse) {
            put_all(fd, reply, sizeof reply, clock_now() + 1);
            err_set(e, ERR_DEVICE, "%s", log_safe(reply));
            close(fd);
            return -1;
        }
        log_warn("a connection to the port of ranks is turned away: it is no rank of this job");
        close(fd);
    }
    return -1;
}

static int connect_once(const struct sockaddr *to, socklen_t n)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, to, n)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Until the other rank listens. */
static int connect_to(const struct sockaddr *to, socklen_t n, const struct rank_job *j,
                      const struct greeting *g, double until, struct err *e)
{
    for (;;) {
        char reply[GREET_REPLY];
        int fd = connect_once(to, n);
        if (fd >= 0 && put_all(fd, g, sizeof *g, until) && get_all(fd, reply, sizeof reply, until)) {
            reply[sizeof reply - 1] = 0;
            prepare_fd(fd);
            if (!reply[0])
                return fd;
            close(fd);
            return err_set(e, ERR_DEVICE, "%s", log_safe(reply));
        }
        if (fd >= 0)
            close(fd);
        if (clock_now() > until)
            return err_set(
                e, ERR_DEVICE,
                "rank %u has waited %.0f seconds for another rank at '%s', port %u: is it started, "
                "with the same QUERN_RANK_KEY? (QUERN_RANK_WAIT sets the time)",
                j->rank, j->patience, log_safe(j->address), j->port);
        usleep(50000);
    }
}

/* To rank 0 by its name. */
static int connect_first(const struct rank_job *j, const struct greeting *g, double until, struct err *e)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[8];
    int why;
    snprintf(port, sizeof port, "%u", j->port);
    while ((why = getaddrinfo(j->address, port, &hints, &found)) && clock_now() < until)
        usleep(200000); /* a pod's name appears when it runs */
    if (why)
        return err_set(e, ERR_DEVICE, "the address of rank 0, '%s': %s", log_safe(j->address),
                       gai_strerror(why));
    int fd = connect_to(found->ai_addr, found->ai_addrlen, j, g, until, e);
    freeaddrinfo(found);
    return fd;
}

/* Names the ranks that have not come. */
static int late(const struct rank_job *j, const int *fd, struct err *e)
{
    char text[256] = "";
    size_t at = 0;
    for (uint32_t i = 1; i < j->size && at + 8 < sizeof text; i++)
        if (fd[i] < 0)
            at += (size_t)snprintf(text + at, sizeof text - at, " %u", i);
    return e->code
               ? -1
               : err_set(e, ERR_DEVICE,
                         "after %.0f seconds these of %u ranks have not come:%s (QUERN_RANK_WAIT sets the "
                         "time)",
                         j->patience, j->size, text);
}

int tcp_lifelines(struct lifeline *l, const struct rank_job *j, int listener, struct err *e)
{
    double until = clock_now() + j->patience;
    struct greeting g;
    if (j->rank) {
        greet_fill(&g, j, GREET_LIFE, 0);
        return (l->fd[0] = connect_first(j, &g, until, e)) < 0 ? -1 : 0;
    }
    for (uint32_t come = 1; come < j->size;) {
        int fd = greet_accept(listener, j, until, &g, e);
        if (fd < 0) {
            close(listener);
            return late(j, l->fd, e);
        }
        if (g.kind != GREET_LIFE || l->fd[g.rank] >= 0) {
            close(fd);
            continue;
        }
        l->fd[g.rank] = fd;
        come++;
    }
    close(listener);
    return 0;
}

/* Rank 0 takes both connections of every other rank, and learns where they listen. */
static int meet_first(struct tcp_comm *t, const struct rank_job *j, struct rank_place *place, struct err *e)
{
    uint16_t port = j->port;
    int listener = tcp_listen(!is_here(j->address), &port, e);
    double until = clock_now() + j->patience;
    for (uint32_t come = 2; listener >= 0 && come < 2 * j->size;) {
        struct greeting g;
        int fd = greet_accept(listener, j, until, &g, e);
        if (fd < 0) {
            close(listener);
            return late(j, t->fd, e);
        }
        int *where = g.kind == GREET_LIFE ? &t->life.fd[g.rank] : &t->fd[g.rank];
        if (*where >= 0) {
            close(listener);
            close(fd);
            return err_set(e, ERR_DEVICE, "two processes say that they are rank %u", g.rank);
        }
        *where = fd;
        come++;
        if (g.kind == GREET_LIFE)
            continue;
        socklen_t n = sizeof place[g.rank].address;
        getpeername(fd, (struct sockaddr *)&place[g.rank].address, &n);
        ((struct sockaddr_in *)&place[g.rank].address)->sin_port = htons(g.port);
        place[g.rank].length = n;
    }
    if (listener >= 0)
        close(listener);
    for (uint32_t i = 1; i < j->size && listener >= 0; i++)
        if (!put_all(t->fd[i], place, j->size * sizeof *place, until))
            return err_set(e, ERR_DEVICE, "rank %u has left before the others came", i);
    return listener < 0 ? -1 : 0;
}

/* Another rank: connects to rank 0, then to those before it; those behind it come. */
static int meet_other(struct tcp_comm *t, const struct rank_job *j, struct rank_place *place, struct err *e)
{
    uint16_t port = 0;
    int listener = tcp_listen(!is_here(j->address), &port, e);
    double until = clock_now() + j->patience;
    struct greeting g;
    greet_fill(&g, j, GREET_LIFE, 0);
    int failed = listener < 0 || (t->life.fd[0] = connect_first(j, &g, until, e)) < 0;
    greet_fill(&g, j, GREET_DATA, port);
    failed = failed || (t->fd[0] = connect_first(j, &g, until, e)) < 0;
    if (!failed && !get_all(t->fd[0], place, j->size * sizeof *place, until + j->patience))
        failed = err_set(e, ERR_DEVICE, "rank 0 has left before all ranks came");
    for (uint32_t i = 1; i < j->rank && !failed; i++)
        failed = (t->fd[i] =
                      connect_to((struct sockaddr *)&place[i].address, place[i].length, j, &g, until, e)) < 0;
    for (uint32_t come = j->rank + 1; come < j->size && !failed; come++) {
        int fd = greet_accept(listener, j, until + j->patience, &g, e);
        failed = fd < 0 || g.rank <= j->rank || t->fd[g.rank] >= 0;
        if (failed && fd >= 0)
            close(fd);
        else if (!failed)
            t->fd[g.rank] = fd;
    }
    if (listener >= 0)
        close(listener);
    return !failed   ? 0
           : e->code ? -1
                     : err_set(e, ERR_DEVICE, "rank %u did not meet the ranks behind it", j->rank);
}

/* ---- moves ---- */

struct moving {
    struct move_head head;
    size_t at; /* of head and data */
};

/* Goes on with one move as far as it can without waiting. False: the connection has failed. */
static bool move_on(struct tcp_comm *t, const struct comm_move *m, struct moving *s)
{
    const int fd = t->fd[m->peer];
    const size_t head = sizeof s->head, all = head + m->bytes;
    while (s->at < all) {
        bool in_head = s->at < head;
        uint8_t *from = in_head ? (uint8_t *)&s->head + s->at : (uint8_t *)m->data + (s->at - head);
        size_t n = in_head ? head - s->at : all - s->at;
        ssize_t k = m->send ? send(fd, from, n, MSG_NOSIGNAL | MSG_DONTWAIT | (in_head ? MSG_MORE : 0))
                            : recv(fd, from, n, MSG_DONTWAIT);
        if (k > 0)
            s->at += (size_t)k;
        else
            return k < 0 && (errno == EAGAIN || errno == EINTR);
        if (!m->send && s->at == head &&
            (s->head.magic != MOVE_MAGIC || s->head.bytes != m->bytes ||
             s->head.count != t->received[m->peer]))
            return false;
    }
    return true;
}

static int tcp_exchange(struct comm *c, const struct comm_move *moves, uint32_t count, struct err *e)
{
    struct tcp_comm *t = (struct tcp_comm *)c;
    struct moving state[2 * COMM_RANKS_MOST];
    for (uint32_t i = 0; i < count; i++)
        state[i] = (struct moving){
            .head = {MOVE_MAGIC, moves[i].send ? t->sent[moves[i].peer]++ : 0, moves[i].bytes}};
    for (;;) {
        struct pollfd p[2 * COMM_RANKS_MOST];
        uint32_t left = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (!move_on(t, &moves[i], &state[i]))
                return err_set(e, ERR_DEVICE,
                               "rank %u: the connection to rank %u has ended or is out of step", c->rank,
                               moves[i].peer);
            if (state[i].at < sizeof state[i].head + moves[i].bytes)
                p[left++] =
                    (struct pollfd){.fd = t->fd[moves[i].peer], .events = moves[i].send ? POLLOUT : POLLIN};
        }
        if (!left)
            break;
        poll(p, left, -1);
    }
    for (uint32_t i = 0; i < count; i++)
        t->received[moves[i].peer] += !moves[i].send;
    return 0;
}

static int tcp_watch(struct comm *c, struct err *e)
{
    return lifeline_start(&((struct tcp_comm *)c)->life, e);
}

static void tcp_abort(struct comm *c, const char *why)
{
    lifeline_abort(&((struct tcp_comm *)c)->life, why);
}

static void tcp_close(struct comm *c)
{
    struct tcp_comm *t = (struct tcp_comm *)c;
    lifeline_close(&t->life);
    for (uint32_t i = 0; i < COMM_RANKS_MOST; i++)
        if (t->fd[i] >= 0)
            close(t->fd[i]);
    mem_free(t);
}

int comm_tcp(struct comm **out, const struct rank_job *j, struct err *e)
{
    static const struct comm_ops ops = {
        .name = "tcp", .exchange = tcp_exchange, .watch = tcp_watch, .abort = tcp_abort, .close = tcp_close};
    struct rank_place *place = mem_zalloc(COMM_RANKS_MOST, sizeof *place);
    struct tcp_comm *t = mem_zalloc(1, sizeof *t);
    *out = NULL;
    if (!t || !place) {
        mem_free(t);
        mem_free(place);
        return err_memory(e, "ranks", sizeof *t);
    }
    t->base = (struct comm){.ops = &ops, .rank = j->rank, .size = j->size};
    lifeline_init(&t->life, j->rank, j->size);
    for (uint32_t i = 0; i < COMM_RANKS_MOST; i++)
        t->fd[i] = -1;
    int failed = j->rank ? meet_other(t, j, place, e) : meet_first(t, j, place, e);
    mem_free(place);
    if (failed)
        tcp_close(&t->base);
    else
        *out = &t->base;
    return failed ? -1 : 0;
}
