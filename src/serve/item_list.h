/* A list of stored items as the API returns it: a page of them, by the fields limit, order and after of the query. */
#pragma once

#include "base/buf.h"
#include "save/threads.h"

#include <stdbool.h>
#include <stddef.h>

struct request;

struct item_list {
    struct item_text {
        char id[THREAD_ID];
        struct buf body;
    } * all; /* (count) */
    size_t count, room;
    bool failed; /* out of memory */
    /* of the query */
    const char *after; /* NULL = from the first */
    bool descending;
    size_t limit;
};

/* Reads the query; -1 and a failure. */
int item_list_read(struct item_list *l, struct request *a);
bool item_list_take(void *list, const struct thread_item *item); /* a thread_each */
/* The reply: of items in order of time, all of them, the page that the query asks for. */
void item_list_write_page(struct item_list *l, struct request *a);
/* The reply: all items as they are; more: there are others after them. */
void item_list_write(struct item_list *l, struct request *a, size_t from, size_t count, bool more);
void item_list_free(struct item_list *l);
