/* Tokenizer and template on their own. Runs on a worker. */
#define _GNU_SOURCE
#include "serve/text.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "run/image_text.h"
#include "run/session.h"
#include "serve/field.h"
#include "serve/openai.h"
#include "serve/request.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

/* A token's bytes: as text, or as numbers where they are only a part of a character. */
static void text_piece(struct json *j, const struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *bytes = tokenizer_token_bytes(t, id, &n);
    if (utf8_valid(bytes, n)) {
        json_strn(j, bytes, n);
        return;
    }
    json_begin(j, '[');
    for (size_t i = 0; i < n; i++)
        json_uint(j, (uint8_t)bytes[i]);
    json_end(j, ']');
}

static void text_ids(struct request *a, const struct ids *ids, const json_t *body)
{
    const struct tokenizer *t = a->model->session->tokenizer;
    bool pieces = field_bool(body, "with_pieces");
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, "tokens");
    json_begin(&j, '[');
    for (size_t i = 0; i < ids->len; i++) {
        if (pieces) {
            json_begin(&j, '{');
            json_key(&j, "id");
        }
        json_int(&j, ids->data[i]);
        if (pieces) {
            json_key(&j, "piece");
            text_piece(&j, t, ids->data[i]);
            json_end(&j, '}');
        }
    }
    json_end(&j, ']');
    if (field_bool(body, "return_token_strs")) {
        json_key(&j, "token_strs");
        json_begin(&j, '[');
        for (size_t i = 0; i < ids->len; i++) {
            size_t n;
            const char *piece = tokenizer_piece(t, ids->data[i], &n);
            json_strn(&j, piece, n);
        }
        json_end(&j, ']');
    }
    json_key(&j, "count");
    json_uint(&j, ids->len);
    json_key(&j, "max_model_len");
    json_uint(&j, a->model->session->runner->ctx);
    json_end(&j, '}');
}

/* A text to a->prompts[0]. */
static int text_encode(struct request *a, const json_t *body)
{
    const json_t *content = json_object_get(body, "content");
    const json_t *text = content ? content : json_object_get(body, "prompt");
    bool plain = json_is_false(json_object_get(body, "parse_special"));
    bool add = content ? field_bool(body, "add_special")
                       : !json_is_false(json_object_get(body, "add_special_tokens"));
    struct err e = {0};
    if (!text)
        return request_fail(a, 400, "content", "content is missing");
    a->prompt_count = 1;
    if (tokenizer_encode(a->model->session->tokenizer, json_string_value(text), json_string_length(text),
                         (plain ? 0 : TOK_SPECIAL) | (add ? TOK_ADD : 0), &a->prompts[0], &e))
        return request_fail(a, 503, NULL, "%s", e.text);
    return 0;
}

/* As llama.cpp's clients ask, {content, add_special?, parse_special?, with_pieces?}, or as those of vLLM do:
 * {prompt or messages, add_special_tokens?, return_token_strs?}. */
void text_tokenize(struct request *a)
{
    static const struct field fields[] = {
        {"content", FIELD_TEXT, 0, 0},          {"prompt", FIELD_TEXT, 0, 0},
        {"add_special", FIELD_BOOL, 0, 0},      {"add_special_tokens", FIELD_BOOL, 0, 0},
        {"parse_special", FIELD_BOOL, 0, 0},    {"with_pieces", FIELD_BOOL, 0, 0},
        {"return_token_strs", FIELD_BOOL, 0, 0}};
    struct err e = {0};
    const char *name;
    json_t *body = openai_body(a);
    if (body && field_check(body, fields, sizeof fields / sizeof *fields, &name, &e))
        request_fail(a, 400, name, "%s", e.text);
    else if (body && !(json_object_get(body, "messages") ? openai_prompt(a) : text_encode(a, body)))
        text_ids(a, &a->prompts[0], body);
    json_decref(body);
}

static void text_reply(struct request *a, const char *first, const char *second, const struct buf *text)
{
    struct json j = {.out = &a->reply};
    json_begin(&j, '{');
    json_key(&j, first);
    json_strn(&j, text->data ? text->data : "", text->len);
    if (second) {
        json_key(&j, second);
        json_strn(&j, text->data ? text->data : "", text->len);
    }
    json_end(&j, '}');
}

/* {tokens} */
void text_detokenize(struct request *a)
{
    struct err e = {0};
    struct buf text = {0};
    struct tok_decoder d = {.t = a->model->session->tokenizer};
    json_t *body = openai_body(a);
    const json_t *tokens = json_object_get(body, "tokens");
    int64_t vocab = tokenizer_vocab(d.t);
    if (body && !json_is_array(tokens))
        request_fail(a, 400, "tokens", "tokens has to be a list of ids");
    for (size_t i = 0; i < json_array_size(tokens) && !a->failure.status; i++) {
        int64_t id;
        if (!field_whole(json_array_get(tokens, i), 0, vocab - 1, &id) ||
            tok_decoder_feed(&d, (int32_t)id, &text, &e))
            request_fail(a, 400, "tokens", "tokens[%zu] has to be an id below %lld", i, (long long)vocab);
    }
    tok_decoder_flush(&d, &text);
    if (text.failed)
        request_fail(a, 503, NULL, "out of memory");
    if (!a->failure.status)
        text_reply(a, "content", "prompt", &text);
    buf_free(&text);
    json_decref(body);
}

int text_can_chat(struct request *a)
{
    const struct session *l = a->model->session;
    if (l->chat)
        return 0;
    log_warn("%s: %s", log_safe(a->model->of->name), l->chat_why.text);
    return request_fail(
        a, 400, "model",
        "%s has no chat template that works: name a model that has one, or send plain text to "
        "/v1/completions",
        log_safe(a->called));
}

/* {messages, tools?, continue_final_message?, add_generation_prompt?, chat_template_kwargs?} */
void text_template(struct request *a)
{
    static const struct field fields[] = {{"messages", FIELD_LIST, 0, 4096},
                                          {"tools", FIELD_LIST, 0, 128},
                                          {"functions", FIELD_LIST, 0, 128},
                                          {"documents", FIELD_LIST, 0, 4096},
                                          {"chat_template_kwargs", FIELD_OBJECT, 0, 256},
                                          {"continue_final_message", FIELD_BOOL, 0, 0},
                                          {"add_generation_prompt", FIELD_BOOL, 0, 0}};
    const char *name;
    struct err e = {0};
    struct buf text = {0};
    struct spans spans = {0};
    const struct session *l = a->model->session;
    json_t *body = openai_body(a);
    struct chat_request r = {
        .messages = json_object_get(body, "messages"),
        .tools = json_object_get(body, "tools"),
        .documents = json_object_get(body, "documents"),
        .extra = json_object_get(body, "chat_template_kwargs"),
    };
    enum openai_turn turn = TURN_BEGINS;
    time_t now = time(NULL);
    localtime_r(&now, &r.now);
    if (body && field_check(body, fields, sizeof fields / sizeof *fields, &name, &e))
        request_fail(a, 400, name, "%s", e.text);
    else if (body && !r.messages)
        request_fail(a, 400, "messages", "messages is missing");
    else if (body && !openai_functions(a, body) && !openai_messages(a, r.messages) &&
             !openai_turn(a, body, &turn)) {
        r.tools = json_object_get(body, "tools"); /* functions have become tools */
        r.continue_final = turn == TURN_GOES_ON;
        r.no_generation_prompt = turn == TURN_CLOSED;
        json_t *messages = request_images_read(a, r.messages, NULL);
        r.messages = messages;
        r.image_mark = IMAGE_TEXT_MARK;
        if (messages && !text_can_chat(a) && chat_render(l->chat, &r, &spans, &e))
            request_fail(a, 400, "messages", "%s", e.text);
        json_decref(messages);
    }
    for (size_t i = 0; i < spans.count; i++)
        buf_add(&text, spans.items[i].text, spans.items[i].n);
    if (text.failed)
        request_fail(a, 503, NULL, "out of memory");
    if (!a->failure.status)
        text_reply(a, "prompt", NULL, &text);
    spans_free(&spans);
    buf_free(&text);
    json_decref(body);
}
