#define _GNU_SOURCE
#include "tool/editor.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "hub/path.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <unistd.h>

extern char **environ;

/* The editor may be a command with arguments: the shell reads it. */
static int editor_wait(const char *editor, const char *path, struct err *e)
{
    struct buf command = {0};
    buf_printf(&command, "%s \"$1\"", editor);
    if (command.failed) {
        buf_free(&command);
        return err_memory(e, "the editor's command", strlen(editor));
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGINT, &ignore, &before); /* Ctrl-C is the editor's meanwhile */
    pid_t pid = vfork();
    if (!pid) {
        signal(SIGINT, SIG_DFL);
        execl("/bin/sh", "sh", "-c", command.data, "quern", path, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    sigaction(SIGINT, &before, NULL);
    buf_free(&command);
    if (pid > 0 && WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    return err_set(e, ERR_USAGE, "the editor '%s' failed (VISUAL or EDITOR names it)", log_safe(editor));
}

int editor_run(const char *text, size_t n, struct buf *out, struct err *e)
{
    const char *visual = getenv("VISUAL"), *editor = getenv("EDITOR"), *tmp = getenv("TMPDIR");
    char path[PATH_MAX];
    editor = visual && *visual ? visual : editor && *editor ? editor : "vi";
    if (path_make(path, e, "%s/quern-XXXXXX.txt", tmp && *tmp == '/' ? tmp : "/tmp"))
        return -1;
    int fd = mkostemps(path, 4, O_CLOEXEC);
    int failed = fd < 0 || write(fd, text, n) != (ssize_t)n;
    if (failed)
        err_set(e, ERR_RESOURCE, "cannot write %s: %s", log_safe(path), strerror(errno));
    if (fd >= 0)
        close(fd);
    failed = failed || editor_wait(editor, path, e) || file_read(path, out, e);
    if (fd >= 0)
        unlink(path);
    while (!failed && out->len && out->data[out->len - 1] == '\n')
        out->len--;
    if (!failed && out->len) {
        buf_char(out, 0);
        out->len--;
    }
    return failed ? -1 : 0;
}
