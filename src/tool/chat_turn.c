/* Turns of a chat: an answer, the same question again, an edited question; and what to do when the context is full. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "tool/chat_internal.h"
#include "tool/editor.h"
#include "tool/tool.h"
#include "tool/wrap.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* At least this part of the context is for the answer. */
enum { CHAT_ROOM = 8 };

/* Drops the oldest turn: the first question and all that follows it up to the next one. False: there is only one. */
static bool chat_drop_turn(struct chat_session *t)
{
    size_t n = json_array_size(t->messages), first = 0, next;
    while (first < n && !chat_is(json_array_get(t->messages, first), "user"))
        first++;
    for (next = first + 1; next < n && !chat_is(json_array_get(t->messages, next), "user");)
        next++;
    if (next >= n)
        return false;
    uint32_t images = 0;
    for (size_t i = first; i < next; i++) {
        images += chat_count_images(json_array_get(t->messages, first));
        json_array_remove(t->messages, first);
    }
    images_drop(t->images, images);
    return true;
}

/* What one answer needs. */
struct chat_turn {
    struct chat_session *chat;
    struct answer_options answer;
    struct wrap wrap;
    struct ids prompt;
    struct prompt_image *places;
    struct constraint_ref *constraint; /* of an answer that goes on; NULL = as in the chat's options */
    uint32_t dropped;                  /* turns */
};

/* The prompt of these messages, whose images are the last `count` of all; with a text that was begun, it ends with that.
 * Takes over the messages. */
static int turn_render(struct chat_turn *u, json_t *messages, uint32_t count, struct err *e)
{
    struct chat_session *t = u->chat;
    const struct generation *g = &t->last;
    uint32_t from = t->images->count - count;
    u->prompt.len = 0;
    mem_free(u->places);
    u->places = mem_zalloc(count + 1, sizeof *u->places);
    struct prompt_request r = {.messages = messages,
                               .set = t->o->set,
                               .continue_final = g->text.len > 0,
                               .pictures = count ? t->images->picture + from : NULL,
                               .picture_count = count,
                               .images = u->places};
    int failed = !u->places || !messages ? err_memory(e, "the prompt", 4096) : 0;
    if (!failed && g->text.len)
        json_array_append_new(messages, json_pack("{s:s,s:o}", "role", "assistant", "content",
                                                  chat_string(g->text.data, g->text.len)));
    failed = failed || session_prompt(t->session, &r, &u->prompt, e);
    u->answer.images = u->places;
    u->answer.image_count = count;
    if (!failed)
        u->answer.reasoning = answer_reasoning(t->session, &u->prompt);
    json_decref(messages);
    return failed ? -1 : 0;
}

/* Is there room for an answer to the last question alone? Else nothing is dropped for it. */
static bool turn_fits_alone(struct chat_turn *u, uint32_t most)
{
    const struct chat_session *t = u->chat;
    json_t *first = json_array_get(t->messages, 0),
           *last = json_array_get(t->messages, json_array_size(t->messages) - 1), *both = json_array();
    struct err e = {0};
    if (chat_is(first, "system"))
        json_array_append(both, first);
    json_array_append(both, last);
    return !turn_render(u, both, chat_count_images(last), &e) && u->prompt.len <= most;
}

/* The prompt, after as many of the oldest turns were dropped as it takes to have room for an answer. */
static int turn_prompt(struct chat_turn *u, struct err *e)
{
    struct chat_session *t = u->chat;
    uint32_t ctx = t->session->runner->ctx, room = ctx / CHAT_ROOM;
    room = t->o->most && t->o->most < room ? t->o->most : room;
    bool shifts = t->o->context_shift;
    for (;;) {
        if (turn_render(u, json_copy(t->messages), t->images->count, e))
            return -1;
        if (u->prompt.len + room <= ctx || !shifts)
            return 0;
        shifts = (u->dropped || turn_fits_alone(u, ctx - room)) && chat_drop_turn(t);
        u->dropped += shifts;
    }
}

/* The constraint of an answer that goes on begins with what it has. */
static int turn_constrain(struct chat_turn *u, struct err *e)
{
    const struct generation *g = &u->chat->last;
    struct constraint_ref *all = u->chat->o->constraint;
    if (!all || !g->text.len)
        return 0;
    constraint_ref_drop(u->constraint);
    struct buf text = {0};
    buf_add(&text, g->text.data, g->text.len);
    buf_char(&text, 0);
    u->answer.constraint = u->constraint = constraint_ref_again(all);
    int failed = !u->constraint || text.failed ? err_memory(e, "a constraint", text.len)
                                               : constraint_ref_set_lead(u->constraint, text.data, e);
    buf_free(&text);
    return failed;
}

/* Runs the answer to its end; where the context fills, it goes on without the oldest turn. */
static int turn_run(struct chat_turn *u, struct err *e)
{
    struct chat_session *t = u->chat;
    for (;;) {
        uint32_t made = (uint32_t)t->last.ids.len;
        u->answer.most = t->o->most ? t->o->most - made : 0;
        if (turn_prompt(u, e) || turn_constrain(u, e))
            return -1;
        if (u->dropped)
            fprintf(stderr, "[the context of %u tokens is full: the oldest %s dropped]\n",
                    t->session->runner->ctx, u->dropped == 1 ? "turn was" : "turns were");
        u->dropped = 0;
        if (made && u->prompt.len >= t->session->runner->ctx) /* the answer alone fills it */
            return 0;
        if (answer_run(t->engine, &u->prompt, &u->answer, &t->last, e))
            return -1;
        bool more = t->last.context_full && t->o->context_shift && t->last.ids.len > made;
        if (!more || !chat_drop_turn(t))
            return 0;
        u->dropped = 1;
        putchar('\n');
        u->wrap.column = 0;
    }
}

/* Says why an answer ended before the model ended it. */
static void turn_say_cut(const struct chat_session *t)
{
    const struct generation *g = &t->last;
    if (g->context_full)
        log_warn("the context of %u tokens is full: /clear starts again, --ctx makes it larger",
                 t->session->runner->ctx);
    else if (g->finish == FINISH_LENGTH)
        fprintf(stderr, "[cut after %zu tokens: -n is the limit]\n", g->ids.len);
    else if (g->finish == FINISH_CANCEL)
        fprintf(stderr, "[stopped]\n");
}

void chat_answer(struct chat_session *t)
{
    struct err e = {0};
    struct chat_turn u = {.chat = t,
                          .answer = {.sampler = &t->o->sampling->params,
                                     .stop_strings = t->o->stop_strings,
                                     .stops = t->o->stops,
                                     .constraint = t->o->constraint,
                                     .lora = t->o->lora,
                                     .wrap = t->o->wrap ? &u.wrap : NULL}};
    generation_free(&t->last);
    t->last = (struct generation){0};
    int failed = turn_run(&u, &e);
    putchar('\n');
    if (failed && e.code != ERR_INTERRUPTED)
        log_error("%s", e.text);
    if (!failed)
        turn_say_cut(t);
    size_t last = json_array_size(t->messages) - 1;
    if (failed && !t->last.text.len) {
        images_cut(t->images, t->images->count - chat_count_images(json_array_get(t->messages, last)));
        json_array_remove(t->messages, last);
    } else
        chat_add(t, "assistant", t->last.text.data ? t->last.text.data : "", t->last.text.len);
    if (t->o->verbose && !failed)
        answer_stats(t->session, &t->last);
    chat_keep(t);
    mem_free(u.places);
    ids_free(&u.prompt);
    wrap_free(&u.wrap);
    constraint_ref_drop(u.constraint);
}

/* The last question; -1 = there is none. */
static int chat_last_question(const struct chat_session *t)
{
    int i = (int)json_array_size(t->messages) - 1;
    while (i >= 0 && !chat_is(json_array_get(t->messages, (size_t)i), "user"))
        i--;
    return i;
}

/* Removes what follows the question. */
static void chat_cut_after(struct chat_session *t, int question)
{
    while ((int)json_array_size(t->messages) > question + 1)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
}

void chat_retry(struct chat_session *t)
{
    int at = chat_last_question(t);
    if (at < 0) {
        printf("there is no question yet\n");
        return;
    }
    chat_cut_after(t, at);
    t->o->sampling->params.seed++; /* the same seed would give the same answer */
    chat_answer(t);
}

/* Where the text of a message stands: the message itself, or the last of its parts. */
static json_t *message_text(json_t *message, const char **key)
{
    json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    *key = "content";
    json_array_foreach(content, i, part) if (json_object_get(part, "text"))
    {
        *key = "text";
        return part;
    }
    return json_is_string(content) ? message : NULL;
}

void chat_edit(struct chat_session *t)
{
    int at = chat_last_question(t);
    const char *key = NULL;
    json_t *holder = at < 0 ? NULL : message_text(json_array_get(t->messages, (size_t)at), &key);
    const json_t *old = json_object_get(holder, key ? key : "");
    struct buf text = {.max = 64 << 20};
    struct err e = {0};
    if (editor_run(old ? json_string_value(old) : "", old ? json_string_length(old) : 0, &text, &e)) {
        printf("%s\n", e.text);
    } else if (!text.len)
        printf("the text is empty: nothing was sent\n");
    else {
        printf(">>> %s\n", text.data);
        if (holder) {
            chat_cut_after(t, at);
            json_object_set_new(holder, key, chat_string(text.data, text.len));
        } else
            chat_add(t, "user", text.data, text.len);
        line_remember(t->line, text.data);
        chat_answer(t);
    }
    buf_free(&text);
}
