/* Items of the responses API: as messages of a chat, and as they are stored. */
#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/field.h"
#include "serve/message.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/server_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* ---- as messages ---- */

static int item_fail(struct request *a, size_t at, const char *why, const char *type)
{
    char where[FAILURE_PARAM];
    snprintf(where, sizeof where, "input[%zu]", at);
    return type ? request_fail(a, 400, where, "%s (of type '%s') %s", where, log_safe(type), why)
                : request_fail(a, 400, where, "%s %s", where, why);
}

/* The texts of a content; NULL and a failure where a part is none. */
static json_t *item_text(struct request *a, const json_t *content, size_t at)
{
    struct buf out = {0};
    const json_t *part;
    size_t i;
    if (json_is_string(content))
        return json_incref((json_t *)(uintptr_t)content);
    json_array_foreach(content, i, part)
    {
        const char *text = field_text(part, "text"), *refusal = field_text(part, "refusal");
        if (!text && !refusal) {
            const char *type = field_text(part, "type");
            char why[160];
            snprintf(why, sizeof why, "has a part that is no text; %s", request_reads(a, type));
            item_fail(a, at, why, type);
            buf_free(&out);
            return NULL;
        }
        buf_add(&out, text ? text : refusal,
                json_string_length(json_object_get(part, text ? "text" : "refusal")));
    }
    json_t *s = json_stringn(out.data ? out.data : "", out.len);
    buf_free(&out);
    return s;
}

/* An image in a chat's form. NULL and a failure. */
static json_t *item_image(struct request *a, const json_t *part, size_t at)
{
    json_t *url = json_object_get(part, "image_url");
    if (json_is_string(url))
        return json_pack("{s:s,s:{s:O}}", "type", "image_url", "image_url", "url", url);
    item_fail(a, at, "has an image without an image_url; this server keeps no files", NULL);
    return NULL;
}

static bool item_is_image(const json_t *part)
{
    const char *type = field_text(part, "type");
    return type && !strcmp(type, "input_image");
}

/* A text; with images, a list of parts. NULL and a failure. */
static json_t *item_content(struct request *a, const json_t *content, size_t at)
{
    json_t *part, *parts;
    bool images = false;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)content, i, part) images |= item_is_image(part);
    if (!images || !(parts = json_array()))
        return item_text(a, content, at);
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        json_t *one = json_pack("[O]", part), *text = item_is_image(part) ? NULL : item_text(a, one, at);
        json_t *made = text                ? json_pack("{s:s,s:o}", "type", "text", "text", text)
                       : a->failure.status ? NULL
                                           : item_image(a, part, at);
        json_decref(one);
        if (!made || json_array_append_new(parts, made)) {
            json_decref(parts);
            return NULL;
        }
    }
    return parts;
}

/* The assistant's message that calls and reasoning belong to: the last one, or a new one. */
static json_t *item_assistant(json_t *to, bool fresh)
{
    json_t *last = json_array_get(to, json_array_size(to) - 1);
    const char *role = json_array_size(to) ? field_text(last, "role") : NULL;
    if (role && !strcmp(role, "assistant") && !fresh)
        return last;
    last = json_pack("{s:s,s:s}", "role", "assistant", "content", "");
    return last && !json_array_append_new(to, last) ? last : NULL;
}

static int item_message(struct request *a, const json_t *item, size_t at, json_t *to)
{
    const char *role = field_text(item, "role");
    const json_t *content = json_object_get(item, "content");
    if (!role || (!json_is_string(content) && !json_is_array(content)))
        return item_fail(a, at, role ? "has to have content: a text or a list" : "has no role", NULL);
    json_t *text = item_content(a, content, at), *last;
    if (!text)
        return -1;
    if (strcmp(role, "assistant") != 0)
        return json_array_append_new(to, json_pack("{s:s,s:o}", "role", role, "content", text));
    last = json_array_get(to, json_array_size(to) - 1);
    /* reasoning that came before it opened the message */
    bool joins = json_array_size(to) && json_object_get(last, "reasoning_content") &&
                 !json_object_get(last, "tool_calls") &&
                 !json_string_length(json_object_get(last, "content"));
    return json_object_set_new(item_assistant(to, !joins), "content", text);
}

static int item_call(struct request *a, const json_t *item, size_t at, json_t *to)
{
    json_t *id = json_object_get(item, "call_id"), *arguments = json_object_get(item, "arguments");
    const char *name = field_text(item, "name");
    json_t *message = item_assistant(to, false), *calls = json_object_get(message, "tool_calls");
    if (!json_is_string(id) || !name || !json_is_string(arguments))
        return item_fail(a, at, "has to have call_id, name and arguments", NULL);
    if (!calls && (!(calls = json_array()) || json_object_set_new(message, "tool_calls", calls)))
        return -1;
    return json_array_append_new(calls, json_pack("{s:O,s:s,s:{s:s,s:O}}", "id", id, "type", "function",
                                                  "function", "name", name, "arguments", arguments));
}

static int item_output(struct request *a, const json_t *item, size_t at, json_t *to)
{
    json_t *id = json_object_get(item, "call_id"),
           *text = item_content(a, json_object_get(item, "output"), at);
    if (text && json_is_string(id))
        return json_array_append_new(
            to, json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", text));
    json_decref(text);
    return item_fail(a, at, "has to have call_id and output", NULL);
}

static int item_reasoning(struct request *a, const json_t *item, size_t at, json_t *to)
{
    const json_t *content = json_object_get(item, "content");
    json_t *text = item_text(a, json_array_size(content) ? content : json_object_get(item, "summary"), at);
    return text ? json_object_set_new(item_assistant(to, true), "reasoning_content", text) : -1;
}

int responses_item(struct request *a, const json_t *item, size_t at, json_t *to)
{
    static const struct {
        const char *type;
        int (*read)(struct request *a, const json_t *item, size_t at, json_t *to);
    } kinds[] = {{"message", item_message},
                 {"function_call", item_call},
                 {"function_call_output", item_output},
                 {"reasoning", item_reasoning}};
    const char *type = field_text(item, "type");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type ? type : "message", kinds[i].type))
            return kinds[i].read(a, item, at, to);
    return item_fail(a, at, "is not known here", type);
}

/* ---- as they are stored ---- */

/* The content of a message as a list of parts. */
static void item_parts(json_t *item)
{
    json_t *content = json_object_get(item, "content");
    const char *role = field_text(item, "role");
    bool answer = role && !strcmp(role, "assistant");
    if (json_is_string(content))
        json_object_set_new(
            item, "content",
            answer ? json_pack("[{s:s,s:O,s:[]}]", "type", "output_text", "text", content, "annotations")
                   : json_pack("[{s:s,s:O}]", "type", "input_text", "text", content));
}

/* An id for an item that a client has sent: by its kind, and unlike any other. */
static json_t *item_new_id(const char *type)
{
    static const char *const kinds[][2] = {{"message", "msg_"},
                                           {"function_call", "fc_"},
                                           {"function_call_output", "fco_"},
                                           {"reasoning", "rs_"}};
    const char *prefix = "item_";
    char id[THREAD_ID];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type, kinds[i][0]))
            prefix = kinds[i][1];
    server_name(id, sizeof id, prefix);
    return json_string(id);
}

static json_t *item_whole(const json_t *sent)
{
    json_t *item = json_copy((json_t *)(uintptr_t)sent);
    const char *type = field_text(item, "type"), *id = field_text(item, "id");
    if (!type)
        json_object_set_new(item, "type", json_string(type = "message"));
    if (!id || !*id || strlen(id) >= THREAD_ID)
        json_object_set_new(item, "id", item_new_id(type));
    if (!strcmp(type, "message"))
        item_parts(item);
    if (strcmp(type, "reasoning") != 0 && !json_object_get(item, "status"))
        json_object_set_new(item, "status", json_string("completed"));
    return item;
}

int responses_items_add(struct stored_items *to, const json_t *item)
{
    void *all = mem_more(to->all, to->count, &to->room, sizeof *to->all);
    json_t *whole = all ? item_whole(item) : NULL;
    const char *id = field_text(whole, "id");
    struct buf text = {0};
    char *own = id ? mem_strdup(id) : NULL;
    to->all = all ? all : to->all;
    message_json(&text, whole);
    if (own && !text.failed) {
        to->all[to->count++] = (struct thread_item){own, text.data, text.len};
        to->bytes += text.len;
        return 0;
    }
    mem_free(own);
    buf_free(&text);
    return -1;
}

void responses_items_free(struct stored_items *l)
{
    for (size_t i = 0; i < l->count; i++) {
        mem_free((char *)(uintptr_t)l->all[i].id);
        mem_free((char *)(uintptr_t)l->all[i].body);
    }
    mem_free(l->all);
    *l = (struct stored_items){0};
}
