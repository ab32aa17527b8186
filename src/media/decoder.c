#define _GNU_SOURCE
#include "media/decoder.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/calls.h"
#include "base/confine.h"
#include "base/log.h"
#include "base/mem.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

struct decoder {
    struct child child;
};

struct decoder_request {
    struct image_limits limits;
    uint64_t size; /* bytes that follow on the passed socket */
};

/* Pixels follow it, where code is 0. */
struct decoder_reply {
    int32_t code, width, height;
    char text[sizeof((struct err *)0)->text];
};

/* ---- the child of one image ---- */

static const uint16_t decode_calls[] = {
    SYS_read,         SYS_sendto,      SYS_write,         SYS_brk,        SYS_mmap,   SYS_munmap,
    SYS_mremap,       SYS_madvise,     SYS_mprotect,      SYS_futex,      SYS_getpid, SYS_gettid,
    SYS_rt_sigreturn, SYS_sigaltstack, SYS_clock_gettime, SYS_exit_group,
};

/* The most that the libraries take: coefficients, canvases and the result, some 20 bytes a pixel. `held` is what the process
 * has mapped already; sanitizers map the whole address space, and get no limit. */
static void decode_confine(const struct decoder_request *r, uint64_t held)
{
    const uint64_t most = held + (64ull << 20) + r->size + 20 * r->limits.pixels;
    const struct rlimit memory = {most, most}, none = {0, 0},
                        cpu = {r->limits.seconds + 1, r->limits.seconds + 1};
    const struct confine_calls calls = {.calls = decode_calls,
                                        .count = sizeof decode_calls / sizeof *decode_calls};
    signal(SIGALRM, SIG_DFL);
    alarm(r->limits.seconds);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_FSIZE, &none);
    if (held < 1ull << 40)
        setrlimit(RLIMIT_AS, &memory);
    confine_calls(&calls, 1, NULL);
}

static _Noreturn void decode_one(int fd, const struct decoder_request *r, uint64_t held)
{
    struct decoder_reply reply = {0};
    struct image image = {0};
    struct err e = {0};
    decode_confine(r, held);
    uint8_t *bytes = mem_alloc(r->size ? r->size : 1, 1);
    if (!bytes)
        err_memory(&e, "the image", r->size);
    else if (!child_read(fd, bytes, r->size))
        _exit(1);
    else
        image_decode(&image, bytes, r->size, &r->limits, &e);
    reply.code = e.code;
    reply.width = image.width;
    reply.height = image.height;
    snprintf(reply.text, sizeof reply.text, "%s", e.text);
    if (child_write(fd, &reply, sizeof reply) && !reply.code)
        child_write(fd, image.rgb, (size_t)image.width * (size_t)image.height * 3);
    _exit(0);
}

/* ---- the process that waits ---- */

static const uint16_t wait_calls[] = {
    SYS_recvmsg,   SYS_sendmsg, SYS_clone,           SYS_alarm,        SYS_setrlimit,
    SYS_prlimit64, SYS_prctl,   SYS_seccomp,         SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_close,     SYS_wait4,   SYS_set_robust_list, SYS_rseq};

static uint64_t decoder_mapped(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void decoder_child(int fd, void *arg)
{
    (void)arg;
    struct decoder_request r;
    const struct confine_calls calls[] = {
        {.calls = wait_calls, .count = sizeof wait_calls / sizeof *wait_calls},
        {.calls = decode_calls, .count = sizeof decode_calls / sizeof *decode_calls},
    };
    uint64_t held = decoder_mapped();
    signal(SIGCHLD, SIG_IGN); /* the kernel removes what has ended */
    confine_files(&(struct confine_files){0});
    if (!confine_calls(calls, 2, NULL))
        log_warn("this kernel takes no seccomp filter: images are decoded with the rights of this program");
    child_ready(fd);
    for (int own; child_take(fd, &r, sizeof r, &own) == sizeof r;) {
        if (own < 0)
            continue;
        if (r.size <= r.limits.bytes && !fork())
            decode_one(own, &r, held);
        close(own);
    }
}

/* ---- the program's side ---- */

int decoder_start(struct decoder **out, struct err *e)
{
    struct decoder *d = mem_zalloc(1, sizeof *d);
    if (!d)
        return err_memory(e, "the decoder", sizeof *d);
    if (child_start(&d->child, "quern-decoder", "decodes images", decoder_child, NULL, e)) {
        mem_free(d);
        return -1;
    }
    *out = d;
    return 0;
}

void decoder_stop(struct decoder *d)
{
    if (d)
        child_stop(&d->child);
    mem_free(d);
}

/* The pixels; -1 without an error: the process ended before. */
static int decoder_read(int fd, struct image *out, const struct image_limits *limits, struct err *e)
{
    struct decoder_reply reply;
    if (!child_read(fd, &reply, sizeof reply))
        return -1;
    reply.text[sizeof reply.text - 1] = 0;
    if (reply.code)
        return err_set(e, reply.code == ERR_RESOURCE ? ERR_RESOURCE : ERR_DATA, "%s", reply.text);
    if (reply.width < 1 || reply.height < 1 || reply.width > IMAGE_SIDE || reply.height > IMAGE_SIDE ||
        (uint64_t)reply.width * (uint64_t)reply.height > limits->pixels)
        return -1;
    if (image_new(out, reply.width, reply.height, e))
        return -1;
    if (child_read(fd, out->rgb, (size_t)reply.width * (size_t)reply.height * 3))
        return 0;
    image_free(out);
    return -1;
}

int decoder_run(struct decoder *d, struct image *out, const void *bytes, size_t n,
                const struct image_limits *limits, struct err *e)
{
    struct decoder_request r;
    /* All of its bytes are sent: no struct is copied into it, whose gaps may hold anything. */
    memset(&r, 0, sizeof r);
    r.limits.bytes = limits->bytes;
    r.limits.pixels = limits->pixels;
    r.limits.seconds = limits->seconds;
    r.size = n;
    *out = (struct image){0};
    if (n > limits->bytes)
        return err_set(e, ERR_DATA, "the image has %zu bytes; at most %llu are decoded", n,
                       (unsigned long long)limits->bytes);
    double start = clock_now();
    /* the kernel stops the child in time; the patience is for a machine that is too busy to */
    int fd = child_call(&d->child, &r, sizeof r, limits->seconds + 5, e), failed = -1;
    if (fd < 0)
        return -1;
    if (child_write(fd, bytes, n))
        failed = decoder_read(fd, out, limits, e);
    close(fd);
    if (failed && !e->code && clock_now() - start >= limits->seconds)
        err_set(e, ERR_DATA, "the image took longer than %u s to decode", limits->seconds);
    else if (failed && !e->code)
        err_set(e, ERR_DATA, "decoding the image failed: it is damaged, or needs too much memory");
    return failed;
}
