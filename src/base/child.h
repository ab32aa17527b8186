/* A helper process: a fork of this one, started before there are threads, with one socket to its parent and no other
 * descriptor but the log. It ends with its parent. Messages may pass a descriptor. */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct child {
    int fd;
    pid_t pid;
};

/* Starts a process of this name (at most 15 letters are shown). `run` gives up rights, calls child_ready, and
 * serves until the socket closes. `what` completes "cannot start the process that ...". */
int child_start(struct child *c, const char *name, const char *what, void (*run)(int fd, void *arg),
                void *arg, struct err *e);
void child_ready(int fd);
void child_stop(struct child *c); /* closes the socket and waits */

/* One message; pass: a descriptor, -1 = none. */
bool child_send(int fd, const void *data, size_t n, int pass);
/* The length of the next message, 0 where the other end is closed. *passed: a descriptor, -1 = none, -2 = there was no
 * free descriptor to receive it. */
size_t child_take(int fd, void *data, size_t room, int *passed);

/* A stream of its own with a helper: sends it the request and one end of a new socket, and returns the other end, where
 * every read and write fails after these seconds; -1 and an error. */
int child_call(const struct child *c, const void *request, size_t n, unsigned seconds, struct err *e);
/* All of it; false: the other end is closed, or too slow. */
bool child_read(int fd, void *to, size_t n);
bool child_write(int fd, const void *from, size_t n);
