#define _GNU_SOURCE
#include "serve/sandbox.h"

#include "base/calls.h"
#include "base/confine.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

/* ---- remaining rights, by feature ---- */

static const uint16_t server_calls[] = {
    /* files: Landlock decides which */
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_close,
    SYS_lseek, SYS_fcntl, SYS_dup, SYS_dup2, SYS_dup3, SYS_open, SYS_openat, SYS_stat, SYS_lstat, SYS_fstat,
    SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_access, SYS_faccessat, SYS_readlink,
    SYS_readlinkat, SYS_getcwd, SYS_getdents64, SYS_fadvise64, SYS_readahead, SYS_flock, SYS_fsync,
    SYS_fdatasync, SYS_ftruncate, SYS_fallocate, SYS_mkdir, SYS_mkdirat, SYS_rmdir, SYS_unlink, SYS_unlinkat,
    SYS_rename, SYS_renameat, SYS_renameat2, SYS_umask, SYS_sendfile,
    /* connections that came in */
    SYS_listen, SYS_accept, SYS_accept4, SYS_recvfrom, SYS_recvmsg, SYS_sendto, SYS_sendmsg, SYS_shutdown,
    SYS_getsockopt, SYS_setsockopt, SYS_getsockname, SYS_getpeername,
    /* waiting */
    SYS_poll, SYS_ppoll, SYS_select, SYS_pselect6, SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl,
    SYS_epoll_wait, SYS_epoll_pwait, SYS_eventfd, SYS_eventfd2, SYS_pipe, SYS_pipe2, SYS_timerfd_create,
    SYS_timerfd_settime, SYS_timerfd_gettime, SYS_signalfd, SYS_signalfd4, SYS_nanosleep, SYS_clock_nanosleep,
    SYS_pause, SYS_wait4,
    /* memory */
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_mincore, SYS_msync, SYS_mlock,
    SYS_mlock2, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_mbind, SYS_get_mempolicy, SYS_set_mempolicy,
    SYS_membarrier, SYS_memfd_create,
    /* threads */
    SYS_futex, SYS_set_robust_list, SYS_get_robust_list, SYS_set_tid_address, SYS_rseq, SYS_arch_prctl,
    SYS_prctl, SYS_gettid, SYS_getpid, SYS_getppid, SYS_sched_yield, SYS_sched_getaffinity,
    SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_getscheduler, SYS_sched_get_priority_max,
    SYS_sched_get_priority_min, SYS_getpriority, SYS_setpriority, SYS_getcpu, SYS_exit, SYS_exit_group,
    /* signals */
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend, SYS_sigaltstack, SYS_tgkill, SYS_restart_syscall, SYS_alarm, SYS_setitimer,
    SYS_getitimer,
    /* facts */
    SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_time, SYS_times, SYS_getrusage, SYS_getrandom,
    SYS_sysinfo, SYS_uname, SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getuid, SYS_geteuid, SYS_getgid,
    SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_getpgrp, SYS_getpgid, SYS_capget};
/* clone makes threads and nothing else; clone3 is refused as unknown, so that libc takes clone. Landlock does not guard
 * the times of files: they are changed by descriptor only, without a path. */
static const struct confine_call server_tested[] = {
    {SYS_clone, 1, true, CLONE_THREAD}, {SYS_socketpair, 1, false, AF_UNIX}, {SYS_utimensat, 2, false, 0},
    {SYS_ioctl, 2, false, FIONBIO},     {SYS_ioctl, 2, false, FIONREAD},     {SYS_ioctl, 2, false, TCGETS},
    {SYS_ioctl, 2, false, TIOCGWINSZ},
};

/* The driver talks to its devices by ioctl, and offers descriptors to other processes over a socket that has no file. */
static const uint16_t gpu_calls[] = {SYS_ioctl,        SYS_bind,          SYS_sched_setscheduler,
                                     SYS_timer_create, SYS_timer_settime, SYS_timer_delete};
static const struct confine_call gpu_tested[] = {{SYS_socket, 1, false, AF_UNIX}};

static const struct confine_rule server_rules[] = {
    {"/usr/lib", CONFINE_READ},
    {"/usr/lib64", CONFINE_READ},
    {"/lib", CONFINE_READ},
    {"/lib64", CONFINE_READ},
    {"/etc/ld.so.cache", CONFINE_READ},
    {"/etc/localtime", CONFINE_READ},
    {"/usr/share/zoneinfo", CONFINE_READ},
    {"/proc", CONFINE_READ}, /* Landlock protects other processes' memory and environment */
    {"/sys/devices/system", CONFINE_READ},
    {"/sys/fs/cgroup", CONFINE_READ},
    {"/sys/kernel/mm", CONFINE_READ},
    {"/dev/null", CONFINE_DEVICE},
    {"/dev/urandom", CONFINE_READ},
};

static const struct confine_rule gpu_rules[] = {
    {"/sys", CONFINE_READ},
    {"/proc/self/task", CONFINE_DEVICE}, /* it names its threads there, and cuInit fails where it may not */
    {"/dev/nvidia-caps", CONFINE_DEVICE},
    {"/dev/nvidia-caps-imex-channels", CONFINE_DEVICE},
    {"/dev/dxg", CONFINE_DEVICE},
    {"/dev/zero", CONFINE_DEVICE},
    {"/usr/share/nvidia", CONFINE_READ},
    {"/etc/nvidia", CONFINE_READ},
    {"/usr/local/lib", CONFINE_READ},
    {"/usr/local/cuda", CONFINE_READ},
    {"/usr/local/nvidia", CONFINE_READ},
    {"/opt/cuda", CONFINE_READ},
    {"/run/opengl-driver", CONFINE_READ},
    {"/nix/store", CONFINE_READ},
};

#define LIST(array) (array), sizeof(array) / sizeof *(array)

static const struct sandbox_right {
    const char *open;                                        /* for the log line; NULL: not mentioned */
    enum sandbox_way { WAY_NONE, WAY_BROKER, WAY_RULE } way; /* how its paths are opened */
    enum broker_kind kind;                                   /* WAY_BROKER */
    enum confine_access access;                              /* WAY_RULE */
    const struct confine_rule *rules;                        /* (rule_count): paths that it always needs */
    size_t rule_count;
    struct confine_calls calls;
} sandbox_rights[SANDBOX_FEATURES] = {
    [SANDBOX_SERVER] = {NULL, WAY_NONE, 0, 0, LIST(server_rules), {LIST(server_calls), LIST(server_tested)}},
    [SANDBOX_KEYS] = {NULL, WAY_BROKER, BROKER_FILE, 0, NULL, 0, {0}},
    [SANDBOX_CERTIFICATE] = {NULL, WAY_BROKER, BROKER_FILE, 0, NULL, 0, {0}},
    [SANDBOX_MODELS] = {NULL, WAY_BROKER, BROKER_MODEL, 0, NULL, 0, {0}},
    [SANDBOX_CACHE] = {"the cache's folder", WAY_RULE, 0, CONFINE_WRITE, NULL, 0, {0}},
    [SANDBOX_STATE] = {"the state folder", WAY_RULE, 0, CONFINE_WRITE, NULL, 0, {0}},
    [SANDBOX_SOCKET] = {NULL, WAY_BROKER, BROKER_SOCKET, 0, NULL, 0, {0}},
    [SANDBOX_GPU] = {"the GPU driver's devices, libraries and ioctls",
                     WAY_RULE,
                     0,
                     CONFINE_READ,
                     LIST(gpu_rules),
                     {LIST(gpu_calls), LIST(gpu_tested)}},
    [SANDBOX_GPU_CACHE] = {NULL, WAY_RULE, 0, CONFINE_WRITE, NULL, 0, {0}},
};

/* ---- gathering ---- */

static void sandbox_row(struct sandbox *s, const char *path, enum broker_kind kind)
{
    void *rows = mem_more(s->rows, s->row_count, &s->row_room, sizeof *s->rows);
    char *own = rows ? mem_strdup(path) : NULL;
    s->rows = rows ? rows : s->rows;
    s->failed |= !own;
    if (own)
        s->rows[s->row_count++] = (struct broker_row){own, kind};
}

static void sandbox_rule(struct sandbox *s, const char *path, enum confine_access access)
{
    void *rules = mem_more(s->rules, s->rule_count, &s->rule_room, sizeof *s->rules);
    char *own = rules ? mem_strdup(path) : NULL;
    s->rules = rules ? rules : s->rules;
    s->failed |= !own;
    if (own)
        s->rules[s->rule_count++] = (struct confine_rule){own, access};
}

/* The nodes of all cards; those of boards with a card of their own have other names. */
static void sandbox_devices(struct sandbox *s)
{
    static const char *const starts[] = {"nvidia", "nvhost", "nvmap", "nvgpu"};
    DIR *d = opendir("/dev");
    for (struct dirent *x; d && (x = readdir(d));) {
        char path[sizeof "/dev/" + NAME_MAX];
        snprintf(path, sizeof path, "/dev/%s", x->d_name);
        for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
            if (!strncmp(x->d_name, starts[i], strlen(starts[i])))
                sandbox_rule(s, path, CONFINE_DEVICE);
    }
    if (d)
        closedir(d);
}

void sandbox_use(struct sandbox *s, enum sandbox_feature feature, const char *path)
{
    const struct sandbox_right *r = &sandbox_rights[feature];
    if (!s->used[feature]) {
        for (size_t i = 0; i < r->rule_count; i++)
            sandbox_rule(s, r->rules[i].path, r->rules[i].access);
        if (feature == SANDBOX_GPU)
            sandbox_devices(s);
    }
    s->used[feature] = true;
    if (path && r->way == WAY_BROKER)
        sandbox_row(s, path, r->kind);
    else if (path && r->way == WAY_RULE)
        sandbox_rule(s, path, r->access);
}

void sandbox_free(struct sandbox *s)
{
    if (s->broker)
        file_set_opener(NULL);
    broker_stop(s->broker);
    for (size_t i = 0; i < s->row_count; i++)
        mem_free(s->rows[i].path);
    for (size_t i = 0; i < s->rule_count; i++)
        mem_free((char *)(uintptr_t)s->rules[i].path);
    mem_free(s->rows);
    mem_free(s->rules);
    *s = (struct sandbox){0};
}

/* ---- closing ---- */

static int sandbox_open(void *arg, const char *path, bool folder)
{
    return broker_ask(arg, folder ? BROKER_LIST : BROKER_OPEN, path);
}

static int sandbox_remove(void *arg, const char *path)
{
    return broker_ask(arg, BROKER_REMOVE, path);
}

static bool sandbox_calls(struct sandbox *s)
{
    struct confine_calls lists[SANDBOX_FEATURES];
    size_t n = 0;
    int listener = -1;
    for (int i = 0; i < SANDBOX_FEATURES; i++)
        if (s->used[i] && sandbox_rights[i].calls.count)
            lists[n++] = sandbox_rights[i].calls;
    bool done = confine_calls(lists, n, log_is_on(LOG_DEBUG) ? &listener : NULL);
    if (listener >= 0)
        broker_hear(s->broker, listener);
    return done;
}

/* "a, b and c" of those whose bit is set. */
static void sandbox_words(char *out, size_t size, const char *const *words, size_t count, uint32_t set)
{
    size_t n = 0, left = (size_t)__builtin_popcount(set);
    for (size_t i = 0; i < count && n < size; i++)
        if (set >> i & 1) {
            n += (size_t)snprintf(out + n, size - n, "%s%s", words[i],
                                  left > 2    ? ", "
                                  : left == 2 ? " and "
                                              : "");
            left--;
        }
}

/* landlock: its version, 0 = none. The filter leaves no socket to connect; Landlock supports ports since
 * version 4. */
static void sandbox_report(const struct sandbox *s, int landlock, bool calls, int unreached)
{
    static const char *const parts[] = {"files", "calls", "network"};
    bool files = landlock && !unreached;
    uint32_t closed = (files ? 1U : 0) | (calls ? 2U : 0) | (calls || landlock > 3 ? 4U : 0);
    const char *exceptions[SANDBOX_FEATURES];
    uint32_t count = 0;
    char shut[64] = "nothing", open[64] = "", left[128] = "";
    for (int i = 0; i < SANDBOX_FEATURES; i++)
        if (s->used[i] && sandbox_rights[i].open)
            exceptions[count++] = sandbox_rights[i].open;
    sandbox_words(shut, sizeof shut, parts, 3, closed);
    sandbox_words(open, sizeof open, parts, 3, ~closed & 7);
    sandbox_words(left, sizeof left, exceptions, count, (1U << count) - 1);
    log_write(closed == 7 ? LOG_INFO : LOG_WARN, "sandbox: closed: %s%s%s%s%s%s%s", shut,
              count ? "; left open: " : "", left, open[0] ? "; open: " : "", open,
              files      ? ""
              : landlock ? "; threads of libraries could not be confined"
                         : "; this kernel offers no Landlock",
              calls ? "" : "; this kernel takes no seccomp filter");
}

int sandbox_enter(struct sandbox *s, struct err *e)
{
    static struct file_opener opener;
    sandbox_use(s, SANDBOX_SERVER, NULL);
    if (s->failed)
        return err_memory(e, "the sandbox", s->row_count * sizeof *s->rows);
    if (broker_start(&s->broker, s->rows, s->row_count, e))
        return -1;
    opener = (struct file_opener){sandbox_open, sandbox_remove, s->broker};
    file_set_opener(&opener);
    tzset(); /* reads /etc/localtime now */
    int unreached = 0, landlock = confine_files(&(struct confine_files){
                           .rules = s->rules, .count = s->rule_count, .others = &unreached});
    sandbox_report(s, landlock, sandbox_calls(s), unreached);
    return 0;
}
