#define _GNU_SOURCE
#include "base/confine.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- files, ports, signals ---- */

/* Constants that the system's headers may lack. */
#define FS_TRUNCATE ((uint64_t)1 << 14) /* of version 3 */
#define FS_IOCTL    ((uint64_t)1 << 15) /* of version 5 */
enum { NET_BIND_CONNECT = 3, SCOPE_ABSTRACT_SIGNAL = 3 };

struct landlock_attr {
    uint64_t fs, net, scoped;
};

#define FS_READ     (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_ON_FILES (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL)
#define FS_WRITE                                                                                             \
    (FS_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_DIR |   \
     LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REFER |             \
     FS_TRUNCATE)

static const uint64_t fs_rights[] = {
    [CONFINE_READ] = FS_READ,
    [CONFINE_WRITE] = FS_WRITE,
    [CONFINE_DEVICE] = FS_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL,
    [CONFINE_REMOVE] = LANDLOCK_ACCESS_FS_REMOVE_FILE,
    [CONFINE_LINKS] = FS_WRITE | LANDLOCK_ACCESS_FS_MAKE_SYM,
};

/* All rights that a version handles. */
static struct landlock_attr files_handled(long version)
{
    uint64_t all = ((uint64_t)LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
    return (struct landlock_attr){
        .fs = all | (version > 1 ? LANDLOCK_ACCESS_FS_REFER : 0) | (version > 2 ? FS_TRUNCATE : 0) |
              (version > 4 ? FS_IOCTL : 0),
        .net = version > 3 ? NET_BIND_CONNECT : 0,
        .scoped = version > 5 ? SCOPE_ABSTRACT_SIGNAL : 0,
    };
}

static void files_rule(int ruleset, const struct confine_rule *r, uint64_t handled)
{
    struct stat st;
    int fd = open(r->path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return;
    uint64_t access = fs_rights[r->access] & handled;
    if (!fstat(fd, &st) && !S_ISDIR(st.st_mode))
        access &= FS_ON_FILES;
    struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
    if (access)
        syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(fd);
}

/* ---- threads that run already (of MPI, for example): each confines itself in a signal handler ---- */

enum { OTHERS_WAIT = 500 }; /* milliseconds */
static atomic_int others_ruleset, others_done;

static void others_handler(int number)
{
    int kept = errno;
    (void)number;
    if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
        !syscall(SYS_landlock_restrict_self, atomic_load(&others_ruleset), 0))
        atomic_fetch_add(&others_done, 1);
    errno = kept;
}

/* Returns how many could not be reached: they block the signal. The handler stays, in case they take it later. */
static int files_others(int ruleset)
{
    const int number = SIGRTMAX - 1;
    const pid_t process = getpid();
    struct sigaction own = {.sa_handler = others_handler, .sa_flags = SA_RESTART};
    DIR *d = opendir("/proc/self/task");
    int asked = 0;
    atomic_store(&others_ruleset, ruleset);
    atomic_store(&others_done, 0);
    if (!d || sigaction(number, &own, NULL)) {
        if (d)
            closedir(d);
        return 1;
    }
    for (struct dirent *x; (x = readdir(d));) {
        long thread = strtol(x->d_name, NULL, 10);
        if (thread > 0 && thread != syscall(SYS_gettid))
            asked += !syscall(SYS_tgkill, process, thread, number);
    }
    closedir(d);
    for (int i = 0; i < OTHERS_WAIT && atomic_load(&others_done) < asked; i++)
        usleep(1000);
    return asked - atomic_load(&others_done);
}

int confine_files(const struct confine_files *f)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return 0;
    struct landlock_attr attr = files_handled(version);
    if (f->read_all)
        attr.fs &= ~(uint64_t)FS_READ;
    if (f->network)
        attr.net = 0;
    /* an older kernel refuses members that it does not know */
    size_t size = version > 5 ? sizeof attr : version > 3 ? 2 * sizeof attr.fs : sizeof attr.fs;
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
    if (ruleset < 0)
        return 0;
    for (size_t i = 0; i < f->count; i++)
        files_rule(ruleset, &f->rules[i], attr.fs);
    if (f->others) /* first: afterwards this thread may not signal them */
        *f->others = files_others(ruleset);
    bool done = !syscall(SYS_landlock_restrict_self, ruleset, 0);
    close(ruleset);
    return done ? (int)version : 0;
}

/* ---- calls ---- */

#if defined(__aarch64__)
#define CALLS_ARCH AUDIT_ARCH_AARCH64
#else
#define CALLS_ARCH AUDIT_ARCH_X86_64
#endif
enum { CALLS_X32 = 0x40000000, CALLS_NEW = 424 /* the first number of Linux 5.1 */ };

int confine_errno(uint32_t number)
{
    return number >= CALLS_NEW && number < CALLS_X32 ? ENOSYS : EPERM;
}

#define RETURN(what)               BPF_STMT(BPF_RET | BPF_K, what)
#define LOAD(at)                   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(at))
#define JUMP(test, value, yes, no) BPF_JUMP(BPF_JMP | (test) | BPF_K, value, yes, no)
#define NUMBER                     offsetof(struct seccomp_data, nr)

enum { FILTER_HEAD = 4, FILTER_CALL = 2, FILTER_TESTED = 5, FILTER_TAIL = 5 };

static size_t filter_call(struct sock_filter *f, uint32_t number)
{
    f[0] = (struct sock_filter)JUMP(BPF_JEQ, number, 0, 1);
    f[1] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    return FILTER_CALL;
}

/* The number is loaded before and after it. The low half of an argument is what the kernel looks at, too. */
static size_t filter_tested(struct sock_filter *f, const struct confine_call *c)
{
    const struct sock_filter code[FILTER_TESTED] = {
        JUMP(BPF_JEQ, c->number, 0, 4),
        LOAD(offsetof(struct seccomp_data, args) + 8 * (size_t)(c->arg - 1)),
        JUMP(c->bits ? BPF_JSET : BPF_JEQ, c->value, 0, 1),
        RETURN(SECCOMP_RET_ALLOW),
        LOAD(NUMBER),
    };
    for (size_t i = 0; i < FILTER_TESTED; i++)
        f[i] = code[i];
    return FILTER_TESTED;
}

static size_t filter_make(struct sock_filter *f, const struct confine_calls *lists, size_t count, bool hear)
{
    /* another architecture has other numbers */
    const struct sock_filter head[FILTER_HEAD] = {
        LOAD(offsetof(struct seccomp_data, arch)),
        JUMP(BPF_JEQ, CALLS_ARCH, 1, 0),
        RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(NUMBER),
    };
    const struct sock_filter tail[FILTER_TAIL] = {
        JUMP(BPF_JGE, CALLS_X32, 2, 0),    JUMP(BPF_JGE, CALLS_NEW, 0, 1), RETURN(SECCOMP_RET_ERRNO | ENOSYS),
        RETURN(SECCOMP_RET_ERRNO | EPERM), RETURN(SECCOMP_RET_USER_NOTIF),
    };
    size_t n = 0;
    for (; n < FILTER_HEAD; n++)
        f[n] = head[n];
    for (size_t l = 0; l < count; l++) {
        for (size_t i = 0; i < lists[l].count; i++)
            n += filter_call(f + n, lists[l].calls[i]);
        for (size_t i = 0; i < lists[l].tested_count; i++)
            n += filter_tested(f + n, &lists[l].tested[i]);
    }
    for (size_t i = hear ? FILTER_TAIL - 1 : 0; i < (hear ? FILTER_TAIL : FILTER_TAIL - 1); i++)
        f[n++] = tail[i];
    return n;
}

static bool filter_set(const struct confine_calls *lists, size_t count, struct sock_filter *f, int *listener)
{
    struct sock_fprog program = {.len = (unsigned short)filter_make(f, lists, count, listener), .filter = f};
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                     SECCOMP_FILTER_FLAG_TSYNC |
                         (listener ? SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC_ESRCH : 0),
                     &program);
    if (listener)
        *listener = (int)r;
    return listener ? r >= 0 : r == 0;
}

bool confine_calls(const struct confine_calls *lists, size_t count, int *listener)
{
    size_t most = FILTER_HEAD + FILTER_TAIL;
    for (size_t l = 0; l < count; l++)
        most += FILTER_CALL * lists[l].count + FILTER_TESTED * lists[l].tested_count;
    struct sock_filter *f = mem_alloc(most, sizeof *f);
    bool done = f && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
                ((listener && filter_set(lists, count, f, listener)) || filter_set(lists, count, f, NULL));
    mem_free(f);
    return done;
}
