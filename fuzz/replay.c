/* Runs a fuzz target once over every file of the folders that are given: the kept corpus, as a test. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of exactly the file's size, so that ASan sees a read past its end. */
static int replay_file(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    uint8_t *data = size < 0 ? NULL : malloc(size ? (size_t)size : 1);
    int read_all = data && pread(fd, data, (size_t)size, 0) == size;
    if (read_all)
        LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    if (fd >= 0)
        close(fd);
    return read_all;
}

int main(int argc, char **argv)
{
    int runs = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *d; (d = readdir(dir));) {
            if (d->d_name[0] == '.')
                continue;
            if (!replay_file(dirfd(dir), d->d_name)) {
                perror(d->d_name);
                return 1;
            }
            runs++;
        }
        closedir(dir);
    }
    printf("%d inputs\n", runs);
    return runs ? 0 : 1;
}
