/* In a child: after it has entered the sandbox, what it was told of works, and the rest does not. */
#define _GNU_SOURCE
#include "test.h"

#include "serve/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void *nothing(void *arg)
{
    return arg;
}

static bool can_read(const char *folder, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bool can_make(const char *folder, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0 && !unlink(path);
}

/* A bit for each thing that is not as it should be. */
static int child(const char *in, const char *out)
{
    struct sandbox s = {0};
    pthread_t t;
    char *const words[] = {"/bin/true", NULL};
    sandbox_allow(&s, in, SANDBOX_READ);
    sandbox_allow(&s, NULL, SANDBOX_READ);
    sandbox_allow(&s, "/no/such/folder", SANDBOX_READ);
    const char *holds = sandbox_enter(&s);
    int wrong = 0;
    if (strstr(holds, "files")) {
        wrong |= can_read(in, "file") ? 0 : 1;
        wrong |= can_read(out, "file") ? 2 : 0;
        wrong |= can_make(in, "new") ? 4 : 0;
    }
    if (strstr(holds, "calls")) {
        wrong |= execv(words[0], words) < 0 && errno == EPERM ? 0 : 8;
        wrong |= fork() < 0 ? 0 : 16;
        wrong |= mount("a", "b", "tmpfs", 0, NULL) < 0 && errno == EPERM ? 0 : 32;
    }
    return wrong | (pthread_create(&t, NULL, nothing, NULL) || pthread_join(t, NULL) ? 64 : 0);
}

static void test_sandbox(void **state)
{
    (void)state;
    char folders[2][40] = {"/tmp/quern-in-XXXXXX", "/tmp/quern-out-XXXXXX"}, path[120];
    for (int i = 0; i < 2; i++) {
        assert_non_null(mkdtemp(folders[i]));
        snprintf(path, sizeof path, "%s/file", folders[i]);
        close(open(path, O_WRONLY | O_CREAT, 0600));
    }
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(child(folders[0], folders[1]));
    int status = 0;
    waitpid(pid, &status, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/file", folders[i]);
        unlink(path);
        rmdir(folders[i]);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sandbox)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
