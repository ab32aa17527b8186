/* A light client for bench/serve.py: serve_client PORT PATH. Every line of its input is "MILLISECONDS BODY": a request that
 * is sent so long after the start, on a connection of its own, and answered by a stream of events. For each it prints a
 * line: the status, when it was sent, and when each event came, in milliseconds since the start. One thread, and
 * nothing is done with an event but to look for its first bytes, so that the server has the processor. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 256, EVENTS = 1 << 16, READ = 1 << 16 };

/* An event with JSON: [DONE], lines that say "alive" and names of events do not count. */
static const char event_begins[] = "\ndata: {";

struct request {
    double due, sent;
    char *body;
    int fd; /* -1: not sent yet, or over */
    bool over;
    char status[4];
    size_t head;   /* bytes of the status line that have come */
    size_t match;  /* bytes of event_begins that have come */
    double *times; /* (EVENTS) */
    size_t count;
};

static struct request all[STREAMS];
static size_t request_count;
static double begun;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "serve_client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void read_requests(void)
{
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; (n = getline(&line, &room, stdin)) > 0 && request_count < STREAMS;) {
        struct request *r = &all[request_count++];
        char *body;
        r->due = strtod(line, &body);
        r->body = strdup(body + strspn(body, " "));
        r->times = malloc(EVENTS * sizeof *r->times);
        r->fd = -1;
        if (!r->body || !r->times)
            die("memory");
        r->body[strcspn(r->body, "\n")] = 0;
    }
    free(line);
}

/* The server is on this machine and reads at once: the request is written in one go. */
static void send_request(struct request *r, uint16_t port, const char *path)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char head[512];
    size_t n = strlen(r->body);
    int length = snprintf(head, sizeof head,
                          "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                          path, n);
    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (r->fd < 0 || connect(r->fd, (struct sockaddr *)&to, sizeof to))
        die("connect");
    r->sent = now_ms() - begun;
    if (send(r->fd, head, (size_t)length, MSG_MORE) != length)
        die("send");
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(r->fd, r->body + at, n - at, 0);
        if (sent < 0)
            die("send");
        at += (size_t)sent;
    }
}

static void take_byte(struct request *r, char c, double at)
{
    static const size_t status_at = sizeof "HTTP/1.1 " - 1;
    if (r->head < status_at + 3) {
        if (r->head >= status_at)
            r->status[r->head - status_at] = c;
        r->head++;
    }
    r->match = c == event_begins[r->match] ? r->match + 1 : c == '\n';
    if (event_begins[r->match])
        return;
    r->match = 0;
    if (r->count < EVENTS)
        r->times[r->count++] = at;
}

static void receive(struct request *r)
{
    static char bytes[READ];
    ssize_t n = recv(r->fd, bytes, sizeof bytes, 0);
    double at = now_ms() - begun;
    for (ssize_t i = 0; i < n; i++)
        take_byte(r, bytes[i], at);
    if (n > 0)
        return;
    close(r->fd);
    r->fd = -1;
    r->over = true;
}

/* Sends what is due, waits for bytes or for the next one to become due; false: all are over. */
static bool turn(uint16_t port, const char *path)
{
    struct pollfd wait[STREAMS];
    struct request *whose[STREAMS];
    nfds_t n = 0;
    double next = 1e9;
    bool any = false;
    for (size_t i = 0; i < request_count; i++) {
        struct request *r = &all[i];
        double left = r->due - (now_ms() - begun);
        if (!r->over && r->fd < 0 && left <= 0)
            send_request(r, port, path);
        else if (!r->over && r->fd < 0)
            next = left < next ? left : next;
        any |= !r->over;
        if (r->fd >= 0) {
            whose[n] = r;
            wait[n++] = (struct pollfd){.fd = r->fd, .events = POLLIN};
        }
    }
    if (any && poll(wait, n, next < 1e9 ? (int)next + 1 : -1) < 0)
        die("poll");
    for (nfds_t i = 0; any && i < n; i++)
        if (wait[i].revents)
            receive(whose[i]);
    return any;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: serve_client PORT PATH < REQUESTS\n");
        return 64;
    }
    uint16_t port = (uint16_t)strtoul(argv[1], NULL, 10);
    read_requests();
    begun = now_ms();
    while (turn(port, argv[2]))
        ;
    for (size_t i = 0; i < request_count; i++) {
        printf("%s %.3f", all[i].head ? all[i].status : "0", all[i].sent);
        for (size_t k = 0; k < all[i].count; k++)
            printf(" %.3f", all[i].times[k]);
        printf("\n");
        free(all[i].body);
        free(all[i].times);
    }
    return 0;
}
