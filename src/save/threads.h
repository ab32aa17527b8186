/* Stored responses and conversations. A thread is what is kept and removed together: a conversation, or responses that go on
 * from each other. Everything belongs to a key, and others do not find it. Items and bodies are JSON; nothing here looks
 * into them. */
#pragma once

#include "base/err.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { THREAD_ID = 64 };

struct thread_item {
    const char *id, *body;
    size_t n;
};

/* What is stored of a response, at its end or, of one in the background, at its beginning and at its end. */
struct thread_response {
    char id[THREAD_ID];
    int64_t key, now;
    const char *previous, *conversation; /* ids; NULL = none */
    bool store;                          /* else its items alone, for the conversation */
    bool running, removed;               /* removed: at its end nothing of it stays */
    const char *body, *events;           /* events NULL = none */
    const struct thread_item *input, *output;
    size_t input_count, output_count;
};

/* Inside of a write. */
int thread_store(sqlite3 *db, const struct thread_response *r, struct err *e);
/* Responses that were running when the server ended: `error` is their error, as JSON. */
int thread_fail_running(sqlite3 *db, const char *error, struct err *e);
/* 1 = there is none. */
int thread_delete_response(sqlite3 *db, int64_t key, const char *id, struct err *e);
int thread_delete_conversation(sqlite3 *db, int64_t key, const char *id, struct err *e);
int thread_delete_item(sqlite3 *db, int64_t key, const char *conversation, const char *id, struct err *e);
int thread_create(sqlite3 *db, int64_t key, const char *id, int64_t now, const char *metadata, struct err *e);
int thread_set_metadata(sqlite3 *db, int64_t key, const char *id, const char *metadata, struct err *e);
/* Items of a client's. 1 = there is no such conversation. */
int thread_add_items(sqlite3 *db, int64_t key, const char *conversation, int64_t now,
                     const struct thread_item *items, size_t count, struct err *e);
/* Removes some of those that were not used since `before`, and some of the least recently used while all are above `most`
 * bytes. The number of threads removed, or -1. */
int thread_expire(sqlite3 *db, int64_t before, uint64_t most, struct err *e);

/* Look-ups. The callback gets each item in order; it returns false to stop. 1 = there is none. */
typedef bool thread_each(void *arg, const struct thread_item *item);
int thread_response_body(sqlite3 *db, int64_t key, const char *id, bool *running,
                         void (*got)(void *arg, const char *body, size_t n, const char *events,
                                     size_t events_n),
                         void *arg, struct err *e);
/* What a response was made of and what it answered, with all that it goes on from; without `output`, not its own answer. */
int thread_chain(sqlite3 *db, int64_t key, const char *response, bool output, thread_each *each, void *arg,
                 struct err *e);
int thread_conversation(sqlite3 *db, int64_t key, const char *id, int64_t *created,
                        void (*metadata)(void *arg, const char *text, size_t n), void *arg, struct err *e);
/* Items of a conversation after the item of this id (NULL = from the first, or of a descending list from the last). */
struct thread_page {
    const char *conversation, *after, *only; /* only: the item of this id */
    bool descending;
    int64_t limit;
};
int thread_items(sqlite3 *db, int64_t key, const struct thread_page *p, thread_each *each, void *arg,
                 struct err *e);
