#include "comm/job.h"

#include "base/log.h"
#include "base/num.h"
#include "comm/mpi.h"
#include "comm/tcp.h"

#include <stdio.h>
#include <string.h>

/* A number of the environment. 1: it is there, 0: it is not. */
static int job_number(const char *(*get)(const char *), const char *name, uint64_t most, uint64_t *out,
                      struct err *e)
{
    const char *text = get(name);
    if (!text || !*text)
        return 0;
    if (num_u64(text, strlen(text), most, out))
        return 1;
    return err_set(e, ERR_USAGE, "%s is '%s' in the environment; a number up to %llu was expected", name,
                   log_safe(text), (unsigned long long)most);
}

/* Where each starter says it. */
static const struct source {
    enum job_kind kind;
    const char *rank, *size, *local, *address, *port;
} sources[] = {
    {JOB_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL, NULL},
    {JOB_TCP, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
    {JOB_TCP, "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", NULL, "LWS_LEADER_ADDRESS", "QUERN_RANK_PORT"},
};

static int job_source(struct rank_job *j, const struct source *s, const char *(*get)(const char *),
                      struct err *e)
{
    uint64_t rank = 0, size = 0, local = 0, port = JOB_PORT;
    int has_rank = job_number(get, s->rank, UINT32_MAX, &rank, e),
        has_size = job_number(get, s->size, UINT32_MAX, &size, e);
    if (has_rank < 0 || has_size < 0)
        return -1;
    if (!has_rank || !has_size || size < 2)
        return 0;
    const char *address = s->address ? get(s->address) : NULL;
    if (s->address && (!address || !*address)) /* a number alone says nothing about other processes */
        return 0;
    if (rank >= size || size > COMM_RANKS_MOST)
        return err_set(e, ERR_USAGE,
                       "%s and %s in the environment say rank %llu of %llu; the most is %d ranks", s->rank,
                       s->size, (unsigned long long)rank, (unsigned long long)size, COMM_RANKS_MOST);
    if ((s->local && job_number(get, s->local, UINT32_MAX, &local, e) < 0) ||
        (s->port && job_number(get, s->port, UINT16_MAX, &port, e) < 0))
        return -1;
    if (address && strlen(address) >= sizeof j->address)
        return err_set(e, ERR_USAGE, "%s in the environment is too long", s->address);
    j->kind = s->kind;
    j->rank = (uint32_t)rank;
    j->size = (uint32_t)size;
    j->local = (uint32_t)local;
    j->port = (uint16_t)port;
    snprintf(j->address, sizeof j->address, "%s", address ? address : "");
    return 1;
}

int job_read(struct rank_job *j, const char *(*get)(const char *name), struct err *e)
{
    const char *key = get("QUERN_RANK_KEY");
    uint64_t wait = JOB_PATIENCE;
    *j = (struct rank_job){0};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        int found = job_source(j, &sources[i], get, e);
        if (found < 0)
            return -1;
        if (found)
            break;
    }
    if (j->kind == JOB_NONE)
        return 0;
    if (key && strlen(key) >= sizeof j->key)
        return err_set(e, ERR_USAGE, "QUERN_RANK_KEY has more than %zu bytes", sizeof j->key - 1);
    snprintf(j->key, sizeof j->key, "%s", key ? key : "");
    if (job_number(get, "QUERN_RANK_WAIT", 86400, &wait, e) < 0)
        return -1;
    j->patience = (double)wait;
    return 0;
}

int job_join(struct comm **out, const struct rank_job *j, struct err *e)
{
    return j->kind == JOB_MPI ? comm_mpi(out, j, e) : comm_tcp(out, j, e);
}
