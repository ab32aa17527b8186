#define _GNU_SOURCE
#include "serve/broker.h"

#include "base/child.h"
#include "base/calls.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct broker {
    struct child child;
    bool gone; /* guarded by the mutex, as is the turn on the socket */
    pthread_mutex_t mutex;
};

enum { BROKER_HEAR = BROKER_REMOVE + 1, BROKER_CALLS = 1024 };

struct broker_message {
    int32_t code; /* request: the operation; reply: 0 or errno */
    char path[PATH_MAX];
};

/* ---- rows ---- */

/* Without "./" in front and slashes behind. */
static size_t path_trim(const char **path)
{
    while (!strncmp(*path, "./", 2))
        for (*path += 2; **path == '/';)
            ++*path;
    size_t n = strlen(*path);
    while (n > 1 && (*path)[n - 1] == '/')
        n--;
    return n;
}

static bool path_climbs(const char *path)
{
    for (const char *at = path; (at = strstr(at, "..")); at += 2)
        if ((at == path || at[-1] == '/') && (!at[2] || at[2] == '/'))
            return true;
    return false;
}

static bool path_ends(const char *path, size_t n, const char *tail)
{
    size_t t = strlen(tail);
    return n > t && !strncmp(path + n - t, tail, t);
}

/* NAME-00001-of-00007.gguf: the other parts have another first number. */
static bool row_has_part(const char *row, size_t n, const char *path, size_t m)
{
    enum { TAIL = sizeof "-00001-of-00007.gguf" - 1, DIGITS = 5 };
    if (n != m || n <= TAIL || !path_ends(row, n, ".gguf"))
        return false;
    const char *a = row + n - TAIL, *b = path + m - TAIL;
    if (strncmp(row, path, n - TAIL + 1) != 0 || strncmp(a + 1 + DIGITS, "-of-", 4) != 0)
        return false;
    return strspn(b + 1, "0123456789") == DIGITS &&
           !strncmp(a + 1 + DIGITS, b + 1 + DIGITS, TAIL - 1 - DIGITS);
}

/* A file of safetensors has its configuration and its tokenizer beside it. */
static bool row_has_text(const char *row, size_t n, const char *path, size_t m)
{
    static const char *const texts[] = {".json", ".jinja", ".model", ".txt", ".tiktoken"};
    const char *slash = memrchr(row, '/', n), *other = memrchr(path, '/', m);
    size_t folder = slash ? (size_t)(slash - row) + 1 : 0;
    if (!path_ends(row, n, ".safetensors") || folder != (other ? (size_t)(other - path) + 1 : 0) ||
        strncmp(row, path, folder) != 0)
        return false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (path_ends(path, m, texts[i]))
            return true;
    return false;
}

/* A GGUF file may have the tower for images beside it: its folder can be listed, and mmproj files in it opened. */
static bool row_has_tower(const char *row, size_t n, enum broker_request request, const char *path, size_t m)
{
    const char *slash = memrchr(row, '/', n), *other = memrchr(path, '/', m);
    size_t folder = slash ? (size_t)(slash - row) : 0, from = other ? (size_t)(other - path) : 0;
    if (!path_ends(row, n, ".gguf"))
        return false;
    if (request == BROKER_LIST) /* the root's slash and "." stand for themselves */
        return !slash ? m == 1 && *path == '.' : m == (folder ? folder : 1) && !strncmp(row, path, m);
    return (slash != NULL) == (other != NULL) && folder == from && !strncmp(row, path, folder) &&
           path_ends(path, m, ".gguf") && memmem(path + from, m - from, "mmproj", 6);
}

bool broker_covers(const struct broker_row *r, enum broker_request request, const char *path)
{
    const char *row = r->path;
    size_t n = path_trim(&row), m = path_trim(&path);
    if ((r->kind == BROKER_SOCKET) != (request == BROKER_REMOVE))
        return false;
    if (n == m && !strncmp(row, path, n))
        return r->kind != BROKER_FILE || request == BROKER_OPEN;
    if (r->kind != BROKER_MODEL)
        return false;
    if (m > n && !strncmp(row, path, n) && (path[n] == '/' || row[n - 1] == '/'))
        return !path_climbs(path + n);
    if (n == 1 && *row == '.' && *path != '/')
        return !path_climbs(path);
    if (row_has_tower(row, n, request, path, m))
        return true;
    return request == BROKER_OPEN && (row_has_part(row, n, path, m) || row_has_text(row, n, path, m));
}

/* ---- messages ---- */

static bool message_send(int fd, int32_t code, const char *path, int pass)
{
    struct broker_message m = {.code = code};
    size_t n = strlen(path);
    if (n >= sizeof m.path)
        return false;
    memcpy(m.path, path, n);
    return child_send(fd, &m, offsetof(struct broker_message, path) + n + 1, pass);
}

/* False: the other end is closed. */
static bool message_take(int fd, struct broker_message *m, int *passed)
{
    size_t got = child_take(fd, m, sizeof *m, passed);
    if (got <= offsetof(struct broker_message, path))
        return false;
    ((char *)m)[got - 1] = 0;
    return true;
}

/* ---- the child ---- */

static int serve_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st))
        return errno;
    return !S_ISSOCK(st.st_mode) ? EACCES : unlink(path) ? errno : 0;
}

/* errno, or 0 and the descriptor to pass. */
static int serve_open(const char *path, bool folder, int *pass)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (folder ? O_DIRECTORY : 0));
    if (fd < 0)
        return errno == ENXIO ? ENODEV : errno; /* a socket */
    if (!fstat(fd, &st) && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
        *pass = fd;
        return 0;
    }
    close(fd);
    return ENODEV;
}

static int serve_request(const struct broker_row *rows, size_t count, const struct broker_message *m,
                         int *pass)
{
    enum broker_request request = (enum broker_request)m->code;
    bool covered = false;
    for (size_t i = 0; i < count && !covered && request <= BROKER_REMOVE; i++)
        covered = broker_covers(&rows[i], request, m->path);
    if (!covered) {
        log_warn("the broker refused %s: the command line does not name it", log_safe(m->path));
        return EACCES;
    }
    return request == BROKER_REMOVE ? serve_remove(m->path)
                                    : serve_open(m->path, request == BROKER_LIST, pass);
}

/* Logs a call that the filter refused, once. False: the listener is closed. */
static bool serve_refusal(int listener, bool seen[BROKER_CALLS])
{
    struct seccomp_notif asked = {0};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
        return errno == EINTR || errno == ENOENT; /* the caller has exited */
    uint32_t number = (uint32_t)asked.data.nr, at = number % BROKER_CALLS;
    if (!seen[at])
        log_debug("the sandbox refused call %u (arguments %#llx, %#llx, %#llx)", number,
                  (unsigned long long)asked.data.args[0], (unsigned long long)asked.data.args[1],
                  (unsigned long long)asked.data.args[2]);
    seen[at] = true;
    struct seccomp_notif_resp reply = {.id = asked.id, .error = -confine_errno(number)};
    return !ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply) || errno == ENOENT;
}

static void serve(int fd, const struct broker_row *rows, size_t count)
{
    bool seen[BROKER_CALLS] = {0};
    struct pollfd on[2] = {{.fd = fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    for (;;) {
        struct broker_message m;
        int pass = -1, passed;
        if (poll(on, 2, -1) < 0 && errno != EINTR)
            return;
        if (on[1].revents && (!(on[1].revents & POLLIN) || !serve_refusal(on[1].fd, seen)))
            on[1].fd = -1;
        if (!on[0].revents)
            continue;
        if (!message_take(fd, &m, &passed))
            return;
        if (m.code == BROKER_HEAR) {
            on[1].fd = passed;
            continue;
        }
        int code = serve_request(rows, count, &m, &pass);
        bool sent = message_send(fd, code, "", pass);
        if (pass >= 0)
            close(pass);
        if (!sent)
            return;
    }
}

static const uint16_t broker_calls[] = {
    SYS_recvmsg,    SYS_sendmsg, SYS_poll,          SYS_open,       SYS_openat,
    SYS_fstat,      SYS_lstat,   SYS_newfstatat,    SYS_unlink,     SYS_close,
    SYS_write,      SYS_writev,  SYS_ioctl,         SYS_exit_group, SYS_rt_sigreturn,
    SYS_futex,      SYS_brk,     SYS_clock_gettime, SYS_mmap,       SYS_munmap,
    SYS_mprotect,   SYS_madvise, SYS_getpid,        SYS_gettid,     SYS_restart_syscall,
    SYS_sigaltstack};

/* The broker's rights: to read, and to remove the server's socket. */
static void broker_confine(const struct broker_row *rows, size_t count)
{
    char folder[PATH_MAX] = "";
    for (size_t i = 0; i < count; i++)
        if (rows[i].kind == BROKER_SOCKET && strlen(rows[i].path) < sizeof folder) {
            memcpy(folder, rows[i].path, strlen(rows[i].path) + 1);
            char *slash = strrchr(folder, '/');
            memcpy(slash ? slash + 1 : folder, slash ? "" : ".", slash ? 1 : 2);
        }
    const struct confine_rule rule = {folder, CONFINE_REMOVE};
    confine_files(&(struct confine_files){.rules = &rule, .count = *folder != 0, .read_all = true});
    const struct confine_calls calls = {.calls = broker_calls,
                                        .count = sizeof broker_calls / sizeof *broker_calls};
    confine_calls(&calls, 1, NULL);
}

struct broker_list {
    const struct broker_row *rows;
    size_t count;
};

static void broker_child(int fd, void *arg)
{
    const struct broker_list *l = arg;
    broker_confine(l->rows, l->count);
    child_ready(fd);
    serve(fd, l->rows, l->count);
}

/* ---- the server's side ---- */

int broker_start(struct broker **out, const struct broker_row *rows, size_t count, struct err *e)
{
    struct broker_list list = {rows, count};
    struct broker *b = mem_zalloc(1, sizeof *b);
    if (!b)
        return err_memory(e, "the broker", sizeof *b);
    if (child_start(&b->child, "quern-broker", "opens files", broker_child, &list, e)) {
        mem_free(b);
        return -1;
    }
    pthread_mutex_init(&b->mutex, NULL);
    *out = b;
    return 0;
}

int broker_ask(struct broker *b, enum broker_request request, const char *path)
{
    struct broker_message m = {.code = EPIPE};
    int passed = -1;
    if (strlen(path) >= sizeof m.path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    pthread_mutex_lock(&b->mutex);
    if (!message_send(b->child.fd, (int32_t)request, path, -1) || !message_take(b->child.fd, &m, &passed)) {
        if (!b->gone)
            log_error("the broker (process %d), which opens files for this server, has ended: keys, "
                      "certificates and "
                      "models stay as they are; restart the server",
                      (int)b->child.pid);
        b->gone = true;
        m.code = EPIPE;
    }
    pthread_mutex_unlock(&b->mutex);
    if (!m.code && request != BROKER_REMOVE && passed < 0)
        m.code = passed == -2 ? EMFILE : EPIPE;
    if (m.code)
        errno = m.code;
    return m.code ? -1 : request == BROKER_REMOVE ? 0 : passed;
}

void broker_hear(struct broker *b, int listener)
{
    pthread_mutex_lock(&b->mutex);
    message_send(b->child.fd, BROKER_HEAR, "", listener);
    pthread_mutex_unlock(&b->mutex);
    close(listener);
}

void broker_stop(struct broker *b)
{
    if (!b)
        return;
    child_stop(&b->child);
    pthread_mutex_destroy(&b->mutex);
    mem_free(b);
}
