/* OpenAI's files: /v1/files. They are stored in the state; each key sees its own. All of it runs on a worker. */
#pragma once

#include <jansson.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct request;

enum { FILES_ID = 48 };

void files_create(struct request *a);
void files_list(struct request *a);
void files_get(struct request *a);
void files_delete(struct request *a);
void files_content(struct request *a);

/* A page of a list: `limit` (up to `most`), `after` (an id) and `order` of the query. -1 and a failure. */
struct files_page {
    int64_t limit;
    const char *after; /* NULL = from the first on */
    bool ascending;
};
int files_page(struct request *a, int64_t usual, int64_t most, struct files_page *out);

/* Reads the next bytes of a file's content, or of replies of a batch, for a reply in parts. */
struct files_cursor {
    int64_t file;  /* its number; 0 = replies of a batch */
    int64_t batch; /* its number */
    int side;      /* 0: of status 200, 1: others, -1: all */
    int64_t at;    /* the last part or line */
};
/* The reply of the request becomes that, of this type. The cursor is copied. */
void files_stream(struct request *a, const struct files_cursor *c, const char *type);
void files_more(struct request *a); /* the next part, where the route is called again */
/* Appends about as many bytes as a part has to the buffer. 1: there is more, 0: that is the end. */
struct buf;
int files_read(sqlite3 *db, struct files_cursor *c, struct buf *out, struct err *e);
/* Removes files whose time has come, on the writer. */
int files_expire(sqlite3 *db, int64_t now, struct err *e);
