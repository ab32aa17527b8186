/* The conversation of a chat in the terminal, for the files chat*.c. */
#pragma once

#include "tool/answer.h"
#include "tool/chat.h"
#include "tool/images.h"
#include "tool/line.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Invariant between turns: messages is an array whose last entry, if any, is the assistant's or the system's. */
struct chat_session {
    struct session *session;
    struct engine *engine;
    const struct chat_options *o;
    struct line *line;
    json_t *messages;
    struct images *images;  /* of all messages, in their order; then those of the next one */
    json_t *attached;       /* the parts of the next message that are images */
    struct generation last; /* of the last answer: /stats */
    bool done;
};

/* The text as JSON; what is not UTF-8 (the model's own bytes, or a terminal in another encoding) is replaced. */
json_t *chat_string(const char *text, size_t n);
void chat_add(struct chat_session *t, const char *role, const char *text, size_t n);
void chat_clear(struct chat_session *t, const char *system);
/* One more image: of the next message, or of one that is read from a file. */
bool chat_take_image(struct chat_session *t, const char *path);
/* How many of a message's parts are images. */
uint32_t chat_count_images(const json_t *message);
bool chat_is(const json_t *message, const char *role);

/* ---- chat_file.c ---- */

void chat_save(const struct chat_session *t, const char *path);
void chat_load(struct chat_session *t, const char *path);
/* The conversation is kept after every answer, for --continue; nothing where o->history is false. */
void chat_keep(const struct chat_session *t);
/* Takes up the last conversation that was kept. */
int chat_resume(struct chat_session *t, struct err *e);

/* ---- chat_turn.c: turns of the conversation ---- */

/* Answers the user's message, the last of `messages`; removes it on failure. */
void chat_answer(struct chat_session *t);
/* Answers the last question again. */
void chat_retry(struct chat_session *t);
/* Edits the last question with the user's editor, and answers it. */
void chat_edit(struct chat_session *t);

/* ---- chat_complete.c ---- */

extern const char *const chat_commands[]; /* ends with NULL */
line_complete chat_complete;
