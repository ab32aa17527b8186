/* Normalising messages. Only what the template could not take otherwise is changed. */
#include "lang/chat/chat_message.h"

#include "base/buf.h"
#include "base/mem.h"
#include "format/jsonread.h"

#include <string.h>

/* Bytes that the arguments of all calls may take once they are read: a request counts them as texts. */
enum { MESSAGE_ARGUMENTS = 16 << 20 };

/* "arguments" of one tool call: an object where the template can take one and `left` has room for it, else a text. */
static int message_arguments(json_t *call, const struct chat_caps *caps, size_t *left)
{
    json_t *function = json_object_get(call, "function"), *owner = json_is_object(function) ? function : call;
    json_t *arguments = json_object_get(owner, "arguments");
    if (json_is_string(arguments) && caps->object_arguments) {
        struct jsonread_size size;
        jsonread_measure(json_string_value(arguments), json_string_length(arguments), &size);
        if (size.depth > JSONREAD_DEPTH || size.memory > *left)
            return 0;
        *left -= size.memory;
        json_t *object =
            json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, NULL);
        if (!json_is_object(object)) { /* what a model wrote need not be JSON: leave it */
            json_decref(object);
            return 0;
        }
        return json_object_set_new(owner, "arguments", object);
    }
    if (json_is_object(arguments) && !caps->object_arguments && caps->string_arguments) {
        char *text = json_dumps(arguments, 0);
        json_t *string = text ? json_string(text) : NULL;
        mem_free(text);
        return string ? json_object_set_new(owner, "arguments", string) : -1;
    }
    return 0;
}

/* Parts to one text, when all of them are text. */
static int message_flatten(json_t *message, const json_t *parts)
{
    struct buf text = {0};
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        const json_t *t = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(t)) {
            buf_free(&text);
            return 0;
        }
        buf_add(&text, json_string_value(t), json_string_length(t));
    }
    json_t *string = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    buf_free(&text);
    return string ? json_object_set_new(message, "content", string) : -1;
}

/* Beside tool calls some templates want "" for no content, and some null; those that know no calls want a text. */
static int message_empty(json_t *message, const struct chat_caps *caps)
{
    const json_t *content = json_object_get(message, "content");
    bool null = !content || json_is_null(content),
         empty = json_is_string(content) && !json_string_length(content);
    if (!json_array_size(json_object_get(message, "tool_calls")) ||
        (caps->calls_with_empty && caps->calls_with_null))
        return 0;
    if (null && !caps->calls_with_null)
        return json_object_set_new(message, "content", json_string(""));
    return empty && caps->calls_with_null ? json_object_set_new(message, "content", json_null()) : 0;
}

static int message_images(json_t *parts, const char *mark)
{
    json_t *part;
    size_t i;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && !strcmp(type, "image") &&
            json_array_set_new(parts, i, json_pack("{s:s,s:s}", "type", "text", "text", mark)))
            return -1;
    }
    return 0;
}

static int message_content(json_t *message, const struct chat_caps *caps, const char *mark)
{
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content) && mark && !caps->images && message_images(content, mark))
        return -1;
    if (json_is_array(content) && !caps->parts_content)
        return message_flatten(message, content);
    if (json_is_string(content) && !caps->string_content && caps->parts_content) {
        json_t *parts = json_pack("[{s:s,s:O}]", "type", "text", "text", content);
        return parts ? json_object_set_new(message, "content", parts) : -1;
    }
    return 0;
}

/* OpenAI's newer name for the system. */
static int message_role(json_t *message, const struct chat_caps *caps)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role || strcmp(role, "developer") != 0 || caps->developer)
        return 0;
    return json_object_set_new(message, "role", json_string("system"));
}

/* Reasoning goes by three names. */
static int message_reasoning(json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *found = NULL;
    for (size_t i = 0; i < 3 && !found; i++) {
        json_t *v = json_object_get(message, names[i]);
        found = v && !json_is_null(v) ? v : NULL;
    }
    for (size_t i = 0; i < 2 && found; i++)
        if (!json_object_get(message, names[i]) && json_object_set(message, names[i], found))
            return -1;
    return 0;
}

json_t *chat_messages(const json_t *messages, const struct chat_caps *caps, const char *mark, struct err *e)
{
    json_t *all = json_deep_copy(messages), *message, *call;
    size_t i, k, left = MESSAGE_ARGUMENTS;
    bool ok = all != NULL;
    json_array_foreach(all, i, message)
    {
        ok = ok && !message_role(message, caps) && !message_empty(message, caps) &&
             !message_content(message, caps, mark) && !message_reasoning(message);
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) ok =
            ok && !message_arguments(call, caps, &left);
    }
    if (ok)
        return all;
    json_decref(all);
    err_memory(e, "the messages", 1);
    return NULL;
}
