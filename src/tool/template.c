/* quern template: messages to a prompt, by the template of a model or of a file. */
#define _GNU_SOURCE /* strptime, timegm */
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/num.h"
#include "format/store.h"
#include "lang/chat/chat.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define TEMPLATE_FILE_MAX ((size_t)64 << 20)

static json_t *template_json(const char *path, const char *what, struct err *e)
{
    struct buf text = {.max = TEMPLATE_FILE_MAX};
    json_error_t at;
    json_t *j = NULL;
    if (!file_read(path, &text, e)) {
        j = json_loadb(text.data ? text.data : "", text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &at);
        if (!j)
            err_set(e, ERR_DATA, "%s: line %d: %s", log_safe(path), at.line, at.text);
        else if (!json_is_array(j)) {
            err_set(e, ERR_DATA, "%s: %s must be a JSON array", log_safe(path), what);
            json_decref(j);
            j = NULL;
        }
    }
    buf_free(&text);
    return j;
}

/* Seconds since 1970, or 2024-07-26, 2024-07-26T12:30, 2024-07-26 12:30:05 as local time. */
static int template_time(const char *text, struct tm *out, struct err *e)
{
    static const char *const forms[] = {"%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S",
                                        "%Y-%m-%d %H:%M:%S"};
    uint64_t seconds;
    time_t t = text ? 0 : time(NULL);
    if (text && num_u64(text, strlen(text), (uint64_t)1 << 40, &seconds))
        t = (time_t)seconds;
    if (!text || t) {
        localtime_r(&t, out);
        return 0;
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct tm tm = {0};
        const char *end = strptime(text, forms[i], &tm);
        if (!end || strcmp(end + (*end == 'Z'), "") != 0)
            continue;
        t = timegm(&tm);
        gmtime_r(&t, out); /* the day of the week and of the year */
        return 0;
    }
    return err_set(e, ERR_USAGE, "--now %s: expected seconds since 1970, or a time as 2024-07-26T12:30:00",
                   log_safe(text));
}

static int template_chat(struct chat **out, const struct args *a, struct store **store, struct err *e)
{
    const char *file = args_text(a, "file");
    if (!file)
        return tool_open(store, a->words[0], e) < 0 ? -1 : chat_open(out, *store, NULL, e);
    struct buf text = {.max = TEMPLATE_FILE_MAX};
    int result = file_read(file, &text, e);
    if (!result)
        result = chat_open_text(out, text.data ? text.data : "", text.len, e);
    buf_free(&text);
    return result;
}

static int template_request(struct chat_request *r, const struct args *a, json_t **extra, struct err *e)
{
    const char *messages = args_text(a, "messages"), *tools = args_text(a, "tools");
    if (!args_text(a, "file") == !a->count)
        return err_set(e, ERR_USAGE, "quern template needs either MODEL or --file FILE");
    if (!messages)
        return err_set(e, ERR_USAGE, "quern template needs --messages FILE");
    r->as_given = true;
    r->no_generation_prompt = args_flag(a, "no-generation-prompt");
    if (tool_set_values(a, extra, e) || template_time(args_text(a, "now"), &r->now, e) ||
        !(r->messages = template_json(messages, "messages", e)))
        return -1;
    r->extra = *extra;
    return tools && !(r->tools = template_json(tools, "tools", e)) ? -1 : 0;
}

static int template_run(const struct args *a, struct err *e)
{
    struct store *store = NULL;
    struct chat *chat = NULL;
    struct chat_request r = {0};
    struct spans prompt = {0};
    struct buf out = {0};
    json_t *extra = NULL;
    int result = template_request(&r, a, &extra, e);
    if (!result)
        result = template_chat(&chat, a, &store, e);
    if (!result)
        result = chat_render(chat, &r, &prompt, e);
    if (!result) {
        buf_add(&out, prompt.text, prompt.n);
        result = tool_print(&out, e);
    }
    spans_free(&prompt);
    chat_close(chat);
    if (store)
        store_close(store);
    json_decref((json_t *)r.messages);
    json_decref((json_t *)r.tools);
    json_decref(extra);
    return result;
}

static const struct arg_option template_options[] = {
    {.name = "file",
     .kind = ARG_TEXT,
     .value = "FILE",
     .help = "a template file instead of a model's; only values of the command line are defined in it"},
    {.name = "messages",
     .kind = ARG_TEXT,
     .value = "FILE",
     .help = "a JSON array of messages (- is standard input)"},
    {.name = "tools", .kind = ARG_TEXT, .value = "FILE", .help = "a JSON array of tools"},
    {.name = "no-generation-prompt", .help = "do not open the assistant's turn"},
    {.name = "set",
     .kind = ARG_TEXT,
     .value = "NAME=VALUE",
     .help = "a name for the template: JSON, or else a string; may be given many times"},
    {.name = "now",
     .kind = ARG_TEXT,
     .value = "TIME",
     .help = "the time that strftime_now sees, as 2024-07-26T12:30:00"},
    {0},
};

const struct tool_verb tool_template = {
    .name = "template",
    .words = "MODEL or --file FILE",
    .brief = "render messages to a prompt, as the model's chat template has it",
    .more = "  quern template smollm2 --messages chat.json\n"
            "  quern template --file chat_template.jinja --messages chat.json --set bos_token='<s>'\n",
    .options = template_options,
    .most = 1,
    .run = template_run,
};
