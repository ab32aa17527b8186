/* What the files of the public library (include/quern.h) share. */
#pragma once

#include "quern.h"

#include "base/buf.h"
#include "base/err.h"
#include "lang/chat/output.h"
#include "run/embedder.h"
#include "run/engine.h"
#include "run/session.h"

#include <pthread.h>
#include <stdbool.h>

struct api_decoder;

struct quern_model {
    struct api_decoder *decoder;     /* of images; NULL: the model takes none */
    struct session *session, *draft; /* draft: NULL = none */
    struct engine *engine;           /* NULL with `embed`: then the embedder */
    struct embedder *embedder;
    /* guarded by the mutex: streams that have chunks, for quern_ready */
    pthread_mutex_t mutex;
    pthread_cond_t news;
    struct quern_stream *ready, **ready_end;
    bool interrupted;
};

/* A call of a tool that the model writes. */
struct api_call {
    char *name, *id;
    bool whole;
};

/* A piece while its chunk is made: the text is known by its place, since buffers move. */
struct api_piece {
    enum output_part part;
    bool more, begins;
    size_t at, n;
    size_t call; /* of a call */
};

struct quern_stream {
    struct quern_model *model;
    struct stream *stream;
    void *arg;
    /* guarded by the model's mutex */
    bool queued, opened; /* opened: it may be returned */
    struct quern_stream *next;
    /* the reader's */
    struct output_parser *parser; /* NULL = the text is text */
    json_t *tools;                /* that the parser knows */
    bool short_ids;
    struct buf text, all;           /* of the chunk: text alone, and all pieces */
    struct api_piece *piece;        /* (pieces) */
    struct quern_piece *out_pieces; /* (pieces), as the client sees them */
    size_t pieces, piece_room;
    struct api_call *calls; /* (call_count) */
    size_t call_count, call_room;
    bool begun;       /* the client has had a chunk */
    bool failed;      /* out of memory */
    const char *lead; /* the beginning of a call that the prompt ends with; static */
};

/* The process that decodes images, and the thread that keeps it. *out may be there after an error. (api_images.c) */
int api_decoder_open(struct api_decoder **out, struct err *e);
void api_decoder_close(struct api_decoder *d); /* NULL is fine */

/* The images of a request. */
struct api_pictures {
    struct quern_model *model;
    const struct quern_image *images; /* (given): beside the messages; the first `used` have their places */
    size_t given, used;
    struct picture **all;        /* (count), held */
    struct prompt_image *places; /* (count), once all are read */
    size_t room;
    uint32_t count;
};

int api_pictures_open(struct api_pictures *p, struct quern_model *m, const struct quern_request *r,
                      struct err *e);
/* Reads those of messages; returns the messages as session_prompt takes them. */
json_t *api_pictures_read(struct api_pictures *p, const json_t *messages, struct err *e);
/* Those of a plain text: it is added to `text`, with a mark for each. */
int api_pictures_raw(struct api_pictures *p, const char *raw, struct buf *text, struct err *e);
void api_pictures_free(struct api_pictures *p);

/* Copies an error to the caller, whose pointer may be NULL; returns -1. */
int api_fail(const struct err *e, struct quern_error *out);

/* A request of the first version, or with fewer fields, as one of this version. */
void api_request_read(const struct quern_request *given, struct quern_request *out);
/* The prompt of messages, prompt, raw or ids. */
int api_request_prompt(struct quern_model *m, const struct quern_request *r, struct ids *out, struct err *e);
/* From a request to a stream; s is zero but for its model. On an error s is the caller's to close. */
int api_request_submit(struct quern_stream *s, const struct quern_request *r, struct err *e);

/* The parser's `take`: one more piece of the chunk. */
void api_stream_take(void *stream, const struct output_piece *p);
void api_stream_wake(void *stream); /* the engine's thread: it has a chunk */
