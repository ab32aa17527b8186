#define _GNU_SOURCE
#include "serve/kv_publisher.h"
#include "base/buf.h"
#include "base/calls.h"
#include "base/child.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    KV_PACKET = 128 << 10,   /* bytes from the server: a name, and a message */
    KV_NAME = 1024,          /* of a model */
    KV_KEPT = 10000,         /* messages for replay, */
    KV_KEPT_BYTES = 64 << 20 /* with as many bytes */
};

/* ---- libzmq ---- */

enum { ZMQ_PUB = 1, ZMQ_ROUTER = 6 };
enum {
    ZMQ_LINGER = 17,
    ZMQ_MAXMSGSIZE = 22,
    ZMQ_SNDHWM = 23,
    ZMQ_LAST_ENDPOINT = 32,
    ZMQ_IPV6 = 42,
    ZMQ_RCVMORE = 13
};
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };

struct zmq_item {
    void *socket;
    int fd;
    short events, revents;
};

struct zmq {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t n);
    int (*getsockopt)(void *socket, int option, void *value, size_t *n);
    int (*bind)(void *socket, const char *endpoint);
    int (*connect)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *data, size_t n, int flags);
    int (*recv)(void *socket, void *data, size_t n, int flags);
    int (*poll)(struct zmq_item *items, int count, long milliseconds);
    int (*error)(void);
    const char *(*strerror)(int number);
};

static int zmq_open(struct zmq *z, struct err *e)
{
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {
        {"zmq_ctx_new", offsetof(struct zmq, ctx_new)},
        {"zmq_ctx_term", offsetof(struct zmq, ctx_term)},
        {"zmq_socket", offsetof(struct zmq, socket)},
        {"zmq_close", offsetof(struct zmq, close)},
        {"zmq_setsockopt", offsetof(struct zmq, setsockopt)},
        {"zmq_getsockopt", offsetof(struct zmq, getsockopt)},
        {"zmq_bind", offsetof(struct zmq, bind)},
        {"zmq_connect", offsetof(struct zmq, connect)},
        {"zmq_send", offsetof(struct zmq, send)},
        {"zmq_recv", offsetof(struct zmq, recv)},
        {"zmq_poll", offsetof(struct zmq, poll)},
        {"zmq_errno", offsetof(struct zmq, error)},
        {"zmq_strerror", offsetof(struct zmq, strerror)},
    };
    void *library = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(e, ERR_RESOURCE, "--kv-events needs libzmq (Debian: libzmq5): %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(library, functions[i].name);
        if (!found)
            return err_set(e, ERR_RESOURCE, "libzmq lacks %s", functions[i].name);
        memcpy((char *)z + functions[i].at, &found, sizeof found);
    }
    return 0;
}

/* ---- the process ---- */

/* The last messages of a model, in a ring. */
struct kv_topic {
    char *name;
    uint64_t next;  /* the number of the next message */
    uint64_t first; /* the oldest that is kept */
    struct kv_kept {
        void *data;
        size_t n;
    } * kept; /* (KV_KEPT), by number */
    size_t bytes;
    struct kv_topic *after;
};

struct kv_process {
    const struct kv_publisher_options *o;
    struct zmq z;
    void *context, *pub, *router;
    struct kv_topic *topics, **end;
    char packet[KV_PACKET];
};

/* How it began: sent to the server once. */
struct kv_began {
    int code;
    char text[sizeof((struct err *)0)->text];
};

static const struct confine_rule kv_rules[] = {
    {"/usr/lib", CONFINE_READ},      {"/usr/lib64", CONFINE_READ},       {"/lib", CONFINE_READ},
    {"/lib64", CONFINE_READ},        {"/etc/ld.so.cache", CONFINE_READ}, {"/etc/resolv.conf", CONFINE_READ},
    {"/etc/hosts", CONFINE_READ},    {"/etc/host.conf", CONFINE_READ},   {"/etc/nsswitch.conf", CONFINE_READ},
    {"/etc/gai.conf", CONFINE_READ}, {"/etc/services", CONFINE_READ},    {"/dev/urandom", CONFINE_READ},
    {"/dev/null", CONFINE_DEVICE},
};

/* What libzmq and a resolver call; no programs, no processes. */
static const uint16_t kv_calls[] = {
    SYS_read,
    SYS_write,
    SYS_writev,
    SYS_close,
    SYS_openat,
    SYS_open,
    SYS_fstat,
    SYS_newfstatat,
    SYS_stat,
    SYS_statx,
    SYS_access,
    SYS_lseek,
    SYS_pread64,
    SYS_readlink,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_mprotect,
    SYS_madvise,
    SYS_brk,
    SYS_futex,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_clone,
    SYS_clone3,
    SYS_exit,
    SYS_exit_group,
    SYS_getpid,
    SYS_gettid,
    SYS_tgkill,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_setscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_setpriority,
    SYS_getpriority,
    SYS_prctl,
    SYS_prlimit64,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
    SYS_poll,
    SYS_ppoll,
    SYS_epoll_create1,
    SYS_epoll_create,
    SYS_epoll_ctl,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_pipe2,
    SYS_fcntl,
    SYS_ioctl,
    SYS_socket,
    SYS_socketpair,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_connect,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
};

static int kv_fail(const struct kv_process *p, const char *endpoint, struct err *e)
{
    return err_set(e, ERR_RESOURCE, "cannot publish events at %s: %s", log_safe(endpoint),
                   p->z.strerror(p->z.error()));
}

/* A socket of this type at its endpoint, which becomes what it is in fact. */
static int kv_socket(struct kv_process *p, void **out, int type, const char *endpoint, char *at, size_t size,
                     struct err *e)
{
    const struct zmq *z = &p->z;
    int64_t longest = 4096; /* of what others send: subscriptions, and numbers */
    int linger = 1000, six = 1, replies = 2 * KV_KEPT;
    bool binds = type == ZMQ_ROUTER || strchr(endpoint, '*') || strstr(endpoint, "//[::]");
    if (!(*out = z->socket(p->context, type)))
        return kv_fail(p, endpoint, e);
    z->setsockopt(*out, ZMQ_LINGER, &linger, sizeof linger);
    z->setsockopt(*out, ZMQ_IPV6, &six, sizeof six);
    z->setsockopt(*out, ZMQ_MAXMSGSIZE, &longest, sizeof longest);
    if (type == ZMQ_ROUTER)
        z->setsockopt(*out, ZMQ_SNDHWM, &replies, sizeof replies);
    if ((binds ? z->bind : z->connect)(*out, endpoint))
        return kv_fail(p, endpoint, e);
    if (!binds || z->getsockopt(*out, ZMQ_LAST_ENDPOINT, at, &size))
        snprintf(at, size, "%s", endpoint);
    return 0;
}

static int kv_begin(struct kv_process *p, struct err *e)
{
    const struct confine_calls calls = {.calls = kv_calls, .count = sizeof kv_calls / sizeof *kv_calls};
    char at[256] = "", replay[256] = "";
    if (zmq_open(&p->z, e))
        return -1;
    confine_files(&(struct confine_files){
        .rules = kv_rules, .count = sizeof kv_rules / sizeof *kv_rules, .network = true});
    if (!confine_calls(&calls, 1, NULL))
        log_warn("this kernel takes no seccomp filter: events are published with the rights of this program");
    if (!(p->context = p->z.ctx_new()))
        return kv_fail(p, p->o->endpoint, e);
    if (kv_socket(p, &p->pub, ZMQ_PUB, p->o->endpoint, at, sizeof at, e) ||
        (p->o->replay && kv_socket(p, &p->router, ZMQ_ROUTER, p->o->replay, replay, sizeof replay, e)))
        return -1;
    log_info("KV events are at %s%s%s", at, *replay ? ", and again at " : "", replay);
    return 0;
}

static struct kv_topic *kv_topic(struct kv_process *p, const char *name, size_t n)
{
    for (struct kv_topic *t = p->topics; t; t = t->after)
        if (strlen(t->name) == n && !memcmp(t->name, name, n))
            return t;
    struct kv_topic *t = mem_zalloc(1, sizeof *t);
    if (!t || !(t->name = mem_strndup(name, n)) ||
        (p->router && !(t->kept = mem_zalloc(KV_KEPT, sizeof *t->kept)))) {
        mem_free(t ? t->name : NULL);
        mem_free(t);
        return NULL;
    }
    *p->end = t;
    p->end = &t->after;
    return t;
}

static void kv_drop(struct kv_topic *t)
{
    struct kv_kept *old = &t->kept[t->first++ % KV_KEPT];
    t->bytes -= old->n;
    mem_free(old->data);
    *old = (struct kv_kept){0};
}

/* Keeps a message for replay. */
static void kv_keep(struct kv_topic *t, const void *data, size_t n)
{
    while (t->first < t->next && (t->next - t->first >= KV_KEPT || t->bytes + n > KV_KEPT_BYTES))
        kv_drop(t);
    void *copy = mem_alloc(n, 1);
    if (!copy) { /* there is a gap: what is before it is of no use */
        while (t->first < t->next)
            kv_drop(t);
        t->first = t->next + 1;
        return;
    }
    memcpy(copy, data, n);
    t->kept[t->next % KV_KEPT] = (struct kv_kept){copy, n};
    t->bytes += n;
}

static void kv_number(uint64_t number, uint8_t out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(number >> (56 - 8 * i));
}

/* A packet of the server: the model's name, which ends with a 0, and the events. */
static void kv_publish(struct kv_process *p, size_t n)
{
    const char *end = memchr(p->packet, 0, n);
    if (!end)
        return;
    char topic[KV_NAME + 300];
    uint8_t number[8];
    const char *events = end + 1;
    size_t bytes = n - (size_t)(events - p->packet);
    int length = snprintf(topic, sizeof topic, "kv@%s@%s", p->o->host, p->packet);
    struct kv_topic *t = length < (int)sizeof topic ? kv_topic(p, topic, (size_t)length) : NULL;
    if (!t)
        return;
    kv_number(t->next, number);
    p->z.send(p->pub, topic, (size_t)length, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    p->z.send(p->pub, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    p->z.send(p->pub, events, bytes, ZMQ_DONTWAIT);
    if (p->router)
        kv_keep(t, events, bytes);
    t->next++;
}

static bool kv_more(const struct kv_process *p)
{
    int more = 0;
    size_t n = sizeof more;
    return !p->z.getsockopt(p->router, ZMQ_RCVMORE, &more, &n) && more;
}

static void kv_reply(const struct kv_process *p, const void *client, size_t n, uint64_t number,
                     const void *data, size_t bytes)
{
    uint8_t text[8];
    kv_number(number, text);
    p->z.send(p->router, client, n, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    p->z.send(p->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    p->z.send(p->router, text, sizeof text, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    p->z.send(p->router, data, bytes, ZMQ_DONTWAIT);
}

/* A request at the replay endpoint: [client, "", number] or [client, "", number, topic]. */
static void kv_replay(const struct kv_process *p)
{
    enum { CLIENT, EMPTY, NUMBER, TOPIC, FRAMES };
    struct {
        uint8_t data[KV_NAME];
        int n;
    } f[FRAMES] = {0};
    uint8_t ignored[1];
    int count = 0;
    do {
        if (count < FRAMES)
            f[count].n = p->z.recv(p->router, f[count].data, sizeof f[count].data, ZMQ_DONTWAIT);
        else
            p->z.recv(p->router, ignored, sizeof ignored, ZMQ_DONTWAIT);
        if (count < FRAMES && (f[count].n < 0 || f[count].n > (int)sizeof f[count].data))
            f[count].n = 0; /* it was cut */
        count++;
    } while (kv_more(p));
    if (count < TOPIC || count > FRAMES || !f[CLIENT].n || f[EMPTY].n || f[NUMBER].n != 8)
        return;
    uint64_t from = 0;
    for (int i = 0; i < 8; i++)
        from = from << 8 | f[NUMBER].data[i];
    const struct kv_topic *t = p->topics;
    while (t && count == FRAMES &&
           (strlen(t->name) != (size_t)f[TOPIC].n || memcmp(t->name, f[TOPIC].data, strlen(t->name)) != 0))
        t = t->after;
    for (uint64_t i = t && from > t->first ? from : t ? t->first : 0; t && i < t->next; i++)
        kv_reply(p, f[CLIENT].data, (size_t)f[CLIENT].n, i, t->kept[i % KV_KEPT].data,
                 t->kept[i % KV_KEPT].n);
    kv_reply(p, f[CLIENT].data, (size_t)f[CLIENT].n, UINT64_MAX, "", 0);
}

static void kv_run(struct kv_process *p, int fd)
{
    struct zmq_item items[] = {{.fd = fd, .events = 1}, {.socket = p->router, .events = 1}};
    for (size_t n = 1; n;) {
        int passed;
        if (p->z.poll(items, p->router ? 2 : 1, -1) < 0 && p->z.error() != EINTR)
            return;
        if (items[0].revents && (n = child_take(fd, p->packet, sizeof p->packet, &passed)))
            kv_publish(p, n);
        if (p->router && items[1].revents)
            kv_replay(p);
    }
}

static void kv_child(int fd, void *arg)
{
    struct kv_process *p = mem_zalloc(1, sizeof *p);
    struct kv_began began = {0};
    struct err e = {0};
    if (!p)
        return;
    p->o = arg;
    p->end = &p->topics;
    kv_begin(p, &e);
    began.code = e.code;
    snprintf(began.text, sizeof began.text, "%s", e.text);
    child_ready(fd);
    child_send(fd, &began, sizeof began, -1);
    if (e.code)
        return;
    kv_run(p, fd);
    p->z.close(p->pub); /* what was sent goes out, within the time of ZMQ_LINGER */
    if (p->router)
        p->z.close(p->router);
    p->z.ctx_term(p->context);
}

/* ---- the server's side ---- */

struct kv_publisher {
    struct child child;
    atomic_bool failed;
};

static int kv_check_endpoint(const char *option, const char *endpoint, struct err *e)
{
    const char *host = endpoint + 6, *colon = strrchr(endpoint, ':');
    if (strncmp(endpoint, "tcp://", 6) != 0 || colon <= host || !colon[1] || strlen(endpoint) > 250)
        return err_set(e, ERR_USAGE, "%s takes an endpoint such as tcp://*:5557, not '%s'", option,
                       log_safe(endpoint));
    return 0;
}

int kv_publisher_start(struct kv_publisher **out, const struct kv_publisher_options *o, struct err *e)
{
    struct kv_began began;
    int passed;
    if (kv_check_endpoint("--kv-events", o->endpoint, e) ||
        (o->replay && kv_check_endpoint("--kv-events-replay", o->replay, e)))
        return -1;
    struct kv_publisher *p = mem_zalloc(1, sizeof *p);
    if (!p)
        return err_memory(e, "the process that publishes events", sizeof *p);
    if (child_start(&p->child, "quern-events", "publishes events", kv_child, (void *)(uintptr_t)o, e)) {
        mem_free(p);
        return -1;
    }
    struct timeval patience = {.tv_sec = 1};
    setsockopt(p->child.fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (child_take(p->child.fd, &began, sizeof began, &passed) != sizeof began)
        err_set(e, ERR_RESOURCE, "the process that publishes events has ended");
    else if (began.code)
        err_set(e, began.code, "%.*s", (int)sizeof began.text - 1, began.text);
    *out = p;
    if (!e->code)
        return 0;
    kv_publisher_stop(p);
    *out = NULL;
    return -1;
}

void kv_publisher_send(struct kv_publisher *p, const char *model, const void *events, size_t n)
{
    size_t name = strlen(model) + 1;
    struct iovec parts[] = {{(void *)(uintptr_t)model, name}, {(void *)(uintptr_t)events, n}};
    const struct msghdr h = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = -1;
    if (atomic_load(&p->failed))
        return;
    if (name <= KV_NAME && name + n <= KV_PACKET)
        do
            sent = sendmsg(p->child.fd, &h, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
    if (sent < 0 && !atomic_exchange(&p->failed, true))
        log_error("KV events are no longer published: the process for them has ended or does not read");
}

void kv_publisher_stop(struct kv_publisher *p)
{
    if (p)
        child_stop(&p->child);
    mem_free(p);
}
