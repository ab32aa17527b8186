/* In children: after they have entered the sandbox, what their features need works, and the rest does not. */
#define _GNU_SOURCE
#include "test.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/confine.h"
#include "serve/sandbox.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[32];

static const char *in(const char *name)
{
    static char paths[8][64];
    static int at;
    char *path = paths[at++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (f) {
        fputs(text, f);
        fclose(f);
    }
}

static bool reads(const char *path, const char *text)
{
    struct buf b = {0};
    struct err e = {0};
    bool same = !file_read(path, &b, &e) && !strcmp(b.data ? b.data : "", text);
    buf_free(&b);
    return same;
}

static bool opens(const char *path, int flags)
{
    int fd = open(path, flags, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* In a child: 0, or the number of the line that found something wrong (and it is printed). */
#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "sandbox.c:%d: %s: %s\n", __LINE__, #condition, strerror(errno));                \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)
#define REFUSED(call, why) MUST((call) < 0 && errno == (why))

static void in_child(int (*run)(void))
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(run());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static long landlock; /* its version; inside the kernel does not say */

static bool has_landlock(long version)
{
    return landlock >= version;
}

static void *nothing(void *arg)
{
    return arg;
}

static int child_files(void)
{
    struct sandbox s = {0};
    struct err e = {0};
    sandbox_use(&s, SANDBOX_KEYS, in("keys"));
    sandbox_use(&s, SANDBOX_MODELS, in("models"));
    sandbox_use(&s, SANDBOX_MODELS, "/no/such/folder");
    sandbox_use(&s, SANDBOX_CACHE, in("cache"));
    MUST(!sandbox_enter(&s, &e));
    /* through the broker; by itself it opens nothing */
    MUST(reads(in("keys"), "keys") && reads(in("models/a"), "model") && !reads(in("secret"), "secret"));
    if (has_landlock(1)) {
        MUST(!opens(in("keys"), O_RDONLY) && !opens(in("models/a"), O_RDONLY) &&
             !opens("/etc/passwd", O_RDONLY));
        MUST(!opens(in("keys"), O_WRONLY) && !opens(in("models/new"), O_WRONLY | O_CREAT));
        MUST(!opens("/tmp", O_RDONLY | O_DIRECTORY) && !opens("/etc", O_RDONLY | O_DIRECTORY));
        MUST(!opens("/proc/1/environ", O_RDONLY));
    }
    /* the cache's folder */
    MUST(opens(in("cache/new"), O_RDWR | O_CREAT | O_EXCL) && !rename(in("cache/new"), in("cache/other")));
    MUST(!mkdir(in("cache/below"), 0700) && !unlink(in("cache/other")) && !rmdir(in("cache/below")));
    REFUSED(symlink("/etc/passwd", in("cache/link")), EPERM);
    REFUSED(link(in("keys"), in("cache/link")), EPERM);
    REFUSED(chmod(in("keys"), 0777), EPERM);
    REFUSED(truncate(in("keys"), 0), EPERM);
    /* the machine's facts */
    MUST(opens("/proc/meminfo", O_RDONLY) && opens("/proc/self/cgroup", O_RDONLY) &&
         opens("/dev/null", O_WRONLY));
    MUST(opens("/sys/devices/system/cpu/online", O_RDONLY));
    sandbox_free(&s);
    return 0;
}

static void test_files(void **state)
{
    (void)state;
    in_child(child_files);
}

static int child_calls(void)
{
    struct sandbox s = {0};
    struct err e = {0};
    char *const words[] = {"/bin/true", NULL};
    int pair[2];
    pthread_t t;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int before = socket(AF_INET, SOCK_STREAM, 0);
    MUST(!sandbox_enter(&s, &e));
    REFUSED(execv(words[0], words), EPERM);
    REFUSED(fork(), EPERM);
#ifdef SYS_vfork /* not on ARM64 */
    REFUSED(syscall(SYS_vfork), EPERM);
#endif
    REFUSED(syscall(SYS_clone3, NULL, 0), ENOSYS);
    REFUSED(ptrace(PTRACE_ATTACH, getppid(), 0, 0), EPERM);
    REFUSED(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0), EPERM);
    REFUSED(kill(getppid(), 0), EPERM);
    REFUSED(syscall(SYS_tgkill, getppid(), getppid(), 0), has_landlock(6) ? EPERM : errno);
    REFUSED(mount("a", "b", "tmpfs", 0, NULL), EPERM);
    REFUSED(unshare(CLONE_NEWUSER), EPERM);
    REFUSED(chroot("/tmp"), EPERM);
    REFUSED(setuid(0), EPERM);
    REFUSED(syscall(SYS_bpf, 0, NULL, 0), EPERM);
    REFUSED(syscall(SYS_perf_event_open, NULL, 0, 0, 0, 0), EPERM);
    REFUSED(syscall(SYS_io_uring_setup, 1, NULL), ENOSYS);
    REFUSED(syscall(SYS_keyctl, 0, 0, 0, 0, 0), EPERM);
    REFUSED(syscall(SYS_userfaultfd, 0), EPERM);
    REFUSED(syscall(0x40000000 + SYS_getpid), EPERM); /* x32 */
    REFUSED(ioctl(0, TIOCSTI, ""), EPERM);            /* types into a terminal */
    /* the network */
    const int families[] = {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK, AF_PACKET};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        REFUSED(socket(families[i], SOCK_STREAM, 0), EPERM);
    REFUSED(connect(before, (struct sockaddr *)&to, sizeof to), EPERM);
    to.sin_port = 0;
    REFUSED(bind(before, (struct sockaddr *)&to, sizeof to), EPERM);
    MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    MUST(!pthread_create(&t, NULL, nothing, NULL) && !pthread_join(t, NULL));
    sandbox_free(&s);
    return 0;
}

static void test_calls(void **state)
{
    (void)state;
    in_child(child_calls);
}

/* The GPU's driver keeps its calls and folders; all else is as closed as without. */
static int child_gpu(void)
{
    struct sandbox s = {0};
    struct err e = {0};
    char *const words[] = {"/bin/true", NULL};
    int fd;
    sandbox_use(&s, SANDBOX_GPU, in("libraries"));
    sandbox_use(&s, SANDBOX_GPU_CACHE, in("cache"));
    MUST(!sandbox_enter(&s, &e));
    MUST(opens(in("libraries/lib.so"), O_RDONLY) && opens(in("cache/kernel"), O_RDWR | O_CREAT));
    MUST((fd = open("/dev/null", O_RDWR)) >= 0);
    REFUSED(ioctl(fd, TIOCSTI, ""), ENOTTY);                   /* the device says so, not the filter */
    MUST(opens("/proc/thread-self/comm", O_WRONLY | O_TRUNC)); /* the driver names its threads */
    MUST((fd = socket(AF_UNIX, SOCK_SEQPACKET, 0)) >= 0);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
    REFUSED(connect(fd, NULL, 0), EPERM);
    REFUSED(execv(words[0], words), EPERM);
    REFUSED(fork(), EPERM);
    if (has_landlock(1))
        MUST(!opens("/etc/passwd", O_RDONLY) && !opens(in("libraries/new"), O_WRONLY | O_CREAT));
    MUST(!reads(in("secret"), "secret"));
    sandbox_free(&s);
    return 0;
}

static void test_gpu(void **state)
{
    (void)state;
    in_child(child_gpu);
}

/* Landlock alone, as if the filter were not there. */
static int child_ports(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    MUST(confine_files(&(struct confine_files){0}) >= 4);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    REFUSED(bind(fd, (struct sockaddr *)&to, sizeof to), EACCES);
    to.sin_port = htons(9);
    REFUSED(connect(fd, (struct sockaddr *)&to, sizeof to), EACCES);
    return 0;
}

static void test_ports(void **state)
{
    (void)state;
    if (!has_landlock(4))
        skip();
    in_child(child_ports);
}

/* A thread of a library: it opens what it likes when it is told to. */
struct other {
    pthread_t thread;
    pthread_barrier_t confined;
    bool opened;
};

static void *other_main(void *arg)
{
    struct other *o = arg;
    pthread_barrier_wait(&o->confined);
    o->opened = opens(in("secret"), O_RDONLY);
    return NULL;
}

static int child_others(void)
{
    struct other o = {0};
    int unreached = -1;
    pthread_barrier_init(&o.confined, NULL, 2);
    MUST(!pthread_create(&o.thread, NULL, other_main, &o));
    MUST(confine_files(&(struct confine_files){.others = &unreached}) && !unreached);
    pthread_barrier_wait(&o.confined);
    pthread_join(o.thread, NULL);
    MUST(!o.opened && !opens(in("secret"), O_RDONLY));
    return 0;
}

static void test_others(void **state)
{
    (void)state;
    if (!has_landlock(1))
        skip();
    in_child(child_others);
}

/* As many models as there are: nothing is left out. */
static int child_many(void)
{
    struct sandbox s = {0};
    struct err e = {0};
    char path[64];
    for (int i = 0; i < 3000; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        sandbox_use(&s, SANDBOX_MODELS, path);
    }
    put(path, "the last");
    MUST(!sandbox_enter(&s, &e));
    MUST(reads(path, "the last"));
    sandbox_free(&s);
    return 0;
}

static void test_many(void **state)
{
    (void)state;
    in_child(child_many);
}

static int make(void **state)
{
    (void)state;
    memcpy(folder, "/tmp/quern-test-XXXXXX", 23);
    assert_non_null(mkdtemp(folder));
    const char *const folders[] = {"models", "cache", "libraries"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        assert_int_equal(mkdir(in(folders[i]), 0700), 0);
    put(in("keys"), "keys");
    put(in("models/a"), "model");
    put(in("libraries/lib.so"), "library");
    put(in("secret"), "secret");
    return 0;
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static int clean(void **state)
{
    (void)state;
    return nftw(folder, drop, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    landlock = syscall(SYS_landlock_create_ruleset, NULL, 0, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files, make, clean),
        cmocka_unit_test_setup_teardown(test_calls, make, clean),
        cmocka_unit_test_setup_teardown(test_gpu, make, clean),
        cmocka_unit_test_setup_teardown(test_ports, make, clean),
        cmocka_unit_test_setup_teardown(test_others, make, clean),
        cmocka_unit_test_setup_teardown(test_many, make, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
