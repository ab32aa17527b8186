/* Answers taken apart: what each family writes, and that it does not matter how the bytes are cut. */
#include "test.h"

#include "base/buf.h"
#include "lang/grammar/constraint.h"
#include "lang/chat/output.h"

#include <stdlib.h>
#include <string.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"odd\":{}},"
    "\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}}]";

struct seen {
    struct buf out, arguments; /* arguments: of a call that is not whole yet */
    enum output_part last;
    uint32_t parts; /* of arguments that were not whole */
};

/* c(name id arguments), the arguments without white space once they are whole. */
static void take_call(struct seen *s, const struct output_piece *p)
{
    if (p->name)
        buf_printf(&s->out, "c(%s%s%s ", p->name, p->id ? " " : "", p->id ? p->id : "");
    buf_add(&s->arguments, p->text, p->n);
    s->parts += p->more;
    if (p->more)
        return;
    json_t *whole = json_loadb(s->arguments.data, s->arguments.len, 0, NULL);
    char *text = json_dumps(whole, JSON_COMPACT);
    assert_non_null(text);
    buf_printf(&s->out, "%s)", text);
    free(text);
    json_decref(whole);
    buf_clear(&s->arguments);
}

/* t(text) r(reasoning) and calls, neighbours of one kind joined. */
static void take(void *arg, const struct output_piece *p)
{
    struct seen *s = arg;
    if (p->part == OUTPUT_CALL)
        take_call(s, p);
    else {
        if (s->out.len && p->part == s->last)
            s->out.len--;
        else
            buf_char(&s->out, "tr"[p->part]), buf_char(&s->out, '(');
        buf_add(&s->out, p->text, p->n);
        buf_char(&s->out, ')');
    }
    s->last = p->part;
}

static void seen_free(struct seen *s)
{
    buf_free(&s->out);
    buf_free(&s->arguments);
}

struct sample {
    const char *form, *thought, *text, *want;
    bool thinking, no_tools, ruled;
};

static void parse(const struct sample *s, const json_t *tools, size_t first, size_t piece, struct seen *out)
{
    struct err e = {0};
    struct output_options o = {.form = output_form_named(s->form, &e),
                               .thought = output_thought_named(s->thought ? s->thought : "think", &e),
                               .tools = s->no_tools ? NULL : tools,
                               .thinking = s->thinking,
                               .ruled = s->ruled,
                               .take = take,
                               .arg = out};
    assert_int_equal(e.code, 0);
    struct output_parser *r = output_open(&o, &e);
    size_t n = strlen(s->text), at = first < n ? first : n;
    assert_int_equal(output_feed(r, s->text, at), 0);
    for (; at < n; at += piece)
        assert_int_equal(output_feed(r, s->text + at, n - at < piece ? n - at : piece), 0);
    assert_int_equal(output_end(r, false), 0);
    if (out->arguments.len) /* it was cut there */
        buf_printf(&out->out, "%.*s...", (int)out->arguments.len, out->arguments.data);
    buf_char(&out->out, 0);
    output_close(r);
}

static void check(const struct sample *s)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t first = 0; first <= strlen(s->text); first++)
        for (size_t piece = 1; piece < 10000; piece *= piece == 1 ? 7 : 10000) {
            struct seen out = {0};
            parse(s, tools, first, piece, &out);
            if (strcmp(out.out.data, s->want) != 0)
                print_error("%s, cut at %zu, pieces of %zu: %s\n", s->form, first, piece, s->text);
            assert_string_equal(out.out.data, s->want);
            seen_free(&out);
        }
    json_decref(tools);
}

#define ARGS  "{\"city\": \"Paris\", \"days\": 3}"
#define CALL  "c(get_weather {\"city\":\"Paris\",\"days\":3})"
#define CALL2 CALL "c(get_time {})"
#define JSON1 "{\"name\": \"get_weather\", \"arguments\": " ARGS "}"
#define JSON2 "{\"name\": \"get_time\", \"arguments\": {}}"

#define S(form_, thought_, text_, want_, ...)                                                                \
    {                                                                                                        \
        .form = form_, .thought = thought_, .text = text_, .want = want_, __VA_ARGS__                        \
    }

static const struct sample families[] = {
    S("hermes", NULL, "<tool_call>\n" JSON1 "\n</tool_call>\n<tool_call>\n" JSON2 "\n</tool_call>", CALL2),
    S("hermes", NULL, "<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n" JSON1 "\n</tool_call>",
      "r(Hm.)t(Let me see.)" CALL),
    S("hermes", NULL, "Hm.\n</think>\n\nYes", "r(Hm.)t(Yes)", .thinking = true),
    S("hermes", NULL, "<tool_call>\n" JSON1 "\n", CALL),
    S("hermes", NULL, "<tool_call>\n" JSON1 "\n</tool_c", CALL),
    S("qwen-coder", NULL,
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
      "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
      CALL2),
    S("qwen-coder", NULL,
      "<function=get_weather>\n<parameter=city>\n7\n</parameter>\n<parameter=odd>\n[1, \"a\"]\n</parameter>\n"
      "</function>",
      "c(get_weather {\"city\":\"7\",\"odd\":[1,\"a\"]})"),
    S("seed", "seed",
      "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris"
      "</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
      "r(Hm.)" CALL),
    S("llama3", NULL, "{\"name\": \"get_weather\", \"parameters\": " ARGS "}", CALL),
    S("llama3", NULL, "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": " ARGS "}", CALL),
    S("llama3", NULL, JSON1 "; " JSON2, CALL2),
    S("llama3", NULL, "<|python_tag|>get_weather.call(city=\"Paris\", days=3)", CALL),
    S("mistral", "mistral",
      "[THINK]Hm.[/THINK]Well[TOOL_CALLS]get_weather[ARGS]" ARGS "[TOOL_CALLS]get_time[ARGS]{}",
      "r(Hm.)t(Well)" CALL2),
    S("mistral", NULL, "[TOOL_CALLS]get_time[CALL_ID]abc123def[ARGS]{}", "c(get_time abc123def {})"),
    S("mistral-list", NULL, "[TOOL_CALLS][" JSON1 ", {\"name\": \"get_time\", \"id\": \"abc123def\"}]",
      CALL "c(get_time abc123def {})"),
    S("deepseek", NULL,
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" ARGS
      "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      CALL2),
    S("deepseek-v3.1", NULL,
      "Hm.</think>Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" ARGS
      "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
      "｜tool▁calls▁end｜>",
      "r(Hm.)t(Well.)" CALL2, .thinking = true),
    S("deepseek-v3.2", NULL,
      "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
      "string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3"
      "</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_time\">\n</｜DSML｜invoke>\n"
      "</｜DSML｜function_calls>",
      CALL2),
    S("glm", NULL,
      "\n<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
      "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time</tool_call>",
      "r(Hm.)" CALL2),
    S("kimi-k2", NULL,
      "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|"
      ">" ARGS "<|tool_call_end|><|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_"
      "call_end|>"
      "<|tool_calls_section_end|>",
      "t(Well.)c(get_weather functions.get_weather:0 {\"city\":\"Paris\",\"days\":3})c(get_time "
      "functions.get_time:1 {})"),
    S("kimi-k3", "kimi-k3",
      "Hm.<|close|>think<|sep|><|open|>response<|sep|>Well.<|close|>response<|sep|><|open|>tools<|sep|><|"
      "open|>call "
      "tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" "
      "type=\"string\"<|sep|>Paris<|close|>"
      "argument<|sep|><|open|>argument key=\"days\" "
      "type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|close|>message<|sep|>",
      "r(Hm.)t(Well.)" CALL, .thinking = true),
    S("granite", "granite",
      "Here is my thought process: Hm. Here is my response: Well. <|tool_call|>[" JSON1 ", " JSON2 "]",
      "r(Hm.)t(Well.)" CALL2),
    S("granite", NULL, "<think>Hm.</think><response>Well.</response>", "r(Hm.)t(Well.)"),
    S("command-r", "command-r",
      "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
      "\"get_weather\", \"parameters\": " ARGS "}\n]<|END_ACTION|>",
      "r(Hm.)" CALL),
    S("command-r", "command-r", "<|START_RESPONSE|>Hello<|END_RESPONSE|>", "t(Hello)"),
    S("command-r-plus", NULL,
      "Action: ```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        \"parameters\": " ARGS
      "\n    }\n]\n```",
      CALL),
    S("gemma", NULL, "Well.\n```tool_code\nget_weather(city='Paris', days=3)\n```", "t(Well.)" CALL),
    S("gemma", NULL, "```tool_code\nprint(get_weather(city=\"Paris\", days=3))\n```", CALL),
    S("gemma", NULL, "```json\n{\"name\": \"get_weather\", \"parameters\": " ARGS "}\n```", CALL),
    S("gemma4", "gemma4",
      "<|channel>thought\nHm.<channel|><|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|"
      ">",
      "r(Hm.)" CALL),
    S("lfm2", NULL, "<|tool_call_start|>[get_weather(city='Paris', days=3), get_time()]<|tool_call_end|>",
      CALL2),
    S("harmony", "harmony",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello",
      "r(Hm.)t(Hello)"),
    S("harmony", "harmony",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.get_weather "
      "<|constrain|>json<|message|>" ARGS,
      "r(Hm.)" CALL),
    S("harmony", "harmony",
      "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant "
      "to=functions.get_weather<|channel|>commentary "
      "json<|message|>" ARGS "<|call|>",
      "t(Well.)" CALL),
    S("minimax", NULL,
      "Hm.\n</think>\n\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris"
      "</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke "
      "name=\"get_time\">\n</invoke>\n"
      "</minimax:tool_call>",
      "r(Hm.)" CALL2, .thinking = true),
    S("dots", NULL,
      "Well.<dots_function_call>\n<invoke name=\"get_weather\">\n<parameter "
      "name=\"city\">\nParis\n</parameter>\n"
      "<parameter name=\"days\">\n3\n</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n"
      "</dots_function_call>",
      "t(Well.)" CALL2),
    S("step3", NULL,
      "<think>\nHm.\n</"
      "think>\n<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
      "name=\"get_weather\"><steptml:parameter name=\"city\">Paris</steptml:parameter><steptml:parameter "
      "name=\"days\">3</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
      "r(Hm.)" CALL),
    S("longcat", "longcat",
      "<longcat_think>\nHm.</longcat_think>\n<longcat_tool_call>get_weather\n<longcat_arg_key>city</"
      "longcat_arg_key>\n"
      "<longcat_arg_value>Paris</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
      "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>\n<longcat_tool_call>get_time\n"
      "</longcat_tool_call>",
      "r(Hm.)" CALL2),
    S("functiongemma", NULL,
      "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>"
      "<start_function_call>call:get_time{}<end_function_call>",
      CALL2),
    S("functiongemma", NULL,
      "<start_function_call>call:get_weather{city:<escape>a\\\"<b<escape>}<end_function_call>",
      "c(get_weather {\"city\":\"a\\\\\\\"<b\"})"),
    S("olmo3", NULL,
      "Well.<function_calls>\nget_weather(city=\"Paris\", days=3)\nget_time()\n</function_calls>",
      "t(Well.)" CALL2),
    S("phi4", NULL, "<|tool_call|>[" JSON1 ", " JSON2 "]<|/tool_call|>", CALL2),
    S("internlm", NULL,
      "Well.<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": " ARGS "}<|action_end|>",
      "t(Well.)" CALL),
    S("pangu", "pangu", "[unused16]Hm.[unused17][unused11][" JSON1 ", " JSON2 "][unused12]", "r(Hm.)" CALL2),
    S("granite-code", NULL, "<function_call> " JSON1 "<function_call> " JSON2, CALL2),
    S("hunyuan-list", NULL, "<think>\nHm.\n</think>\n<answer>\nHello\n</answer>", "r(Hm.)t(Hello)"),
    S("hunyuan-list", NULL, "<answer>\n<tool_calls>[" JSON1 ", " JSON2 "]</tool_calls>\n</answer>", CALL2),
    S("llama4", NULL, "<|python_start|>{\"name\": \"get_weather\", \"parameters\": " ARGS "}<|python_end|>",
      CALL),
    S("llama4", NULL, "<|python_start|>[get_weather(city=\"Paris\", days=3), get_time()]<|python_end|>",
      CALL2),
    S("llama4", NULL, "{\"name\": \"get_weather\", \"parameters\": " ARGS "}", CALL),
    S("ernie", NULL, "Hm.\n</think>\n\n<response>\nHello\n</response>\n", "r(Hm.)t(Hello)", .thinking = true),
    S("ernie", NULL, "Hm.\n</think>\n\n\n<tool_call>\n" JSON1 "\n</tool_call>\n", "r(Hm.)" CALL,
      .thinking = true),
    S("apertus", "apertus", "<|inner_prefix|>Hm.<|inner_suffix|>Hello", "r(Hm.)t(Hello)"),
    S("solar", "solar", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hello<|end|>", "r(Hm.)t(Hello)"),
    S("nemotron", NULL, "<TOOLCALL>[" JSON1 ", " JSON2 "]</TOOLCALL>", CALL2),
    S("apertus", NULL, "<|tools_prefix|>[{\"get_weather\": " ARGS "}, {\"get_time\": {}}]<|tools_suffix|>",
      CALL2),
    S("apriel", "apriel", "Hm.\n[BEGIN FINAL RESPONSE]\n\n<tool_calls>[" JSON1 "]</tool_calls>",
      "r(Hm.)" CALL, .thinking = true),
    S("functionary", NULL, "<function=get_weather>" ARGS "</function><function=get_time>{}</function>",
      CALL2),
    S("minicpm", NULL,
      "<function name=\"get_weather\"><param name=\"city\">Paris</param><param "
      "name=\"days\">3</param></function>",
      CALL),
    S("solar", NULL,
      "<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>get_time<|tool_call:args|>{}<|tool_call:end|><|"
      "calls|>",
      "c(get_time c1 {})"),
    S("gigachat", NULL, "<|message_sep|>\n\nfunction call<|role_sep|>\n" JSON1 "<|message_sep|>\n\n", CALL),
    S("general", NULL, JSON1, CALL),
    /* braces that a model has doubled, all of them or some */
    S("hermes", NULL, "<tool_call>\n{" JSON1 "}\n</tool_call>", CALL),
    S("hermes", NULL, "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {" ARGS "}}}\n</tool_call>",
      CALL),
    S("hermes", NULL, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {" ARGS "}}</tool_call>", CALL),
    S("hermes", NULL,
      "<tool_call>{ {\"name\": \"f\", \"arguments\": {{\"a\": \"{{}}\", \"b\": [{{\"c\": {}}}]}}} "
      "}</tool_call>",
      "c(f {\"a\":\"{{}}\",\"b\":[{\"c\":{}}]})"),
    S("general", NULL, "```json\n{" JSON1 "}\n```", CALL),
    S("general", NULL, "```json\n{\n    {\"name\": \"get_time\", \"arguments\": {{}}}\n}\n```",
      "c(get_time {})"),
    S("general", NULL, "{" JSON1 "}", CALL),
    S("general", NULL, "{" JSON1 "}\n{" JSON2 "}", CALL2),
    S("llama3", NULL, "{{\"name\": \"get_weather\", \"parameters\": {" ARGS "}}}", CALL),
    S("general", NULL, "{\"type\": \"function\", \"function\": " JSON1 "}", CALL),
    S("general", NULL, "```json\n[{\"tool\": \"get_time\", \"args\": {}}]\n``` So.", "c(get_time {})t(So.)"),
    S("general", NULL,
      "<tool_call>{\"function\": {\"name\": \"get_time\", \"arguments\": \"{}\"}}</tool_call>",
      "c(get_time {})"),
};

/* What is no call, or no whole one, is text, to the last byte. */
static const struct sample texts[] = {
    S("hermes", NULL, "a < b, a <tool, <tool_cal", "t(a < b, a <tool, <tool_cal)"),
    S("hermes", NULL, "  two blanks and a line end\n", "t(  two blanks and a line end\n)"),
    S("hermes", NULL, "", ""),
    S("hermes", NULL, "<tool_call>\n{\"name\": \"get_weather\", \"argum",
      "t(<tool_call>\n{\"name\": \"get_weather\", \"argum)"),
    S("hermes", NULL, "<tool_call>{\"name\": 7}</tool_call> so",
      "t(<tool_call>{\"name\": 7}</tool_call> so)"),
    S("hermes", NULL, "<tool_call>oops<tool_call>" JSON1 "</tool_call>", "t(<tool_call>oops)" CALL),
    S("hermes", NULL,
      "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"</tool_call>\"}}</tool_call>",
      "c(get_weather {\"city\":\"</tool_call>\"})"),
    S("hermes", NULL, "<tool_call>" JSON1 "</tool_call>", "t(<tool_call>" JSON1 "</tool_call>)",
      .no_tools = true),
    S("hermes", NULL, "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
      "t(<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>)"),
    S("hermes", NULL, "<think>\n\n</think>\n\nHello", "t(Hello)"),
    S("hermes", NULL, "<think>never closed ", "r(never closed)"),
    S("general", NULL, "{\"name\": \"John\", \"arguments\": {}}",
      "t({\"name\": \"John\", \"arguments\": {}})"),
    S("general", NULL, "{\"city\": \"get_weather\"} and more", "t({\"city\": \"get_weather\"} and more)"),
    S("general", NULL, "See [1] and {x}.", "t(See [1] and {x}.)"),
    S("general", NULL, "{{\"name\": \"John\"}}", "t({{\"name\": \"John\"}})"),
    S("general", NULL, "{{\"name\": \"get_time\", \"arguments\": {}}",
      "t({{\"name\": \"get_time\", \"arguments\": {}})"),
    S("general", NULL, "[1] is a note", "t([1] is a note)"),
    S("general", NULL, "```json\n{\"a\": 1}\n```", "t(```json\n{\"a\": 1}\n```)"),
    S("kimi-k2", NULL, "<|tool_calls_section_begin|>nothing", "t(<|tool_calls_section_begin|>nothing)"),
    S("kimi-k2", NULL, "<|tool_calls_section_begin|><|tool_call_begin|>x",
      "t(<|tool_calls_section_begin|><|tool_call_begin|>x)"),
    S("mistral", NULL, "[TOOL_CALLS] is a mark", "t([TOOL_CALLS] is a mark)"),
    S("lfm2", NULL, "<|tool_call_start|>[f(x=)]<|tool_call_end|>",
      "t(<|tool_call_start|>[f(x=)]<|tool_call_end|>)"),
    S("gemma", NULL, "```tool_code\nrm(x=1)\n```", "t(```tool_code\nrm(x=1)\n```)"),
};

/* Where a constraint holds the model to its syntax, arguments go out before they are whole: what has gone out stays a
 * call, wherever the answer is cut. */
static const struct sample ruled[] = {
    S("hermes", NULL, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"</tool",
      "c(get_weather {\"city\": \"</tool..."),
    S("hermes", NULL, "<tool_call>\n{\"name\": \"get_weather\", \"argum", ""),
    S("hermes", NULL, "<tool_call>{\"name\": \"get_weather\", \"arguments\": " ARGS, CALL),
    S("hermes", NULL, "<tool_call>" JSON1 ", so</tool_call> it is", CALL "t(}, so</tool_call> it is)"),
    S("hermes", NULL, "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>", "c(rm {})"),
    S("hermes", NULL, "<tool_call>{\"name\": \"get_time\", \"arguments\": \"{}\"}</tool_call>",
      "c(get_time {})"),
    S("llama3", NULL, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"P",
      "c(get_weather {\"city\": \"P..."),
    S("general", NULL, "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"P",
      "c(get_weather {\"city\": \"P..."),
    S("nemotron", NULL, "<TOOLCALL>[" JSON1 ", {\"na", CALL),
    S("mistral", NULL, "[TOOL_CALLS]get_weather[ARGS]{\"city\": [1", "c(get_weather {\"city\": [1..."),
    S("kimi-k2", NULL,
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{\"",
      "c(get_time functions.get_time:0 {\"..."),
};

static void test_families(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct sample s = families[i];
        check(&s);
        s.ruled = true; /* makes no difference to what is said in the end */
        check(&s);
    }
}

static void test_ruled(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ruled / sizeof *ruled; i++) {
        struct sample s = ruled[i];
        s.ruled = true;
        check(&s);
    }
}

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check(&texts[i]);
}

/* Wraps that begin alike end alike, or the parser could not look for the end. */
static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < output_form_count; i++)
        for (size_t a = 0; a < OUTPUT_WRAPS && output_forms[i].wraps[a].open; a++) {
            assert_non_null(output_forms[i].wraps[a].close);
            for (size_t b = 0; b < a; b++)
                if (!strcmp(output_forms[i].wraps[a].open, output_forms[i].wraps[b].open))
                    assert_string_equal(output_forms[i].wraps[a].close, output_forms[i].wraps[b].close);
        }
}

static void test_values(void **state)
{
    (void)state;
    const struct sample s =
        S("lfm2", NULL,
          "<|tool_call_start|>[f(a=\"x\\n\\u00e9\\\"\", b=-1.5e3, c=[1, None, (True,)], d={'k': 'v', \"n\": "
          "{}}, "
          "e='''it's''')]<|tool_call_end|>",
          "c(f {\"a\":\"x\\n\xc3\xa9\\\"\",\"b\":-1500,\"c\":[1,null,[true]],\"d\":{\"k\":\"v\",\"n\":{}},"
          "\"e\":\"it's\"})");
    check(&s);
}

static void test_thinking(void **state)
{
    (void)state;
    struct err e = {0};
    const struct output_thought *t = output_thought_named("think", &e);
    assert_true(output_is_thinking(t, "<think>a</think>b<think>\n", 25));
    assert_false(output_is_thinking(t, "<think>\n\n</think>\n\n", 19));
    assert_false(output_is_thinking(t, "what is <think>?\nassistant:", 27));
    assert_false(output_is_thinking(t, "", 0));
    assert_null(output_form_named("nobody", &e));
    assert_non_null(strstr(e.text, "harmony"));
}

/* ---- calls that are asked for ---- */

/* A vocabulary of all bytes, and a token that ends. */
static const char *byte_text(const void *of, int32_t id, size_t *n)
{
    *n = id < 256;
    return (const char *)of + id;
}

static enum constraint_kind byte_kind(const void *of, int32_t id)
{
    (void)of;
    return id < 256 ? CONSTRAINT_TEXT : CONSTRAINT_END;
}

/* A text of the language, as chance will have it: ends and closing signs as soon as they may come. */
static void walk(struct constraint_state *s, uint32_t *chance, struct buf *out)
{
    uint32_t mask[9];
    struct err e = {0};
    for (size_t steps = 0; steps < 2000; steps++) {
        assert_int_equal(constraint_mask(s, mask, &e), 0);
        if (mask[8] & 1)
            return;
        int32_t id = -1;
        for (int tries = 0; tries < 4000 && id < 0; tries++) {
            *chance = *chance * 1664525 + 1013904223;
            static const char likely[] = "abPS 123\"{}<>/[]|_.,:";
            int32_t at = tries < 60 && *chance >> 29
                             ? (unsigned char)likely[(*chance >> 8) % (sizeof likely - 1)]
                             : (int32_t)(*chance >> 16 & 255);
            id = mask[at / 32] >> at % 32 & 1 ? at : -1;
        }
        for (int32_t at = 0; at < 256 && id < 0; at++)
            id = mask[at / 32] >> at % 32 & 1 ? at : -1;
        assert_int_equal(constraint_accept(s, id, &e), 0);
        buf_char(out, (char)id);
    }
    out->len = 0; /* too long to be of use */
}

struct counted {
    uint32_t calls, others;
};

static void take_valid(void *arg, const struct output_piece *p)
{
    struct counted *c = arg;
    json_t *a = p->part == OUTPUT_CALL ? json_loadb(p->text, p->n, 0, NULL) : NULL;
    c->calls += p->part == OUTPUT_CALL;
    c->others += p->part != OUTPUT_CALL;
    if (p->part == OUTPUT_CALL && !strcmp(p->name, "get_weather")) {
        assert_true(json_is_string(json_object_get(a, "city")));
        assert_true(!json_object_get(a, "days") || json_is_integer(json_object_get(a, "days")));
        const char *unit = json_string_value(json_object_get(a, "unit"));
        assert_true(!unit || !strcmp(unit, "C") || !strcmp(unit, "F"));
    }
    json_decref(a);
}

/* What is heard of a text: fed in pieces of so many bytes. */
static void hear(const struct output_options *from, const struct buf *text, size_t piece, struct seen *out)
{
    struct output_options o = *from;
    struct err e = {0};
    o.take = take;
    o.arg = out;
    struct output_parser *r = output_open(&o, &e);
    for (size_t at = 0; at < text->len; at += piece)
        output_feed(r, text->data + at, text->len - at < piece ? text->len - at : piece);
    output_end(r, false);
    output_close(r);
    buf_char(&out->out, 0);
}

/* The same is said in the end, and arguments that are JSON have gone out while they came. */
static void check_ahead(const struct output_options *o, const struct buf *text)
{
    struct output_options ahead = *o;
    struct seen held = {0}, early = {0};
    enum output_shape shape = o->form->bare == BARE_USUAL ? SHAPE_JSON : o->form->wraps[0].shape;
    ahead.ruled = true;
    hear(o, text, text->len, &held);
    hear(&ahead, text, 1, &early);
    assert_string_equal(early.out.data, held.out.data);
    assert_int_equal(early.parts > 0, shape == SHAPE_JSON || shape == SHAPE_KEYED || shape == SHAPE_NAMED);
    assert_int_equal(held.parts, 0);
    seen_free(&held);
    seen_free(&early);
}

static void take_text(void *arg, const struct output_piece *p)
{
    if (p->part == OUTPUT_TEXT)
        buf_add(arg, p->text, p->n);
}

/* Wherever a call is cut, no part of its markup is text: behind a text of the model's own, of a mark at most the first
 * byte, since that says too little. */
static void check_cut(const struct output_options *from, const char *before, const struct buf *text)
{
    struct output_options o = *from;
    struct err e = {0};
    o.ruled = true;
    o.only_calls = !*before;
    o.take = take_text;
    for (size_t n = 0; n <= text->len; n++) {
        struct buf told = {0};
        o.arg = &told;
        struct output_parser *r = output_open(&o, &e);
        output_feed(r, before, strlen(before));
        output_feed(r, text->data, n);
        output_end(r, true);
        output_close(r);
        size_t more = 0;
        for (size_t i = strlen(before); i < told.len; i++)
            more += !strchr(" \n", told.data[i]);
        bool good = told.len >= strlen(before) && more <= (*before && n);
        if (!good)
            print_error("%s, cut at %zu: %.*s -> %.*s\n", o.form->name, n, (int)text->len, text->data,
                        (int)told.len, told.len ? told.data : "");
        assert_true(good);
        buf_free(&told);
    }
}

/* What the model may write where it may write text, too, holds these calls. */
static void check_free(const struct constraint_bound *b, const char *before, const struct buf *text)
{
    struct err e = {0};
    struct constraint_state *s = constraint_state_open((struct constraint_bound *)(uintptr_t)b, &e);
    int failed = constraint_accept_bytes(s, before, strlen(before), &e) ||
                 constraint_accept_bytes(s, text->data, text->len, &e);
    if (failed)
        print_error("%.*s\n", (int)text->len, text->data);
    assert_int_equal(failed, 0);
    assert_true(constraint_accepts_end(s));
    constraint_state_close(s);
}

/* Whatever the language of a form allows is read back as calls with arguments of the schema. */
static void check_form(const struct output_form *f, const json_t *tools, const struct constraint_vocab *v)
{
    struct err e = {0};
    struct constraint *c = output_constraint(f, &(struct output_rule){.tools = tools, .many = true}, &e);
    if (!c)
        print_error("%s: %s\n", f->name, e.text);
    assert_non_null(c);
    struct constraint *open = output_constraint(
        f,
        &(struct output_rule){.tools = tools, .many = true, .free = true, .thought = output_thought_find("")},
        &e);
    assert_non_null(open);
    struct constraint_bound *b = constraint_bind(c, v, 0, &e), *free = constraint_bind(open, v, 0, &e);
    uint32_t chance = 7, walked = 0;
    for (int i = 0; i < 24 || (walked < 5 && i < 200); i++) { /* long marks rarely close by chance */
        struct constraint_state *s = constraint_state_open(b, &e);
        struct buf text = {0};
        walk(s, &chance, &text);
        constraint_state_close(s);
        struct counted got = {0};
        struct output_options o = {.form = f,
                                   .thought = output_thought_named("think", &e),
                                   .tools = tools,
                                   .take = take_valid,
                                   .arg = &got};
        struct output_parser *r = text.len ? output_open(&o, &e) : NULL;
        if (r) {
            walked++;
            output_feed(r, text.data, text.len);
            output_end(r, false);
            if (!got.calls || got.others)
                print_error("%s: %.*s\n", f->name, (int)text.len, text.data);
            assert_true(got.calls && !got.others);
            check_ahead(&o, &text);
            check_cut(&o, "", &text);
            check_free(free, f->bare == BARE_USUAL ? "<think>{</think>" : "Well. <think>\n</think>Hm.",
                       &text);
            if (f->bare != BARE_USUAL && !f->wraps[0].known)
                check_cut(&o, "Hm.", &text);
        }
        output_close(r);
        buf_free(&text);
    }
    if (walked <= 4)
        print_error("%s: %u texts\n", f->name, walked);
    assert_true(walked > 4);
    constraint_unbind(b);
    constraint_unbind(free);
    constraint_free(c);
    constraint_free(open);
}

static void test_constraint(void **state)
{
    (void)state;
    char bytes[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    struct err e = {0};
    struct constraint_vocab *v = constraint_vocab_open(
        &(struct constraint_source){.count = 257, .of = bytes, .bytes = byte_text, .kind = byte_kind}, &e);
    json_t *tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"days\":{\"type\":\"integer\"},\"city\":{\"type\":\"string\"},"
        "\"unit\":{\"enum\":[\"C\",\"F\"]},\"far\":{\"type\":\"boolean\"}},"
        "\"required\":[\"city\"],\"additionalProperties\":false}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{},\"additionalProperties\":false}}}]",
        0, NULL);
    assert_non_null(v);
    assert_non_null(tools);
    for (size_t i = 0; i < output_form_count; i++)
        check_form(&output_forms[i], tools, v);
    json_decref(tools);
    constraint_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families),  cmocka_unit_test(test_texts),
                                       cmocka_unit_test(test_ruled),     cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_values),    cmocka_unit_test(test_thinking),
                                       cmocka_unit_test(test_constraint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
