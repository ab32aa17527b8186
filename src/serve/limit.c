#include "serve/limit.h"
#include "base/log.h"
#include "base/num.h"
#include "format/jsonread.h"
#include "run/engine.h"
#include "serve/batches.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

/* Where the maximum equals the default, an array has that size. */
const struct limit_row limit_rows[LIMIT_COUNT] = {
    [LIMIT_BODY] = {"body", "bytes of a request's body", 16 * MIB, 1024, 1024 * MIB},
    [LIMIT_BODIES] = {"bodies", "bytes of all bodies together, and of their parsed JSON; above, 503",
                      256 * MIB, MIB, 65536 * MIB},
    [LIMIT_QUEUED] = {"queued", "bytes of prompts in the queue; above, 429", ENGINE_QUEUE_MIB *MIB, MIB,
                      65536 * MIB},
    [LIMIT_HEADERS] = {"headers", "bytes of all header lines", 32 << 10, 1024, MIB},
    [LIMIT_URI] = {"uri", "bytes of a path with its query", 8 << 10, 64, MIB},
    [LIMIT_CONNECTIONS] = {"connections", "connections at once; above, the longest idle is closed", 1024, 1,
                           65536},
    [LIMIT_HEADER_SECONDS] = {"header-seconds", "until the headers are complete", 10, 1, 3600},
    [LIMIT_BODY_SECONDS] = {"body-seconds", "until the body is complete", 30, 1, 3600},
    [LIMIT_WRITE_SECONDS] = {"write-seconds", "until a client that reads nothing is disconnected", 30, 1,
                             3600},
    [LIMIT_IDLE_SECONDS] = {"idle-seconds", "until an idle connection is closed", 60, 1, 86400},
    [LIMIT_ALIVE_SECONDS] = {"alive-seconds", "until an idle stream sends a keep-alive", 15, 1, 3600},
    [LIMIT_STATE] = {"state", "bytes of the database in the state folder; above, 507", 65536 * MIB, MIB,
                     (uint64_t)1 << 50},
    [LIMIT_FILE] = {"file", "bytes of a file, or of a batch of Anthropic's", 128 * MIB, 1024, 1024 * MIB},
    [LIMIT_FILE_DAYS] = {"file-days", "days that files of batches are kept", 30, 1, 36500},
    [LIMIT_BATCH_LINES] = {"batch-lines", "requests of a batch", 100000, 1, 10000000},
    [LIMIT_BATCHES] = {"batches", "batches that have not ended; above, 429", BATCHES_MOST, 1, BATCHES_MOST},
    [LIMIT_RESPONSE] = {"response", "bytes of the items that a stored response is made of", 64 * MIB, 1024,
                        1024 * MIB},
    [LIMIT_RESPONSES] = {"responses",
                         "bytes of stored responses and conversations; above, the oldest are removed",
                         8192 * MIB, MIB, (uint64_t)1 << 50},
    [LIMIT_ADAPTERS] = {"adapters", "adapters of a model that are loaded while it is in use (--adapter-dir)",
                        16, 1, SESSION_ADAPTERS},
    [LIMIT_ADAPTER_BYTES] = {"adapter-bytes", "bytes that those of a model take together", 4096 * MIB, MIB,
                             (uint64_t)1 << 40},
    [LIMIT_ADAPTER_RANK] = {"adapter-rank", "rank of one of them, with a bias one more", 256, 1, 1 << 16},
    [LIMIT_DEPTH] = {"depth", "nesting depth of the JSON of a request", JSONREAD_DEPTH, 4, JSONREAD_DEPTH},
    [LIMIT_VALUES] = {"values", "values in the JSON of a request", 512 << 10, 64, 64 * MIB},
    [LIMIT_SCHEMA] = {"schema", "bytes of a JSON schema", 64 << 10, 64, 16 * MIB},
    [LIMIT_MESSAGES] = {"messages", "messages of a conversation", 4096, 1, MIB},
    [LIMIT_TOOLS] = {"tools", "tools that a model may call", 128, 1, 65536},
    [LIMIT_N] = {"n", "answers to one request", REQUEST_CHOICES, 1, REQUEST_CHOICES},
    [LIMIT_STOP] = {"stop", "stop strings", OPENAI_STOPS, 0, OPENAI_STOPS},
    [LIMIT_TOP_LOGPROBS] = {"top_logprobs", "most likely tokens returned for each", ENGINE_TOP_MOST, 0,
                            ENGINE_TOP_MOST},
    [LIMIT_LOGIT_BIAS] = {"logit_bias", "tokens with a bias", OPENAI_BIASES, 0, OPENAI_BIASES},
    [LIMIT_IMAGES] = {"images", "images of a request", 64, 0, 4096},
    [LIMIT_IMAGE_BYTES] = {"image-bytes", "bytes of an image's file", 32 * MIB, 64, 1024 * MIB},
    [LIMIT_IMAGE_PIXELS] = {"image-pixels", "pixels of an image, width times height", 64 * MIB, 1,
                            1024 * MIB},
    [LIMIT_IMAGE_SECONDS] = {"image-seconds", "until an image is decoded, or fetched (--image-urls)", 10, 1,
                             600},
};

static uint64_t limit_values[LIMIT_COUNT]; /* value + 1; 0 = the default */

uint64_t limit_of(enum limit which)
{
    return limit_values[which] ? limit_values[which] - 1 : limit_rows[which].usual;
}

double limit_of_field(const char *name, double otherwise)
{
    for (int i = LIMIT_MESSAGES; i < LIMIT_COUNT; i++)
        if (!strcmp(limit_rows[i].name, name))
            return (double)limit_of((enum limit)i);
    return otherwise;
}

int limit_set(const char *assignment, struct err *e)
{
    size_t n = strcspn(assignment, "=");
    for (int i = 0; assignment[n] && i < LIMIT_COUNT; i++) {
        const struct limit_row *r = &limit_rows[i];
        const char *value = assignment + n + 1;
        uint64_t v;
        if (strlen(r->name) != n || strncmp(r->name, assignment, n))
            continue;
        if (!num_bytes(value, strlen(value), &v) || v < r->least || v > r->most)
            return err_set(e, ERR_USAGE, "--limit %s has to be from %llu to %llu, not '%s'", r->name,
                           (unsigned long long)r->least, (unsigned long long)r->most, log_safe(value));
        limit_values[i] = v + 1;
        return 0;
    }
    return err_set(e, ERR_USAGE,
                   "--limit takes NAME=VALUE with a name that 'quern serve --limit list' prints, not '%s'",
                   log_safe(assignment));
}
