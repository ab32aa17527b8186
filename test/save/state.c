/* The state: order and acknowledgement of writes, failures of one and of all, and what is found at the start. */
#include "test.h"

#include "save/schema.h"
#include "save/sql.h"
#include "save/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct put {
    struct state_write write;
    const char *name;
    int64_t value;
    bool fails;
    atomic_int *left;
};

static int put_run(struct state_write *w, sqlite3 *db, struct err *e)
{
    struct put *p = (struct put *)w;
    struct sql q;
    sql_begin(&q, db,
              "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value", e);
    sql_bind_text(&q, p->name);
    sql_bind_int(&q, p->value);
    return sql_end(&q) || (p->fails && err_set(e, ERR_USAGE, "as wished"));
}

static void put_done(struct state_write *w)
{
    atomic_fetch_sub(((struct put *)w)->left, 1);
}

static int put(struct state *s, const char *name, int64_t value, struct err *e)
{
    struct put p = {.write = {.run = put_run}, .name = name, .value = value};
    return state_write_wait(s, &p.write, e);
}

static int64_t get(struct state *s, const char *name)
{
    struct err e = {0};
    struct sql q;
    sqlite3 *db = state_reader(s);
    sql_begin(&q, db, "SELECT value FROM totals WHERE name = ?", &e);
    sql_bind_text(&q, name);
    int64_t v = sql_step(&q) ? sql_int(&q, 0) : -1;
    assert_int_equal(sql_end(&q), 0);
    state_release(s, db);
    return v;
}

static char folder[64];

static struct state *open_at(const char *path, uint64_t most)
{
    struct state *s = NULL;
    struct err e = {0};
    if (state_open(&s, &(struct state_options){path, most}, &e))
        fail_msg("%s", e.text);
    return s;
}

static void file_in(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", folder, name);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/quern-state-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

/* The files of the folder that begin so; removed or not. */
static int files(const char *prefix, bool remove)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *x; d && (x = readdir(d));)
        if (x->d_type == DT_REG && !strncmp(x->d_name, prefix, strlen(prefix))) {
            n++;
            if (remove)
                unlinkat(dirfd(d), x->d_name, 0);
        }
    closedir(d);
    return n;
}

static int teardown(void **state)
{
    (void)state;
    files("", true);
    return rmdir(folder);
}

static void test_writes_are_there_after_a_restart(void **state)
{
    (void)state;
    struct err e = {0};
    char path[128];
    struct stat st;
    struct state *s = open_at(folder, 0);
    assert_true(state_is_kept(s));
    assert_int_equal(put(s, "a", 3, &e), 0);
    assert_int_equal(put(s, "a", 4, &e), 0);
    assert_int_equal(get(s, "a"), 7);
    file_in(path, "quern.db");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    file_in(path, "quern.db-wal");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    state_close(s);
    s = open_at(folder, 0);
    assert_int_equal(get(s, "a"), 7);
    state_close(s);
}

static void test_one_that_fails_is_undone_alone(void **state)
{
    for (int kept = 0; kept < 2; kept++) {
        enum { COUNT = 300 };
        static struct put puts[COUNT];
        struct err e = {0};
        atomic_int left = COUNT;
        struct state *s = open_at(kept ? folder : NULL, 0);
        for (int i = 0; i < COUNT; i++) {
            puts[i] = (struct put){.write = {.run = put_run, .done = put_done},
                                   .name = "n",
                                   .value = 1,
                                   .fails = i % 3 == 0,
                                   .left = &left};
            assert_int_equal(state_write(s, &puts[i].write, &e), 0);
        }
        while (atomic_load(&left))
            usleep(1000);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(puts[i].write.err.code, puts[i].fails ? ERR_USAGE : ERR_NONE);
        assert_int_equal(get(s, "n"), COUNT - COUNT / 3);
        state_close(s);
    }
    (void)state;
}

static void test_a_second_server_is_refused(void **state)
{
    (void)state;
    struct state *s = open_at(folder, 0), *other;
    pid_t child = fork(); /* the lock is the process's */
    if (!child) {
        struct err e = {0};
        bool refused = state_open(&other, &(struct state_options){folder, 0}, &e) == -1 &&
                       e.code == ERR_RESOURCE && strstr(e.text, "another server");
        _exit(refused ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    state_close(s);
}

static void test_a_newer_version_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct state *s = open_at(folder, 0);
    state_close(s);
    sqlite3 *db;
    char set[64];
    assert_int_equal(state_open_beside(&db, folder, true, &e), 0);
    snprintf(set, sizeof set, "PRAGMA user_version = %d", schema_count + 1);
    assert_int_equal(sql_run(db, set, &e), 0);
    sqlite3_close(db);
    assert_int_equal(state_open(&s, &(struct state_options){folder, 0}, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_non_null(strstr(e.text, "newer program"));
}

/* Any byte may be damaged: the header, the schema, a page of a table. It is moved aside or still works; it never crashes. */
static void test_a_damaged_one_is_moved_aside(void **state)
{
    (void)state;
    char path[128];
    struct err e = {0};
    static const long at[] = {0, 100, 4096 + 5, 2 * 4096, 3 * 4096 + 2};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct state *s = open_at(folder, 0);
        assert_int_equal(put(s, "a", 1, &e), 0);
        state_close(s);
        file_in(path, "quern.db");
        int fd = open(path, O_RDWR);
        assert_int_equal(pwrite(fd, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, at[i]), 8);
        close(fd);
        s = open_at(folder, 0);
        assert_int_equal(put(s, "b", 1, &e), 0);
        state_close(s);
        assert_in_range(files("damaged-", true), 1, 3);
    }
}

static void test_a_file_that_is_no_database_is_moved_aside(void **state)
{
    (void)state;
    char path[128];
    file_in(path, "quern.db");
    FILE *f = fopen(path, "w");
    fputs("this is a letter, and quite a long one, to somebody far away", f);
    fclose(f);
    state_close(open_at(folder, 0));
    assert_int_equal(files("damaged-", false), 1);
}

static void test_no_room(void **state)
{
    (void)state;
    struct err e = {0};
    static char text[512 << 10];
    memset(text, 'x', sizeof text - 1);
    struct state *s = open_at(folder, 1 << 20);
    assert_int_equal(put(s, "a", 1, &e), 0);
    int i = 0;
    while (i < 10 && !put(s, (text[0] = (char)('a' + i), text), 1, &e))
        i++;
    assert_in_range(i, 0, 3);
    assert_int_equal(e.code, ERR_FULL);
    assert_non_null(strstr(e.text, "--limit state"));
    e = (struct err){0};
    assert_int_equal(state_check(s, &e), -1);
    assert_int_equal(get(s, "a"), 1);
    state_close(s);
}

/* A file that may not grow: the kernel's EFBIG, as ENOSPC. What was acknowledged is there. */
static void test_a_full_disk(void **state)
{
    (void)state;
    pid_t child = fork();
    if (!child) {
        struct err e = {0};
        static char text[64 << 10];
        memset(text, 'x', sizeof text - 1);
        struct state *s = open_at(folder, 0);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){300 << 10, 300 << 10});
        int64_t stored = 0;
        for (int i = 0; i < 20; i++) {
            snprintf(text, 8, "k%05d", i);
            text[6] = 'x';
            stored += !put(s, text, 1, &e) && !put(s, "count", 1, &e);
        }
        bool good = stored > 0 && stored < 20 && e.code == ERR_FULL && get(s, "count") == stored;
        state_close(s);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    struct state *s = open_at(folder, 0);
    assert_true(get(s, "count") > 0);
    state_close(s);
}

static void test_a_folder_that_cannot_be_written(void **state)
{
    (void)state;
    struct err e = {0};
    struct state *s = NULL;
    char path[128];
    file_in(path, "file");
    close(open(path, O_CREAT | O_WRONLY, 0600));
    file_in(path, "file/state");
    assert_int_equal(state_make_folder(path, &e), -1);
    assert_int_equal(e.code, ERR_FULL);
    e = (struct err){0};
    if (!geteuid())
        skip(); /* root may write everywhere */
    chmod(folder, 0500);
    assert_int_equal(state_open(&s, &(struct state_options){folder, 0}, &e), -1);
    assert_int_equal(e.code, ERR_FULL);
    chmod(folder, 0700);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_writes_are_there_after_a_restart),
        TEST(test_one_that_fails_is_undone_alone),
        TEST(test_a_second_server_is_refused),
        TEST(test_a_newer_version_is_refused),
        TEST(test_a_damaged_one_is_moved_aside),
        TEST(test_a_file_that_is_no_database_is_moved_aside),
        TEST(test_no_room),
        TEST(test_a_full_disk),
        TEST(test_a_folder_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
