/* Mapped files whose bytes, times, names and lengths change: what a check finds, with a lease and without one. */
#define _GNU_SOURCE
#include "test.h"

#include "base/file.h"
#include "base/watch.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIZE = 300000, HEADER = 5000, PAUSE = 20000 /* us: times of files come in steps */ };

static char folder[] = "/tmp/quern-watch-XXXXXX";
static char path[64], other[64];

static void on_lease(int signal)
{
    (void)signal;
    watch_wake();
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    if (!watch_fault(info->si_addr))
        _exit(1);
}

static int start(void **state)
{
    struct sigaction lease = {.sa_handler = on_lease, .sa_flags = SA_RESTART};
    (void)state;
    watch_start();
    sigaction(SIGIO, &lease, NULL);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/model", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    return 0;
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    unlink(other);
    return rmdir(folder);
}

static void write_at(const char *name, off_t at, const char *text)
{
    usleep(PAUSE);
    int fd = open(name, O_WRONLY | O_CREAT, 0600); /* waits for a lease */
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, strlen(text), at), strlen(text));
    close(fd);
}

static void make(const char *name)
{
    unlink(name);
    write_at(name, 0, "header");
    write_at(name, SIZE - 4, "tail");
    usleep(PAUSE);
}

/* A descriptor that is open for writing when the file is mapped: then there is no lease. -1 = there shall be one. */
static int writer(bool lease)
{
    return lease ? -1 : open(path, O_WRONLY);
}

static int check(const struct map *m)
{
    struct err e = {0};
    int r = map_check(m, &e);
    assert_true(r ? e.code == ERR_CHANGED && *e.text : !e.code);
    return r;
}

static void open_map(struct map *m, bool lease)
{
    struct err e = {0};
    make(path);
    int fd = writer(lease);
    assert_int_equal(map_open(m, path, &e), 0);
    if (fd >= 0) {
        while (!watch_is_ready(m->watch)) /* the thread makes its digest */
            usleep(1000);
        close(fd);
    }
    assert_int_equal(check(m), 0);
}

static void try_changes(bool lease)
{
    struct map m;
    struct timespec times[2] = {{1, 0}, {1, 0}};
    open_map(&m, lease);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(check(&m), 0);
    int fd = open(path, O_RDWR); /* opened, and not written */
    assert_int_equal(check(&m), 0);
    close(fd);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(check(&m), 0);
    write_at(path, SIZE - 4, "tail"); /* what is there already */
    assert_int_equal(check(&m), 0);
    assert_false(map_is_changed(&m));
    write_at(path, 200000, "x");
    assert_int_equal(check(&m), -1);
    assert_true(map_is_changed(&m));
    write_at(path, 200000, "y"); /* for good */
    assert_int_equal(check(&m), -1);
    map_close(&m);
}

static void test_changes_with_a_lease(void **state)
{
    (void)state;
    try_changes(true);
}

static void test_changes_without_a_lease(void **state)
{
    (void)state;
    try_changes(false);
}

static void test_a_change_with_the_old_times(void **state)
{
    struct map m;
    struct stat st;
    (void)state;
    open_map(&m, true);
    assert_int_equal(stat(path, &st), 0);
    write_at(path, 200000, "x");
    struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(check(&m), -1);
    map_close(&m);
}

static void test_a_new_name(void **state)
{
    struct map m;
    (void)state;
    for (int lease = 0; lease < 2; lease++) {
        open_map(&m, lease);
        make(other);
        write_at(other, 100, "another model");
        assert_int_equal(rename(other, path), 0);
        assert_int_equal(check(&m), 0);
        assert_memory_equal(m.data + SIZE - 4, "tail", 4);
        assert_int_equal(m.data[100], 0);
        map_close(&m);
    }
}

static void test_cut_short(void **state)
{
    struct map m;
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    (void)state;
    sigaction(SIGBUS, &fault, NULL); /* cmocka has its own in every test */
    for (int lease = 0; lease < 2; lease++) {
        open_map(&m, lease);
        map_own(&m, HEADER);
        usleep(PAUSE);
        assert_int_equal(truncate(path, 0), 0);
        unsigned sum = 0;
        for (size_t i = 0; i < m.size; i++)
            sum += m.data[i]; /* zeros where the file was; the header is ours */
        assert_int_equal(sum, 'h' + 'e' + 'a' + 'd' + 'e' + 'r');
        assert_int_equal(check(&m), -1);
        map_close(&m);
    }
}

static void test_a_header_of_ones_own(void **state)
{
    struct map m;
    (void)state;
    open_map(&m, true);
    map_own(&m, HEADER);
    map_forget(m.data, m.size); /* not what is ours */
    write_at(path, 0, "HEADER");
    assert_memory_equal(m.data, "header", 6);
    assert_int_equal(check(&m), -1);
    map_close(&m);
}

static void test_a_copy_in_memory(void **state)
{
    struct map m;
    (void)state;
    map_into_memory(true);
    open_map(&m, true);
    map_into_memory(false);
    write_at(path, 0, "HEADER");
    assert_int_equal(check(&m), 0);
    assert_int_equal(truncate(path, 1), 0);
    assert_int_equal(check(&m), 0);
    assert_memory_equal(m.data, "header", 6);
    map_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changes_with_a_lease),
        cmocka_unit_test(test_changes_without_a_lease),
        cmocka_unit_test(test_a_change_with_the_old_times),
        cmocka_unit_test(test_a_new_name),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_a_header_of_ones_own),
        cmocka_unit_test(test_a_copy_in_memory),
    };
    return cmocka_run_group_tests(tests, start, end);
}
