#define _GNU_SOURCE
/* The base layer: sizes, errors, memory, buffers, cursor, numbers, UTF-8, JSON, pool. */
#include "test.h"

#include "base/base64.h"
#include "base/buf.h"
#include "base/child.h"
#include "base/cursor.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/cores.h"
#include "base/pool.h"
#include "base/size.h"
#include "base/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_size(void **state)
{
    (void)state;
    size_t r = 7;
    assert_false(size_mul((size_t)1 << 32, (size_t)1 << 32, &r));
    assert_false(size_add(SIZE_MAX, 1, &r));
    assert_false(size_align(SIZE_MAX - 2, 8, &r));
    assert_int_equal(r, 7);
    assert_true(size_align(9, 8, &r));
    assert_int_equal(r, 16);
    assert_true(size_is_pow2(1) && size_is_pow2(64) && !size_is_pow2(0) && !size_is_pow2(3));
}

static void test_err(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_DATA, "tensor %d", 3), -1);
    err_set(&e, ERR_USAGE, "a later one");
    assert_int_equal(e.code, ERR_DATA);
    err_prefix(&e, "file %s", "x");
    assert_string_equal(e.text, "file x: tensor 3");
    char huge[2000];
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = 0;
    struct err f = {0};
    err_set(&f, ERR_DATA, "%s", huge);
    err_prefix(&f, "%s", huge);
    assert_int_equal(strlen(f.text), sizeof f.text - 1);
}

static void test_memory(void **state)
{
    (void)state;
    assert_null(mem_alloc(SIZE_MAX, 2));
    mem_fail_at(2);
    void *a = mem_alloc(1, 8), *b = mem_alloc(1, 8), *c = mem_alloc(1, 8);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    mem_free(a);
    mem_free(c);
    struct arena r = {.limit = 100000};
    for (int i = 0; i < 1000; i++) {
        char *p = arena_alloc(&r, 1, 33);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_int_equal(p[32], 0);
        memset(p, 1, 33);
    }
    assert_null(arena_alloc(&r, 1, 100000));
    assert_null(arena_alloc(&r, SIZE_MAX / 2, 3));
    arena_free(&r);
}

static void test_buf(void **state)
{
    (void)state;
    struct buf b = {.max = 10};
    assert_true(buf_str(&b, "12345") && buf_printf(&b, "%d", 678));
    assert_string_equal(b.data, "12345678");
    assert_false(buf_str(&b, "xyz"));
    assert_false(buf_char(&b, 'x')); /* sticky */
    assert_int_equal(b.len, 8);
    buf_clear(&b);
    assert_true(buf_str(&b, "1234567890"));
    buf_free(&b);
}

static void test_cursor(void **state)
{
    (void)state;
    const uint8_t data[] = {1, 2, 0, 3, 0, 0, 0, 9};
    struct cursor c = {.data = data, .size = sizeof data};
    assert_int_equal(cursor_u8(&c), 1);
    assert_true(cursor_skip(&c, 2));
    assert_int_equal(cursor_u32(&c), 3);
    assert_int_equal(cursor_left(&c), 1);
    assert_int_equal(cursor_u64(&c), 0);
    assert_true(c.failed);
    assert_int_equal(cursor_u8(&c), 0);
    assert_int_equal(cursor_left(&c), 0);
    struct cursor d = {.data = data, .size = sizeof data};
    assert_null(cursor_bytes(&d, SIZE_MAX));
}

static void test_num(void **state)
{
    (void)state;
    uint64_t u;
    int64_t i;
    double f;
    assert_true(num_u64("18446744073709551615", 20, UINT64_MAX, &u) && u == UINT64_MAX);
    assert_false(num_u64("18446744073709551616", 20, UINT64_MAX, &u));
    static const char *const no_int[] = {"", "-", "+1", " 1", "1 ", "0x1", "1.0", "--1", "1e3"};
    for (size_t k = 0; k < sizeof no_int / sizeof *no_int; k++)
        assert_false(num_i64(no_int[k], strlen(no_int[k]), INT64_MIN, INT64_MAX, &i));
    assert_true(num_i64("-9223372036854775808", 20, INT64_MIN, INT64_MAX, &i) && i == INT64_MIN);
    assert_false(num_i64("9223372036854775808", 19, INT64_MIN, INT64_MAX, &i));
    static const char *const no_float[] = {"", ".5", "1.", "1e", "nan", "inf", "0x1p3", "1e999", "1 "};
    for (size_t k = 0; k < sizeof no_float / sizeof *no_float; k++)
        assert_false(num_f64(no_float[k], strlen(no_float[k]), -1e300, 1e300, &f));
    assert_true(num_f64("-1.5e-3", 7, -1, 1, &f) && f == -1.5e-3);
    assert_true(num_bytes("2.5G", 4, &u) && u == 2684354560u);
    assert_true(num_bytes("64kib", 5, &u) && u == 65536);
    assert_false(num_bytes("64q", 3, &u));
    assert_false(num_bytes("G", 1, &u));
}

static void test_utf8(void **state)
{
    (void)state;
    char out[4];
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        size_t n = utf8_put(cp, out);
        uint32_t back = 0;
        bool real = cp <= 0x10ffff && (cp < 0xd800 || cp > 0xdfff);
        assert_int_equal(n > 0, real);
        if (real) {
            assert_int_equal(utf8_decode(out, n, &back), n);
            assert_int_equal(back, cp);
            for (size_t cut = 1; cut < n; cut++)
                assert_int_equal(utf8_partial(out, cut), cut);
        }
    }
    assert_false(utf8_valid("\xc0\x80", 2));
    assert_false(utf8_valid("\xed\xa0\x80", 3));
    assert_false(utf8_valid("\xf4\x90\x80\x80", 4));
    assert_int_equal(utf8_partial("\xe0\x80", 2), 0);
    assert_int_equal(utf8_partial("a\xf0\x9f", 3), 2);
}

static void test_json(void **state)
{
    (void)state;
    struct buf b = {0};
    struct json j = {.out = &b};
    json_begin(&j, '{');
    json_key(&j, "a\"\n");
    json_begin(&j, '[');
    json_int(&j, -1);
    json_num(&j, 0.1);
    json_f32(&j, 0.1f);
    json_num(&j, 1.0 / 0.0);
    json_bool(&j, true);
    json_str(&j, NULL);
    json_end(&j, ']');
    json_key(&j, "s");
    json_strn(&j, "x\xff\x01\0y", 5);
    json_end(&j, '}');
    assert_string_equal(b.data,
                        "{\"a\\\"\\n\":[-1,0.1,0.1,null,true,null],\"s\":\"x\xef\xbf\xbd\\u0001\\u0000y\"}");
    buf_free(&b);
}

/* Pages of a mapped file go and come back; memory that only looks like it stays. */
static void check_forget(const char *path)
{
    enum { PAGES = 8 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = PAGES * page;
    struct map m;
    struct err e = {0};
    char *text = mem_alloc(n, 1);
    memset(text, 'q', n);
    FILE *f = fopen(path, "w");
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    for (int copies = 0; copies < 2; copies++) {
        map_into_memory(copies);
        assert_int_equal(map_open(&m, path, &e), 0);
        assert_memory_equal(m.data, text, n);
        map_forget(m.data + 1, n - 1); /* the first page is not whole */
        assert_memory_equal(m.data, text, n);
        map_close(&m);
    }
    map_into_memory(false);
    map_forget(text, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(text[i], 'q');
    void *own = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(own, 'q', n);
    map_forget(own, n);
    assert_memory_equal(own, text, n);
    munmap(own, n);
    mem_free(text);
    f = fopen(path, "w");
    fputs("hello", f);
    fclose(f);
}

/* An opener: a folder and one file by another name; the rest is refused. */
static int open_other(void *arg, const char *path, bool folder)
{
    if (folder)
        return open(arg, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!strcmp(path, "/dev/zero")) {
        errno = ENODEV;
        return -1;
    }
    if (strcmp(path, "other") != 0) {
        errno = EACCES;
        return -1;
    }
    int at = open(arg, O_PATH | O_DIRECTORY | O_CLOEXEC), fd = openat(at, "file", O_RDONLY | O_CLOEXEC);
    close(at);
    return fd;
}

static int remove_other(void *arg, const char *path)
{
    return strcmp(arg, path) ? 0 : -1;
}

static void test_opener(void **state)
{
    (void)state;
    char dir[] = "/tmp/quern-test-XXXXXX", path[64];
    struct err e = {0};
    struct buf b = {0};
    struct map m;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    FILE *f = fopen(path, "w");
    fputs("hello", f);
    fclose(f);
    const struct file_opener o = {open_other, remove_other, dir};
    file_set_opener(&o);
    assert_int_equal(file_read("other", &b, &e), 0);
    assert_string_equal(b.data, "hello");
    assert_int_equal(map_open(&m, "other", &e), 0);
    assert_int_equal(m.size, 5);
    map_close(&m);
    assert_int_equal(file_read(path, &b, &e), -1);
    assert_non_null(strstr(e.text, "Permission denied"));
    e = (struct err){0};
    assert_int_equal(map_open(&m, "/dev/zero", &e), -1);
    assert_string_equal(e.text, "/dev/zero is a device, not a file");
    DIR *d = file_folder("whatever");
    bool found = false;
    for (struct dirent *x; d && (x = readdir(d));)
        found |= !strcmp(x->d_name, "file");
    assert_true(found);
    closedir(d);
    assert_int_equal(file_remove(path), 0);
    file_set_opener(NULL);
    assert_int_equal(access(path, F_OK), 0);
    buf_free(&b);
    assert_int_equal(file_remove(path), 0);
    rmdir(dir);
}

static void test_file(void **state)
{
    (void)state;
    struct map m;
    struct err e = {0};
    assert_int_equal(map_open(&m, "/", &e), -1);
    assert_string_equal(e.text, "/ is a folder, not a file");
    e = (struct err){0};
    assert_int_equal(map_open(&m, "/dev/zero", &e), -1);
    assert_string_equal(e.text, "/dev/zero is a device, not a file");
    char dir[] = "/tmp/quern-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    e = (struct err){0};
    assert_int_equal(map_open(&m, path, &e), -1);
    assert_non_null(strstr(e.text, "is a FIFO"));
    unlink(path);
    FILE *f = fopen(path, "w");
    fputs("hello", f);
    fclose(f);
    e = (struct err){0};
    assert_int_equal(map_open(&m, path, &e), 0);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    map_close(&m);
    check_forget(path);
    struct buf b = {0};
    assert_int_equal(file_read(path, &b, &e), 0);
    assert_string_equal(b.data, "hello");
    buf_free(&b);
    unlink(path);
    rmdir(dir);
}

struct job {
    struct pool *pool;
    atomic_int count, late;
};

static void job_run(void *arg, int worker, int workers)
{
    struct job *j = arg;
    for (int round = 1; round <= 3; round++) {
        atomic_fetch_add(&j->count, 1);
        pool_barrier(j->pool, worker);
        if (atomic_load(&j->count) < round * workers)
            atomic_fetch_add(&j->late, 1);
        pool_barrier(j->pool, worker);
    }
}

static void test_pool(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) {
        struct err e = {0};
        struct pool *p = pool_open(n, n % 2, &e);
        assert_non_null(p);
        assert_int_equal(pool_size(p), n);
        for (int k = 0; k < 50; k++) {
            struct job j = {.pool = p};
            pool_run(p, job_run, &j);
            assert_int_equal(j.count, 3 * n);
            assert_int_equal(j.late, 0);
        }
        pool_close(p);
    }
    long covered = 0, from, to;
    for (int w = 0; w < 7; w++) {
        pool_slice(1000, 32, w, 7, &from, &to);
        covered += to - from;
    }
    assert_int_equal(covered, 1000);
}

/* ---- cores: a machine of files ---- */

/* Writes a file of it, and the folders above. */
static void machine_put(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int machine_remove(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static int machine_cores(const char *root, struct cores *c)
{
    static const int cpus[] = {0, 1, 2, 3, 4, 5, 6, 7};
    cores_find_below(root, cpus, 8, c);
    return c->n;
}

static void test_cores(void **state)
{
    (void)state;
    char root[] = "/tmp/quern-cores-XXXXXX", path[100];
    struct cores c;
    assert_non_null(mkdtemp(root));
    assert_int_equal(machine_cores(root, &c), 8); /* nothing is known: every CPU is a core */
    for (int i = 0; i < 8; i++) { /* CPU i and i + 4 are threads of one core; two packages of two cores */
        char id[8];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", i);
        snprintf(id, sizeof id, "%d\n", i % 2);
        machine_put(root, path, id);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", i);
        snprintf(id, sizeof id, "%d\n", i % 4 / 2);
        machine_put(root, path, id);
    }
    assert_int_equal(machine_cores(root, &c), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.cpu[i], i);
    machine_put(root, "/proc/self/cgroup", "0::/a/b\n");
    machine_put(root, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(machine_cores(root, &c), 4);
    machine_put(root, "/sys/fs/cgroup/a/cpu.max", "250000 100000\n"); /* the one above counts too */
    assert_int_equal(machine_cores(root, &c), 3);
    machine_put(root, "/sys/fs/cgroup/a/b/cpu.max", "10000 100000\n");
    assert_int_equal(machine_cores(root, &c), 1);
    machine_put(root, "/proc/self/cgroup", "0::/\n"); /* a container: the mount is the group */
    machine_put(root, "/sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(machine_cores(root, &c), 2);
    machine_put(root, "/proc/self/cgroup", "5:cpuacct,cpu:/x\n4:cpuset:/y\n");
    machine_put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "300000\n");
    machine_put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    machine_put(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    machine_put(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(machine_cores(root, &c), 3);
    assert_int_equal(nftw(root, machine_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void log_abort(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
    abort();
}

static void child_logs(int fd, void *arg)
{
    (void)arg;
    child_ready(fd);
    log_set_level(LOG_ERROR);
    log_error("a message of a helper process");
    child_send(fd, "well", 4, -1);
}

/* A sink is code of the parent's, and may wait for its threads. */
static void test_child_logs_without_a_sink(void **state)
{
    (void)state;
    struct err e = {0};
    struct child c;
    char got[8];
    int passed;
    log_set_sink(log_abort, NULL);
    assert_int_equal(child_start(&c, "test", "logs", child_logs, NULL, &e), 0);
    assert_int_equal(child_take(c.fd, got, sizeof got, &passed), 4);
    assert_memory_equal(got, "well", 4);
    child_stop(&c);
    log_set_sink(NULL, NULL);
}

static void test_base64(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"\xfb\xff\xfe", "+//+"}};
    struct buf b = {0};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        base64_add(&b, (const uint8_t *)pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(b.data ? b.data : "", pairs[i][1]);
        buf_clear(&b);
        assert_true(base64_read(&b, pairs[i][1], strlen(pairs[i][1])));
        assert_string_equal(b.data, pairs[i][0]);
        buf_clear(&b);
    }
    assert_true(base64_read(&b, "Zg", 2)); /* padding may be missing */
    assert_string_equal(b.data, "f");
    assert_false(base64_read(&b, "Z g=", 4) || base64_read(&b, "-_-_", 4) || base64_read(&b, "Zg\0=", 4));
    buf_clear(&b);
    assert_true(base64_read_loose(&b, "-__-\r\n Zm9v \n", 13));
    assert_string_equal(b.data, "\xfb\xff\xfe"
                                "foo");
    assert_false(base64_read_loose(&b, "Zg*=", 4) || base64_read_loose(&b, "Zg\0", 3));
    buf_free(&b);
    b.max = 3;
    assert_false(base64_read_loose(&b, "Zm9vZm9v", 8));
    assert_true(b.failed);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),   cmocka_unit_test(test_err),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_buf),
        cmocka_unit_test(test_cursor), cmocka_unit_test(test_num),
        cmocka_unit_test(test_utf8),   cmocka_unit_test(test_json),
        cmocka_unit_test(test_file),   cmocka_unit_test(test_opener),
        cmocka_unit_test(test_pool),   cmocka_unit_test(test_cores),
        cmocka_unit_test(test_base64), cmocka_unit_test(test_child_logs_without_a_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
