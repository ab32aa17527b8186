/* The families: how each writes calls and marks its reasoning. First those whose marks say most. */
#define _GNU_SOURCE
#include "lang/chat/output.h"

#include "base/buf.h"
#include "base/log.h"

#include <string.h>

static const struct output_tags tags_function = {.name_open = "<function=",
                                                 .name_close = ">",
                                                 .key_open = "<parameter=",
                                                 .key_close = ">",
                                                 .value_close = "</parameter>",
                                                 .end = "</function>"};
static const struct output_tags tags_invoke = {.name_open = "<invoke name=\"",
                                               .name_close = "\">",
                                               .key_open = "<parameter name=\"",
                                               .key_close = "\"",
                                               .value_open = ">",
                                               .value_close = "</parameter>",
                                               .end = "</invoke>"};
static const struct output_tags tags_atem = {.name_open = "<atem:invoke name=\"",
                                             .name_close = "\">",
                                             .key_open = "<atem:parameter name=\"",
                                             .key_close = "\"",
                                             .value_open = ">",
                                             .value_close = "</atem:parameter>",
                                             .end = "</atem:invoke>"};
static const struct output_tags tags_param = {.name_close = "\">",
                                              .key_open = "<param name=\"",
                                              .key_close = "\"",
                                              .value_open = ">",
                                              .value_close = "</param>"};
static const struct output_tags tags_dsml = {.name_close = "\">",
                                             .key_open = "<｜DSML｜parameter name=\"",
                                             .key_close = "\"",
                                             .value_open = ">",
                                             .value_close = "</｜DSML｜parameter>",
                                             .text = " string=\"true\"",
                                             .json = " string=\"false\""};
static const struct output_tags tags_arg = {.key_open = "<arg_key>",
                                            .key_close = "</arg_key>",
                                            .value_open = "<arg_value>",
                                            .value_close = "</arg_value>"};
static const struct output_tags tags_hunyuan = {.name_close = "<tool_sep:opensource>",
                                                .key_open = "<arg_key:opensource>",
                                                .key_close = "</arg_key:opensource>",
                                                .value_open = "<arg_value:opensource>",
                                                .value_close = "</arg_value:opensource>"};
static const struct output_tags tags_longcat = {.key_open = "<longcat_arg_key>",
                                                .key_close = "</longcat_arg_key>",
                                                .value_open = "<longcat_arg_value>",
                                                .value_close = "</longcat_arg_value>"};
static const struct output_tags tags_step = {.name_close = "\">",
                                             .key_open = "<steptml:parameter name=\"",
                                             .key_close = "\"",
                                             .value_open = ">",
                                             .value_close = "</steptml:parameter>"};
static const struct output_tags tags_kimi = {.name_close = "\"",
                                             .name_rest = "<|sep|>",
                                             .key_open = "<|open|>argument key=\"",
                                             .key_close = "\"",
                                             .value_open = "<|sep|>",
                                             .value_close = "<|close|>argument<|sep|>",
                                             .text = " type=\"string\"",
                                             .json = " type=\"object\""};

#define WRAP_HERMES                                                                                          \
    {                                                                                                        \
        .open = "<tool_call>", .close = "</tool_call>", .shape = SHAPE_JSON                                  \
    }
#define WRAP_FUNCTION                                                                                        \
    {                                                                                                        \
        "<tool_call>", "</tool_call>", SHAPE_TAGS, .tags = &tags_function                                    \
    }
#define WRAP_ARG                                                                                             \
    {                                                                                                        \
        "<tool_call>", "</tool_call>", SHAPE_TAGS, .tags = &tags_arg                                         \
    }
#define WRAP_MISTRAL                                                                                         \
    {                                                                                                        \
        "[TOOL_CALLS]", "", SHAPE_NAMED, "[ARGS]", .id_after = "[CALL_ID]"                                   \
    }
#define WRAP_FENCE                                                                                           \
    {                                                                                                        \
        "```json", "```", SHAPE_JSON, .known = true                                                          \
    }

static const struct output_form forms[] = {
    {.name = "harmony",
     .marks = {"<|channel|>", "<|message|>"},
     .wraps = {{" to=functions.", "", SHAPE_NAMED, "<|channel|>commentary json<|message|>",
                .mid_too = {" <|constrain|>json<|message|>",
                            "<|channel|>commentary <|constrain|>json<|message|>"},
                .args = "<|message|>", .single = true},
               {"<|channel|>commentary to=functions.", "", SHAPE_NAMED, "<|message|>", .args = "<|message|>"},
               {"<|channel|>analysis to=functions.", "", SHAPE_NAMED, "<|message|>", .args = "<|message|>"}},
     .drop = {"<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
              "<|end|>", "<|return|>", "<|call|>"}},
    {.name = "kimi-k2",
     .marks = {"<|tool_calls_section_begin|>"},
     .wraps = {{"<|tool_call_begin|>", "<|tool_call_end|>", SHAPE_NAMED, "<|tool_call_argument_begin|>",
                .numbered = true}},
     .section = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}},
    {.name = "kimi-k3",
     .marks = {"<|open|>", "<|close|>"},
     .wraps = {{"<|open|>call tool=\"", "<|close|>call<|sep|>", SHAPE_TAGS, .tags = &tags_kimi}},
     .section = {"<|open|>tools<|sep|>", "<|close|>tools<|sep|>"},
     .drop = {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"}},
    {.name = "deepseek-v3.2",
     .marks = {"｜DSML｜"},
     .wraps = {{"<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", SHAPE_TAGS, .tags = &tags_dsml}},
     .section = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>",
                 "</｜DSML｜tool_calls>"}},
    {.name = "deepseek",
     .marks = {"<｜tool▁calls▁begin｜>", "```json"},
     .wraps = {{"<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>", SHAPE_NAMED,
                "\n```json\n", .args = "```json"},
               {"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", SHAPE_NAMED, "<｜tool▁sep｜>"}},
     .section = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}},
    {.name = "deepseek-v3.1",
     .marks = {"<｜tool▁calls▁begin｜>"},
     .wraps = {{"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", SHAPE_NAMED, "<｜tool▁sep｜>"},
               {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>", SHAPE_NAMED,
                "\n```json\n", .args = "```json"}},
     .section = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}},
    {.name = "minimax",
     .marks = {"<minimax:tool_call>"},
     .wraps = {{"<minimax:tool_call>", "</minimax:tool_call>", SHAPE_TAGS, .tags = &tags_invoke}}},
    {.name = "dots",
     .marks = {"<dots_function_call>"},
     .wraps = {{"<dots_function_call>", "</dots_function_call>", SHAPE_TAGS, .tags = &tags_invoke},
               {"<dots_function_call>", "</dots_function_call>", SHAPE_JSON}}},
    {.name = "step3",
     .marks = {"<steptml:invoke"},
     .wraps = {{"<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
                "</steptml:invoke><｜tool_call_end｜>", SHAPE_TAGS, .tags = &tags_step}},
     .section = {"<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"}},
    {.name = "longcat",
     .marks = {"<longcat_tool_call>"},
     .wraps = {{"<longcat_tool_call>", "</longcat_tool_call>", SHAPE_TAGS, .tags = &tags_longcat},
               {"<longcat_tool_call>", "</longcat_tool_call>", SHAPE_JSON}}},
    {.name = "atem",
     .marks = {"<atem:invoke name="},
     .wraps = {{"<atem:function_calls>", "</atem:function_calls>", SHAPE_TAGS, .tags = &tags_atem}}},
    {.name = "hunyuan",
     .marks = {":opensource", "arg_key"},
     .wraps = {{"<tool_call:opensource>", "</tool_call:opensource>", SHAPE_TAGS, .tags = &tags_hunyuan}},
     .section = {"<tool_calls:opensource>", "</tool_calls:opensource>"}},
    {.name = "solar",
     .marks = {"<|tool_call:begin|>"},
     .wraps = {{"<|tool_call:begin|>", "<|tool_call:end|>", SHAPE_NAMED, "<|tool_call:args|>",
                .id_before = "<|tool_call:name|>"}},
     .section = {"<|tool_calls|>", "<|calls|>"},
     .drop = {"<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"}},
    {.name = "seed",
     .marks = {"<seed:tool_call>"},
     .wraps = {{"<seed:tool_call>", "</seed:tool_call>", SHAPE_TAGS, .tags = &tags_function}}},
    {.name = "glm", .marks = {"<arg_key>", "<tool_call>"}, .wraps = {WRAP_ARG, WRAP_HERMES}},
    {.name = "qwen-coder",
     .marks = {"<function=", "<parameter="},
     .wraps = {WRAP_FUNCTION,
               WRAP_HERMES,
               {"<function=", "</function>", SHAPE_TAGS,
                .tags = &(const struct output_tags){.name_close = ">",
                                                    .key_open = "<parameter=",
                                                    .key_close = ">",
                                                    .value_close = "</parameter>"}}}},
    {.name = "functionary",
     .marks = {"<function="},
     .wraps = {{"<function=", "</function>", SHAPE_NAMED, ">"}}},
    {.name = "minicpm",
     .marks = {"<function name=\"", "<param name=\""},
     .wraps = {{"<function name=\"", "</function>", SHAPE_TAGS, .tags = &tags_param}}},
    {.name = "gemma4",
     .marks = {"<|tool_call>call:"},
     .wraps = {{"<|tool_call>call:", "<tool_call|>", SHAPE_CODE, "{"}}},
    {.name = "functiongemma",
     .marks = {"<start_function_call>"},
     .wraps = {{"<start_function_call>call:", "<end_function_call>", SHAPE_CODE, "{"}}},
    {.name = "olmo3",
     .marks = {"<function_calls>"},
     .wraps = {{"<function_calls>", "</function_calls>", SHAPE_CODE, .lines = true},
               {"<function_calls>", "</function_calls>", SHAPE_JSON}}},
    {.name = "lfm2",
     .marks = {"<|tool_call_start|>"},
     .wraps = {{"<|tool_call_start|>", "<|tool_call_end|>", SHAPE_CODE, .list = true},
               {"<|tool_call_start|>", "<|tool_call_end|>", SHAPE_JSON}}},
    {.name = "mistral",
     .marks = {"[TOOL_CALLS]", "[ARGS]"},
     .wraps = {WRAP_MISTRAL, {"[TOOL_CALLS]", "", SHAPE_JSON}},
     .short_ids = true},
    {.name = "mistral-list",
     .marks = {"[TOOL_CALLS]"},
     .wraps = {{"[TOOL_CALLS]", "", SHAPE_JSON, .list = true}, WRAP_MISTRAL},
     .short_ids = true},
    {.name = "command-r",
     .marks = {"<|START_ACTION|>"},
     .wraps = {{"<|START_ACTION|>", "<|END_ACTION|>", SHAPE_JSON, .keys = {"tool_name", "parameters"},
                .list = true}},
     .drop = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"}},
    {.name = "command-r-plus",
     .marks = {"Action:", "tool_name"},
     .wraps = {{"Action:", "```", SHAPE_JSON, .keys = {"tool_name", "parameters"}, .list = true}}},
    {.name = "phi4",
     .marks = {"<|tool_call|>", "<|/tool_call|>"},
     .wraps = {{"<|tool_call|>", "<|/tool_call|>", SHAPE_JSON, .list = true}}},
    {.name = "internlm",
     .marks = {"<|action_start|>", "<|plugin|>"},
     .wraps = {{"<|action_start|><|plugin|>", "<|action_end|>", SHAPE_JSON, .keys = {"name", "parameters"}},
               {"<|action_start|> <|plugin|>", "<|action_end|>", SHAPE_JSON}}},
    {.name = "pangu",
     .marks = {"[unused11]", "[unused12]"},
     .wraps = {{"[unused11]", "[unused12]", SHAPE_JSON, .list = true}}},
    {.name = "granite",
     .marks = {"<|tool_call|>"},
     .wraps = {{"<|tool_call|>", "", SHAPE_JSON, .list = true}, WRAP_HERMES},
     .drop = {"<response>", "</response>"}},
    {.name = "nemotron",
     .marks = {"<TOOLCALL>"},
     .wraps = {{"<TOOLCALL>", "</TOOLCALL>", SHAPE_JSON, .list = true}}},
    {.name = "apertus",
     .marks = {"<|tools_prefix|>"},
     .wraps = {{"<|tools_prefix|>", "<|tools_suffix|>", SHAPE_KEYED, .list = true}}},
    {.name = "granite-code", .marks = {"<function_call>"}, .wraps = {{"<function_call>", "", SHAPE_JSON}}},
    {.name = "hunyuan-list",
     .marks = {"<answer>", "<think>"},
     .wraps = {{"<tool_calls>", "</tool_calls>", SHAPE_JSON, .list = true}},
     .drop = {"<answer>", "</answer>"}},
    {.name = "apriel",
     .marks = {"<tool_calls>"},
     .wraps = {{"<tool_calls>", "</tool_calls>", SHAPE_JSON, .list = true}}},
    {.name = "gigachat",
     .marks = {"<|role_sep|>", "<|message_sep|>"},
     .wraps = {{"<|function_call|>", "", SHAPE_JSON, .single = true},
               {"function call<|role_sep|>", "", SHAPE_JSON}},
     .drop = {"<|message_sep|>"}},
    {.name = "llama3",
     .marks = {"<|start_header_id|>", "ipython"},
     .wraps = {{"<|python_tag|>", "", SHAPE_JSON, .keys = {"name", "parameters"}},
               {"<|python_tag|>", "", SHAPE_CODE}},
     .bare = BARE_USUAL},
    {.name = "llama4",
     .marks = {"<|header_start|>"},
     .wraps = {{"<|python_start|>", "<|python_end|>", SHAPE_JSON, .keys = {"name", "parameters"}},
               {"<|python_start|>", "<|python_end|>", SHAPE_CODE}},
     .bare = BARE_USUAL},
    {.name = "ernie",
     .marks = {"<tool_call>", "<response>"},
     .wraps = {WRAP_HERMES},
     .drop = {"<response>", "</response>"}},
    {.name = "hermes",
     .marks = {"<tool_call>"},
     .wraps = {WRAP_HERMES, WRAP_FUNCTION, WRAP_ARG, WRAP_FENCE},
     .bare = BARE_TOO},
    {.name = "gemma",
     .marks = {"<start_of_turn>"},
     .wraps = {{"```tool_code", "```", SHAPE_CODE, .known = true}, WRAP_FENCE, WRAP_HERMES},
     .bare = BARE_TOO},
    {.name = "general", .wraps = {WRAP_HERMES, WRAP_FUNCTION, WRAP_ARG, WRAP_FENCE}, .bare = BARE_TOO},
};
const struct output_form *const output_forms = forms;
const size_t output_form_count = sizeof forms / sizeof *forms;

static const struct output_thought thoughts[] = {
    {"harmony", "<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>", "<|end|>",
     .then = "<|start|>assistant<|channel|>final<|message|>"},
    {"kimi-k3", "<|open|>", "<|open|>think<|sep|>", .close = "<|close|>think<|sep|>"},
    {"gemma4", "<|channel>thought", "<|channel>thought\n", .close = "<channel|>"},
    {"hunyuan", ":opensource", "<think:opensource>", .close = "</think:opensource>"},
    {"longcat", "<longcat_think>", "<longcat_think>", .close = "</longcat_think>"},
    {"apertus", "<|inner_prefix|>", "<|inner_prefix|>", .close = "<|inner_suffix|>"},
    {"solar", "<|think|>", "<|think|>", "<|end|>", .then = "<|begin|>assistant<|content|>"},
    {"pangu", "[unused16]", "[unused16]", .close = "[unused17]"},
    {"seed", "<seed:think>", "<seed:think>", .close = "</seed:think>"},
    {"minimax", "<mm:think>", "<mm:think>", .close = "</mm:think>"},
    {"command-r", "<|START_THINKING|>", "<|START_THINKING|>", .close = "<|END_THINKING|>"},
    {"mistral", "[THINK]", "[THINK]", .close = "[/THINK]"},
    {"apriel", "Here are my reasoning steps:", "Here are my reasoning steps:\n",
     .close = "[BEGIN FINAL RESPONSE]"},
    {"granite",
     "Here is my thought process:", "Here is my thought process:", .close = "Here is my response:"},
    {"magistral", "<thinking>", "<thinking>", .close = "</thinking>"},
    {"think", "<think>", "<think>", .close = "</think>"},
};
enum { FORMS = sizeof forms / sizeof *forms, THOUGHTS = sizeof thoughts / sizeof *thoughts };

const struct output_form *output_form_find(const char *text)
{
    for (size_t i = 0; i < FORMS - 1; i++) {
        const char *const *m = forms[i].marks;
        if (strstr(text, m[0]) && (!m[1] || strstr(text, m[1])))
            return &forms[i];
    }
    return &forms[FORMS - 1];
}

const struct output_thought *output_thought_find(const char *text)
{
    for (size_t i = 0; i < THOUGHTS - 1; i++)
        if (strstr(text, thoughts[i].mark))
            return &thoughts[i];
    return &thoughts[THOUGHTS - 1];
}

static bool mark_has(const char *mark, const char *text, size_t n)
{
    return mark && n && memmem(mark, strlen(mark), text, n);
}

bool output_has_mark(const struct output_form *f, const struct output_thought *t, const char *text, size_t n)
{
    bool has = t && (mark_has(t->open, text, n) || mark_has(t->close, text, n));
    for (size_t i = 0; i < OUTPUT_WRAPS && f->wraps[i].open; i++) {
        const struct output_wrap *w = &f->wraps[i];
        const struct output_tags *g = w->tags ? w->tags : &(const struct output_tags){0};
        const char *const marks[] = {w->open,      w->mid_too[0], w->mid_too[1],  w->close,
                                     w->mid,       w->args,       w->id_before,   w->id_after,
                                     g->name_open, g->name_rest,  g->name_close,  g->key_open,
                                     g->key_close, g->value_open, g->value_close, g->end};
        for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
            has |= mark_has(marks[k], text, n);
    }
    for (size_t i = 0; i < 4; i++)
        has |= mark_has(f->section[i], text, n);
    for (size_t i = 0; i < OUTPUT_MARKS; i++)
        has |= mark_has(f->drop[i], text, n);
    return has;
}

/* Names in rows of a table; the error lists them all. */
static size_t table_named(const char *const *first, size_t stride, size_t count, const char *what,
                          const char *name, struct err *e)
{
    struct buf names = {0};
    for (size_t i = 0; i < count; i++) {
        const char *own = *(const char *const *)(const void *)((const char *)first + i * stride);
        if (!strcmp(own, name)) {
            buf_free(&names);
            return i;
        }
        buf_printf(&names, "%s%s", i ? ", " : "", own);
    }
    err_set(e, ERR_USAGE, "there is no %s '%s'; there are %s", what, log_safe(name),
            names.data ? names.data : "");
    buf_free(&names);
    return count;
}

const struct output_form *output_form_named(const char *name, struct err *e)
{
    size_t i = table_named(&forms[0].name, sizeof *forms, FORMS, "tool parser", name, e);
    return i < FORMS ? &forms[i] : NULL;
}

const struct output_thought *output_thought_named(const char *name, struct err *e)
{
    size_t i = table_named(&thoughts[0].name, sizeof *thoughts, THOUGHTS, "form of reasoning", name, e);
    return i < THOUGHTS ? &thoughts[i] : NULL;
}
