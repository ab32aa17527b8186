/* The broker: which paths its rows cover, and what it hands over. */
#define _GNU_SOURCE
#include "test.h"

#include "serve/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void test_rows(void **state)
{
    (void)state;
    static const struct {
        enum broker_kind kind;
        char *row;
        enum broker_request request;
        const char *path;
        bool covered;
    } cases[] = {
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "/s/keys", true},
        {BROKER_FILE, "keys", BROKER_OPEN, "./keys", true},
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "/s/keys2", false},
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "/s/key", false},
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "/s", false},
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "/s/keys/x", false},
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "/s/../s/keys", false},
        {BROKER_FILE, "/s/keys", BROKER_OPEN, "", false},
        {BROKER_FILE, "/s/keys", BROKER_LIST, "/s/keys", false},
        {BROKER_FILE, "/s/keys", BROKER_REMOVE, "/s/keys", false},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/a.gguf", true},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/b.gguf", false}, /* not the whole folder */
        {BROKER_MODEL, "/m/a-00001-of-00003.gguf", BROKER_OPEN, "/m/a-00003-of-00003.gguf", true},
        {BROKER_MODEL, "/m/a-00001-of-00003.gguf", BROKER_OPEN, "/m/a-00003-of-00004.gguf", false},
        {BROKER_MODEL, "/m/a-00001-of-00003.gguf", BROKER_OPEN, "/m/b-00003-of-00003.gguf", false},
        {BROKER_MODEL, "/m/a-00001-of-00003.gguf", BROKER_OPEN, "/m/a-/../x-of-00003.gguf", false},
        {BROKER_MODEL, "/m/x.safetensors", BROKER_OPEN, "/m/config.json", true},
        {BROKER_MODEL, "x.safetensors", BROKER_OPEN, "./tokenizer.json", true},
        {BROKER_MODEL, "/m/x.safetensors", BROKER_OPEN, "/m/y.safetensors", false},
        {BROKER_MODEL, "/m/x.safetensors", BROKER_OPEN, "/m/below/config.json", false},
        {BROKER_MODEL, "/m/x.safetensors", BROKER_OPEN, "/m/../config.json", false},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/config.json", false},
        {BROKER_MODEL, "/models/", BROKER_LIST, "/models", true},
        {BROKER_MODEL, "/models", BROKER_LIST, "/models/", true},
        {BROKER_MODEL, "/models/", BROKER_OPEN, "/models//a/b.gguf", true},
        {BROKER_MODEL, "/models", BROKER_OPEN, "/models2/a.gguf", false},
        {BROKER_MODEL, "/models", BROKER_OPEN, "/models/../etc/passwd", false},
        {BROKER_MODEL, "/models", BROKER_OPEN, "/models/a/..", false},
        {BROKER_MODEL, "/models", BROKER_OPEN, "/models/..a/b..c", true},
        {BROKER_MODEL, ".", BROKER_OPEN, "a.gguf", true},
        {BROKER_MODEL, ".", BROKER_OPEN, "./a.gguf", true},
        {BROKER_MODEL, ".", BROKER_OPEN, "/etc/passwd", false},
        {BROKER_MODEL, ".", BROKER_OPEN, "../a", false},
        {BROKER_MODEL, "..", BROKER_OPEN, "../a", true},
        {BROKER_MODEL, "..", BROKER_OPEN, "../../a", false},
        {BROKER_MODEL, "/", BROKER_OPEN, "/a", true},
        {BROKER_SOCKET, "/run/q.sock", BROKER_REMOVE, "/run/q.sock", true},
        {BROKER_SOCKET, "/run/q.sock", BROKER_REMOVE, "/run/other", false},
        {BROKER_SOCKET, "/run/q.sock", BROKER_OPEN, "/run/q.sock", false},
        /* the tower for images beside a GGUF file */
        {BROKER_MODEL, "/m/a.gguf", BROKER_LIST, "/m", true},
        {BROKER_MODEL, "/m/a.gguf", BROKER_LIST, "/m/", true},
        {BROKER_MODEL, "/m/a.gguf", BROKER_LIST, "/", false},
        {BROKER_MODEL, "/a.gguf", BROKER_LIST, "/", true},
        {BROKER_MODEL, "a.gguf", BROKER_LIST, ".", true},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/mmproj-a.gguf", true},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/b/mmproj-a.gguf", false},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/../mmproj-a.gguf", false},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/b.gguf", false},
        {BROKER_MODEL, "/m/a.gguf", BROKER_OPEN, "/m/mmproj.txt", false},
        {BROKER_MODEL, "/m/a.safetensors", BROKER_LIST, "/m", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct broker_row row = {cases[i].row, cases[i].kind};
        if (broker_covers(&row, cases[i].request, cases[i].path) != cases[i].covered)
            fail_msg("row %s, path %s: not %d", cases[i].row, cases[i].path, cases[i].covered);
    }
}

/* A folder with files in it, and a broker of some of them. */
struct rig {
    char folder[32], path[8][64];
    struct broker_row rows[4];
    struct broker *broker;
};

static char *in(struct rig *r, int i, const char *name)
{
    char folder[sizeof r->folder]; /* the compiler fears an overlap */
    memcpy(folder, r->folder, sizeof folder);
    snprintf(r->path[i], sizeof r->path[i], "%s/%s", folder, name);
    return r->path[i];
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void expect(struct broker *b, const char *path, const char *text)
{
    char got[64] = "";
    int fd = broker_ask(b, BROKER_OPEN, path);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_true(read(fd, got, sizeof got - 1) >= 0);
    assert_string_equal(got, text);
    close(fd);
}

static void refuses(struct broker *b, enum broker_request request, const char *path, int why)
{
    assert_int_equal(broker_ask(b, request, path), -1);
    assert_int_equal(errno, why);
}

static int open_rig(void **state)
{
    static struct rig r;
    struct err e = {0};
    memcpy(r.folder, "/tmp/quern-test-XXXXXX", 23);
    assert_non_null(mkdtemp(r.folder));
    put(in(&r, 0, "keys"), "old");
    put(in(&r, 1, "other"), "secret");
    assert_int_equal(mkdir(in(&r, 2, "models"), 0700), 0);
    r.rows[0] = (struct broker_row){in(&r, 0, "keys"), BROKER_FILE};
    r.rows[1] = (struct broker_row){in(&r, 2, "models"), BROKER_MODEL};
    r.rows[2] = (struct broker_row){in(&r, 3, "sock"), BROKER_SOCKET};
    r.rows[3] = (struct broker_row){"/dev/zero", BROKER_FILE};
    assert_int_equal(broker_start(&r.broker, r.rows, 4, &e), 0);
    *state = &r;
    return 0;
}

static int close_rig(void **state)
{
    struct rig *r = *state;
    broker_stop(r->broker);
    const char *const names[] = {"keys", "other", "new", "models/link", "models/a", "sock", "models"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        remove(in(r, 7, names[i]));
    return rmdir(r->folder);
}

static void test_files(void **state)
{
    struct rig *r = *state;
    const char *keys = r->rows[0].path;
    expect(r->broker, keys, "old");
    put(in(r, 4, "new"), "new");
    assert_int_equal(rename(in(r, 4, "new"), keys), 0); /* another inode */
    expect(r->broker, keys, "new");
    assert_int_equal(unlink(keys), 0);
    refuses(r->broker, BROKER_OPEN, keys, ENOENT);
    assert_int_equal(symlink(in(r, 1, "other"), keys), 0); /* as secret mounts do */
    expect(r->broker, keys, "secret");
    refuses(r->broker, BROKER_OPEN, in(r, 1, "other"), EACCES);
    refuses(r->broker, BROKER_OPEN, "/etc/passwd", EACCES);
    refuses(r->broker, BROKER_LIST, r->folder, EACCES);
    refuses(r->broker, BROKER_OPEN, "/dev/zero", ENODEV);
    int folder = broker_ask(r->broker, BROKER_LIST, r->rows[1].path);
    assert_true(folder >= 0);
    close(folder);
    /* a model that is a link to another folder, made later */
    assert_int_equal(symlink(r->path[1], in(r, 5, "models/link")), 0);
    expect(r->broker, in(r, 5, "models/link"), "secret");
    refuses(r->broker, BROKER_REMOVE, keys, EACCES);
}

static void test_socket(void **state)
{
    struct rig *r = *state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path = in(r, 3, "sock");
    memcpy(at.sun_path, path, strlen(path));
    put(path, "no socket");
    refuses(r->broker, BROKER_REMOVE, path, EACCES);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
    assert_int_equal(broker_ask(r->broker, BROKER_REMOVE, path), 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A path of any length and any bytes is answered; descriptors that do not fit are an error of this side. */
static void test_abuse(void **state)
{
    struct rig *r = *state;
    static char longest[10000];
    memset(longest, 'x', sizeof longest - 1);
    refuses(r->broker, BROKER_OPEN, longest, ENAMETOOLONG);
    longest[4000] = 0;
    refuses(r->broker, BROKER_OPEN, longest, EACCES);
    refuses(r->broker, (enum broker_request)77, r->rows[0].path, EACCES);
    for (int i = 0; i < 2000; i++) /* none is left open on either side */
        expect(r->broker, r->rows[0].path, "old");
}

static void test_end(void **state)
{
    struct rig *r = *state;
    char command[64];
    snprintf(command, sizeof command, "/proc/self/task/%d/children", getpid());
    FILE *f = fopen(command, "r");
    int child = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &child), 1);
    fclose(f);
    assert_int_equal(kill(child, SIGTERM), 0); /* is for the server */
    expect(r->broker, r->rows[0].path, "old");
    assert_int_equal(kill(child, SIGKILL), 0);
    refuses(r->broker, BROKER_OPEN, r->rows[0].path, EPIPE);
    refuses(r->broker, BROKER_OPEN, r->rows[0].path, EPIPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test_setup_teardown(test_files, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_socket, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_abuse, open_rig, close_rig),
        cmocka_unit_test_setup_teardown(test_end, open_rig, close_rig),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
