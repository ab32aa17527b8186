#define _GNU_SOURCE
#include "tool/output_file.h"

#include "base/log.h"
#include "base/mem.h"
#include "format/store.h"
#include "tool/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int output_file_add(struct output_file *o, const struct stat *st, struct err *e)
{
    if (o->count == o->room) {
        size_t room = o->room ? 2 * o->room : 16;
        struct output_file_input *more = mem_realloc(o->inputs, room, sizeof *more);
        if (!more)
            return err_memory(e, "the list of inputs", room * sizeof *more);
        o->inputs = more;
        o->room = room;
    }
    o->inputs[o->count++] = (struct output_file_input){st->st_dev, st->st_ino};
    return 0;
}

int output_file_reads(struct output_file *o, const char *path, struct err *e)
{
    struct stat st;
    int failed = 0;
    if (!path || stat(path, &st))
        return 0;
    if (!S_ISDIR(st.st_mode))
        return output_file_add(o, &st, e);
    DIR *folder = opendir(path);
    for (struct dirent *d; folder && !failed && (d = readdir(folder));)
        if (!fstatat(dirfd(folder), d->d_name, &st, 0) && S_ISREG(st.st_mode))
            failed = output_file_add(o, &st, e);
    if (folder)
        closedir(folder);
    return failed;
}

int output_file_reads_store(struct output_file *o, const struct store *s, struct err *e)
{
    const char *last = NULL;
    size_t at;
    int failed = output_file_reads(o, s->path, e);
    for (size_t i = 0; i < s->count && !failed; i++) {
        const char *file = store_tensor_file(s, &s->tensors[i], &at);
        if (file && file != last)
            failed = output_file_reads(o, file, e);
        last = file;
    }
    return failed;
}

int output_file_reads_model(struct output_file *o, const char *model, struct err *e)
{
    struct store *s;
    if (tool_open(&s, model, e))
        return -1;
    int failed = output_file_reads_store(o, s, e);
    store_close(s);
    return failed;
}

int output_file_allow(void *output, const char *path, struct err *e)
{
    const struct output_file *o = output;
    struct stat st;
    bool leads = !stat(path, &st); /* where links lead */
    for (size_t i = 0; leads && i < o->count; i++)
        if (o->inputs[i].device == st.st_dev && o->inputs[i].inode == st.st_ino)
            return err_set(e, ERR_USAGE,
                           "%s is read by this command and cannot be its output, too: name another file",
                           log_safe(path));
    if (leads && !S_ISREG(st.st_mode))
        return S_ISCHR(st.st_mode) || S_ISFIFO(st.st_mode)
                   ? 0
                   : err_set(e, ERR_USAGE, "%s is not a file: name one for the output", log_safe(path));
    if (!o->force && (leads || !lstat(path, &st)))
        return err_set(e, ERR_USAGE, "%s exists already: --force replaces it", log_safe(path));
    return 0;
}

void output_file_free(struct output_file *o)
{
    mem_free(o->inputs);
    *o = (struct output_file){0};
}

int output_file_write(const char *path, const char *data, size_t n, struct err *e)
{
    FILE *f = fopen(path, "we");
    bool whole = f && fwrite(data, 1, n, f) == n;
    if ((f && fclose(f)) || !whole)
        return err_set(e, ERR_RESOURCE, "cannot write %s: %s", log_safe(path), strerror(errno));
    return 0;
}
