#define _GNU_SOURCE
#include "serve/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

void sandbox_allow(struct sandbox *s, const char *path, enum sandbox_access access)
{
    if (path && s->count < SANDBOX_PATHS)
        s->paths[s->count++] = (struct sandbox_path){path, access};
}

/* ---- files ---- */

#define FS_READ     (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_REMOVE   (LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR)
#define FS_SOCKET   (FS_REMOVE | LANDLOCK_ACCESS_FS_MAKE_SOCK)
#define FS_TRUNCATE ((uint64_t)1 << 14) /* of the third version */
#define FS_ON_FILES (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE)
#define FS_WRITE                                                                                             \
    (FS_READ | FS_REMOVE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |                     \
     LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER | FS_TRUNCATE)

/* All rights of a version of Landlock: each of the first brought some more. */
static uint64_t files_handled(long version)
{
    uint64_t all = ((uint64_t)LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
    return all | (version > 1 ? LANDLOCK_ACCESS_FS_REFER : 0) | (version > 2 ? FS_TRUNCATE : 0);
}

static void files_rule(int ruleset, const struct sandbox_path *p, uint64_t handled)
{
    static const uint64_t rights[] = {
        [SANDBOX_READ] = FS_READ, [SANDBOX_WRITE] = FS_WRITE, [SANDBOX_SOCKET] = FS_SOCKET};
    struct stat st;
    int fd = open(p->path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return;
    uint64_t access = rights[p->access] & handled;
    if (!fstat(fd, &st) && !S_ISDIR(st.st_mode))
        access &= FS_ON_FILES;
    struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
    if (access)
        syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(fd);
}

static bool files_restrict(const struct sandbox *s)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1)
        return false;
    struct landlock_ruleset_attr attr = {.handled_access_fs = files_handled(version)};
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    if (ruleset < 0)
        return false;
    for (size_t i = 0; i < s->count; i++)
        files_rule(ruleset, &s->paths[i], attr.handled_access_fs);
    bool done = !syscall(SYS_landlock_restrict_self, ruleset, 0);
    close(ruleset);
    return done;
}

/* ---- calls ---- */

/* What would start another program, look into another process, or change the machine. */
static const uint32_t calls_refused[] = {
    SYS_execve,
    SYS_execveat,
    SYS_fork,
    SYS_vfork,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_setns,
    SYS_unshare,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_personality,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_open_by_handle_at,
    SYS_quotactl,
    SYS_mknod,
    SYS_mknodat,
    SYS_move_pages,
    SYS_pidfd_getfd,
    SYS_adjtimex,
    SYS_clock_adjtime,
};

#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ALLOW         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define LOAD(field)   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))

/* The filter: another architecture dies; clone3 hides its flags in memory, so libc is told that there is none and takes
 * clone, which may make threads and nothing else; then the list. */
static size_t calls_filter(struct sock_filter *f)
{
    enum { X32 = 0x40000000 };
    const struct sock_filter head[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1),
        REFUSE(EPERM),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        REFUSE(ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
        LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        ALLOW,
        REFUSE(EPERM),
    };
    size_t n = 0;
    for (; n < sizeof head / sizeof *head; n++)
        f[n] = head[n];
    for (size_t i = 0; i < sizeof calls_refused / sizeof *calls_refused; i++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls_refused[i], 0, 1);
        f[n++] = (struct sock_filter)REFUSE(EPERM);
    }
    f[n++] = (struct sock_filter)ALLOW;
    return n;
}

static bool calls_restrict(void)
{
    struct sock_filter filter[32 + 2 * sizeof calls_refused / sizeof *calls_refused];
    struct sock_fprog program = {.len = (unsigned short)calls_filter(filter), .filter = filter};
    return !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

const char *sandbox_enter(const struct sandbox *s)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return "nothing";
    bool files = files_restrict(s), calls = calls_restrict();
    return files && calls ? "files and calls" : files ? "files" : calls ? "calls" : "nothing";
}
