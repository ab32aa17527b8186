#define _GNU_SOURCE
#include "save/state.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "save/schema.h"
#include "save/sql.h"
#include "save/state_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STATE_BUSY_MS = 10000 }; /* another program, such as quern state purge, has the database */
static const double CHECK_SECONDS =
    0.3; /* at the start; what is left of the check follows while the server runs */

void state_path(const struct state *s, const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%.*s/%s", PATH_MAX - 64, s->folder, name);
}

int state_make_folder(const char *path, struct err *e)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (!n || n > PATH_MAX - 64)
        return err_set(e, ERR_USAGE, "the path of the state folder has to have 1 to %d bytes", PATH_MAX - 64);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++)
        if (part[i] == '/' || !part[i]) {
            char kept = part[i];
            part[i] = 0;
            if (mkdir(part, 0700) && errno != EEXIST && i == n)
                return err_set(e, ERR_FULL, "cannot make the state folder %s: %s", log_safe(path),
                               strerror(errno));
            part[i] = kept;
        }
    return 0;
}

/* ---- the folder ---- */

/* A POSIX lock: the broker, which is forked later, does not have it. */
static int state_lock(struct state *s, struct err *e)
{
    char path[PATH_MAX];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    state_path(s, "lock", path);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0)
        return err_set(e, ERR_FULL, "the state folder %s cannot be written: %s", log_safe(s->folder),
                       strerror(errno));
    if (!fcntl(s->lock_fd, F_SETLK, &lock))
        return 0;
    if (errno != EAGAIN && errno != EACCES)
        return err_set(e, ERR_FULL, "cannot lock the state folder %s: %s", log_safe(s->folder),
                       strerror(errno));
    lock.l_type = F_WRLCK;
    fcntl(s->lock_fd, F_GETLK, &lock);
    return err_set(
        e, ERR_RESOURCE,
        "another server (process %ld) uses the state folder %s: give this one its own with --state-dir, or "
        "--no-state",
        (long)lock.l_pid, log_safe(s->folder));
}

/* Renames the database and what belongs to it; "" where that fails. */
static void state_move_aside(const struct state *s, char to[PATH_MAX])
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char from[PATH_MAX], base[PATH_MAX], when[32], target[PATH_MAX + 8];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &tm);
    for (int i = 0; i < 100; i++) { /* a name that is free */
        char name[64];
        snprintf(name, sizeof name, i ? "damaged-%s-%d.db" : "damaged-%s.db", when, i);
        state_path(s, name, to);
        if (access(to, F_OK))
            break;
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        state_path(s, "quern.db", base);
        snprintf(from, sizeof from, "%.*s%s", PATH_MAX - 8, base, ends[i]);
        snprintf(target, sizeof target, "%s%s", to, ends[i]);
        if (rename(from, target) && !i)
            to[0] = 0;
    }
    state_path(s, "damaged", from);
    unlink(from);
}

void state_damage(struct state *s, const char *why)
{
    char path[PATH_MAX];
    if (atomic_exchange(&s->damaged, true))
        return;
    log_error(
        "the database in %s is damaged (%s): nothing more is stored; restart the server, it then moves the "
        "database aside and begins a new one",
        log_safe(s->folder), log_safe(why));
    if (!s->folder[0])
        return;
    state_path(s, "damaged", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
}

/* ---- the database ---- */

static int state_pragmas(const struct state *s, sqlite3 *db, bool write, struct err *e)
{
    char most[64];
    sqlite3_busy_timeout(db, STATE_BUSY_MS);
    sqlite3_extended_result_codes(db, 1);
    /* content comes from clients: a file that was changed by others cannot make functions run */
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    if (sql_run(db, "PRAGMA temp_store = memory; PRAGMA foreign_keys = on; PRAGMA cache_size = -2048", e))
        return -1;
    if (!write)
        return sql_run(db, "PRAGMA query_only = on", e);
    uint64_t size = (uint64_t)sql_number(db, "PRAGMA page_size", 4096);
    snprintf(most, sizeof most, "PRAGMA max_page_count = %llu",
             (unsigned long long)(s->most && s->most / size < 0xfffffffe ? s->most / size : 0xfffffffe));
    return sql_run(db, "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA secure_delete = on",
                   e) ||
                   sql_run(db, most, e)
               ? -1
               : 0;
}

int state_connect(const struct state *s, bool write, sqlite3 **out, struct err *e)
{
    char path[PATH_MAX] = ":memory:";
    if (s->folder[0])
        state_path(s, "quern.db", path);
    int code = sqlite3_open_v2(
        path, out, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW,
        NULL);
    if (*out && !code && !state_pragmas(s, *out, write, e))
        return 0;
    if (*out && !e->code)
        sql_fail(*out, code, e);
    sqlite3_close(*out);
    *out = NULL;
    return e->code ? -1 : err_memory(e, "the database", 0);
}

static int state_migrate(const struct state *s, sqlite3 *db, struct err *e)
{
    int64_t version = sql_number(db, "PRAGMA user_version", 0);
    if (version > schema_count)
        return err_set(
            e, ERR_USAGE,
            "the state in %s is of version %lld, and this program knows versions up to %d: use the newer "
            "program, another --state-dir, or --no-state",
            log_safe(s->folder), (long long)version, schema_count);
    for (; version < schema_count; version++) {
        char set[64];
        snprintf(set, sizeof set, "PRAGMA user_version = %d; COMMIT", (int)version + 1);
        if (sql_run(db, "BEGIN IMMEDIATE", e) || sql_run(db, schema_versions[version], e) ||
            sql_run(db, set, e)) {
            sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
            return -1;
        }
    }
    return 0;
}

/* The file exists with 0600 before SQLite opens it; its journal gets the same rights. */
static int state_make_file(const struct state *s, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    if (!s->folder[0])
        return 0;
    state_path(s, "quern.db", path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        err_set(e, ERR_FULL, "cannot write %s: %s", log_safe(path),
                fd < 0 ? strerror(errno) : "it is no file");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    close(fd);
    return 0;
}

/* The writer's connection, checked and migrated. 1: the check is not finished. */
static int state_load(struct state *s, struct err *e)
{
    if (state_make_file(s, e) || state_connect(s, true, &s->db, e))
        return -1;
    int check = state_quick_check(s, s->db, CHECK_SECONDS, e);
    if (check >= 0 && !state_migrate(s, s->db, e))
        return check;
    sqlite3_close(s->db);
    s->db = NULL;
    return -1;
}

/* A damaged one is moved aside, and a new one begins. */
static int state_load_or_begin(struct state *s, struct err *e)
{
    char marker[PATH_MAX], to[PATH_MAX];
    state_path(s, "damaged", marker);
    int marked = s->folder[0] && !access(marker, F_OK), r = marked ? -1 : state_load(s, e);
    if (marked)
        err_set(e, ERR_DATA, "damage was found while it was in use");
    if (r >= 0 || e->code != ERR_DATA || !s->folder[0])
        return r;
    state_move_aside(s, to);
    if (!to[0])
        return err_prefix(e, "%s, and it could not be moved aside", log_safe(s->folder));
    log_error("the database of the state folder was damaged (%s); it is now %s, and a new one begins",
              e->text, log_safe(to));
    *e = (struct err){0};
    return state_load(s, e);
}

static int state_threads(struct state *s, bool check, struct err *e)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = pthread_create(&s->writer, NULL, state_writer, s);
    s->has_writer = !r;
    if (!r && check)
        s->has_checker = !pthread_create(&s->checker, NULL, state_checker, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r ? err_set(e, ERR_RESOURCE, "cannot start the writer of the state: %s", strerror(r)) : 0;
}

int state_open(struct state **out, const struct state_options *o, struct err *e)
{
    struct state *s = mem_zalloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(e, "the state", sizeof *s);
    s->lock_fd = -1;
    s->most = o->most;
    s->end = &s->first;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_mutex_init(&s->alone, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->reader_free, NULL);
    snprintf(s->folder, sizeof s->folder, "%s", o->folder ? o->folder : "");
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit is an error of the write */
    int check = s->folder[0] && state_lock(s, e) ? -1 : state_load_or_begin(s, e);
    while (check >= 0 && s->folder[0] && s->reader_count < STATE_READERS) {
        if (state_connect(s, false, &s->readers[s->reader_count], e))
            check = -1;
        else
            s->reader_count++;
    }
    if (check < 0 || state_threads(s, check == 1, e)) {
        state_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void state_close(struct state *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->mutex);
    atomic_store(&s->closing, true);
    pthread_cond_broadcast(&s->work);
    sqlite3 *checked = atomic_load(&s->checked);
    if (checked)
        sqlite3_interrupt(checked);
    pthread_mutex_unlock(&s->mutex);
    if (s->has_writer)
        pthread_join(s->writer, NULL);
    if (s->has_checker)
        pthread_join(s->checker, NULL);
    for (uint32_t i = 0; i < s->reader_count; i++)
        sqlite3_close(s->readers[i]);
    sqlite3_close(s->db);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->alone);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->reader_free);
    mem_free(s);
}

bool state_is_kept(const struct state *s)
{
    return s->folder[0];
}

/* ---- readers ---- */

sqlite3 *state_reader(struct state *s)
{
    if (!s->folder[0]) {
        pthread_mutex_lock(&s->alone);
        return s->db;
    }
    pthread_mutex_lock(&s->mutex);
    while (!s->reader_count)
        pthread_cond_wait(&s->reader_free, &s->mutex);
    sqlite3 *db = s->readers[--s->reader_count];
    pthread_mutex_unlock(&s->mutex);
    return db;
}

void state_release(struct state *s, sqlite3 *db)
{
    if (!s->folder[0]) {
        pthread_mutex_unlock(&s->alone);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    s->readers[s->reader_count++] = db;
    pthread_cond_signal(&s->reader_free);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- beside a server ---- */

int state_open_beside(sqlite3 **out, const char *folder, bool write, struct err *e)
{
    struct state s = {.lock_fd = -1};
    char path[PATH_MAX];
    snprintf(s.folder, sizeof s.folder, "%s", folder);
    state_path(&s, "quern.db", path);
    if (access(path, R_OK))
        return err_set(e, ERR_DATA, "there is no state in %s: %s", log_safe(folder), strerror(errno));
    if (state_connect(&s, write, out, e))
        return -1;
    int64_t version = sql_number(*out, "PRAGMA user_version", -1);
    if (version == schema_count)
        return 0;
    err_set(e, ERR_DATA, "the state in %s is of version %lld, and this program knows version %d%s",
            log_safe(folder), (long long)version, schema_count,
            version < schema_count ? ": a server of this program brings it up to date" : "");
    sqlite3_close(*out);
    *out = NULL;
    return -1;
}
