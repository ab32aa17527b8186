#define _GNU_SOURCE
#include "comm/mpi.h"

#include "base/log.h"
#include "base/mem.h"
#include "comm/tcp.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MPI_PART_FILE "libquern-mpi.so"

struct mpi_comm {
    struct comm base;
    struct lifeline life;
    const struct mpi_part *part;
    bool started;
};

static int mpi_fail(const struct mpi_comm *m, int error, struct err *e)
{
    char text[256] = "";
    m->part->text(error, text, sizeof text);
    return err_set(e, ERR_DEVICE, "rank %u: MPI: %s", m->base.rank, log_safe(text));
}

static int mpi_exchange(struct comm *c, const struct comm_move *moves, uint32_t count, struct err *e)
{
    const struct mpi_comm *m = (const struct mpi_comm *)c;
    int failed = m->part->exchange(moves, count);
    return failed ? mpi_fail(m, failed, e) : 0;
}

static int mpi_watch(struct comm *c, struct err *e)
{
    return lifeline_start(&((struct mpi_comm *)c)->life, e);
}

static void mpi_abort(struct comm *c, const char *why)
{
    lifeline_abort(&((struct mpi_comm *)c)->life, why);
}

static void mpi_close(struct comm *c)
{
    struct mpi_comm *m = (struct mpi_comm *)c;
    lifeline_close(&m->life);
    if (m->started)
        m->part->end();
    mem_free(m);
}

/* Beside the program, where it is installed, or where the linker looks. */
static void *part_load(void)
{
    char self[PATH_MAX], path[PATH_MAX + 64];
    const char *named = getenv("QUERN_MPI_PART");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    static const char *const where[] = {"", "/../lib/quern"};
    void *found = named ? dlopen(named, RTLD_NOW | RTLD_GLOBAL) : NULL;
    for (size_t i = 0; i < 2 && !found && !named; i++) {
        snprintf(path, sizeof path, "%s%s/%s", self, where[i], MPI_PART_FILE);
        found = access(path, R_OK) ? NULL : dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    return found || named ? found : dlopen(MPI_PART_FILE, RTLD_NOW | RTLD_GLOBAL);
}

static int part_find(const struct mpi_part **out, struct err *e)
{
    void *library = part_load();
    const struct mpi_part *(*get)(void) = NULL;
    if (library)
        *(void **)&get = dlsym(library, MPI_PART_SYMBOL);
    *out = get ? get() : NULL;
    if (*out && (*out)->version == MPI_PART_VERSION)
        return 0;
    const char *why = library ? NULL : dlerror();
    return err_set(e, ERR_RESOURCE,
                   "mpirun has started several ranks, but " MPI_PART_FILE
                   " cannot be used (%s); it is built where libopenmpi-dev is installed. Without MPI, RANK, "
                   "WORLD_SIZE, MASTER_ADDR and MASTER_PORT connect ranks by TCP",
                   why ? log_safe(why) : "another version");
}

/* Where rank 0 listens for signs of life. */
struct meeting {
    char address[256];
    uint16_t port;
    uint16_t unused[3];
};

static int mpi_meet(struct mpi_comm *m, const struct rank_job *j, struct err *e)
{
    struct meeting at = {.port = 0};
    const char *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    bool one_machine = here && strtoul(here, NULL, 10) == m->base.size;
    struct err own = {0};
    struct rank_job meet = *j;
    int listener = -1;
    snprintf(at.address, sizeof at.address, "127.0.0.1");
    if (!m->base.rank) {
        listener = tcp_listen(!one_machine, &at.port, &own);
        if (!one_machine)
            gethostname(at.address, sizeof at.address - 1);
    }
    int failed = m->part->broadcast(&at, sizeof at);
    if (failed)
        return mpi_fail(m, failed, e);
    if (!at.port)
        return err_set(e, ERR_RESOURCE, "%s", own.code ? own.text : "rank 0 cannot listen");
    at.address[sizeof at.address - 1] = 0;
    snprintf(meet.address, sizeof meet.address, "%s", at.address);
    meet.port = at.port;
    return tcp_lifelines(&m->life, &meet, listener, e);
}

int comm_mpi(struct comm **out, const struct rank_job *j, struct err *e)
{
    static const struct comm_ops ops = {
        .name = "mpi", .exchange = mpi_exchange, .watch = mpi_watch, .abort = mpi_abort, .close = mpi_close};
    struct mpi_comm *m = mem_zalloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(e, "ranks", sizeof *m);
    m->base = (struct comm){.ops = &ops, .rank = j->rank, .size = j->size};
    lifeline_init(&m->life, j->rank, j->size);
    if (part_find(&m->part, e)) {
        mem_free(m);
        return -1;
    }
    int failed = m->part->start(&m->base.rank, &m->base.size);
    m->started = !failed;
    failed = failed ? mpi_fail(m, failed, e) : mpi_meet(m, j, e);
    if (failed) {
        m->started = false; /* the others may wait for this one for ever: mpirun ends them */
        mpi_close(&m->base);
        return -1;
    }
    *out = &m->base;
    return 0;
}
