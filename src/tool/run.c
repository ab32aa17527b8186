/* quern run: one answer and exit, or a chat in the terminal. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "tool/answer.h"
#include "tool/constrain.h"
#include "tool/images.h"
#include "tool/interrupt.h"
#include "tool/load.h"
#include "tool/output_file.h"
#include "tool/profile.h"
#include "tool/sampling.h"
#include "tool/speculate.h"
#include "tool/chat.h"
#include "tool/tool.h"
#include "tool/wrap.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { RUN_STOPS = 16 };

static const struct arg_option run_options[] = {
    {"prompt", 'p', ARG_TEXT, "TEXT", "the prompt (or the second word, or standard input)", 0, 0},
    {"file", 'f', ARG_TEXT, "FILE", "the prompt from a file", 0, 0},
    {"predict", 'n', ARG_INT, "N", "most tokens to generate (default, or -1: until the model ends)", -1,
     1 << 24},
    {"system", 0, ARG_TEXT, "TEXT", "the system message", 0, 0},
    IMAGES_OPTIONS,
    {"raw", 0, ARG_FLAG, NULL, "the raw prompt, without the chat template", 0, 0},
    {"template", 0, ARG_TEXT, "FILE", "a chat template instead of the model's own", 0, 0},
    {"set", 0, ARG_TEXT, "K=V", "a variable for the template (JSON, else text); may be repeated", 0, 0},
    {"stop", 0, ARG_TEXT, "TEXT", "text that ends the answer; may be repeated", 0, 0},
    {"special", 0, ARG_FLAG, NULL, "show control tokens in the answer", 0, 0},
    {"ignore-eos", 0, ARG_FLAG, NULL, "go on after the model's end token", 0, 0},
    {"continue", 0, ARG_FLAG, NULL, "chat: go on with the last conversation, and its model if none is named",
     0, 0},
    {"context-shift", 0, ARG_FLAG, NULL, "chat: drop the oldest turns when the context is full (default)", 0,
     0},
    {"no-context-shift", 0, ARG_FLAG, NULL, "chat: end the answer when the context is full", 0, 0},
    {"no-history", 0, ARG_FLAG, NULL, "chat: keep neither its lines nor the conversation", 0, 0},
    {"no-wrap", 0, ARG_FLAG, NULL, "do not break lines at words on a terminal", 0, 0},
    {"json", 0, ARG_FLAG, NULL, "print one JSON value at the end instead of streaming", 0, 0},
    {"profile", 0, ARG_FLAG, NULL, "print where the time went: steps, operations, kernels", 0, 0},
    {"profile-json", 0, ARG_TEXT, "FILE", "write that to a file, as JSON", 0, 0},
    OUTPUT_OPTIONS,
    CONSTRAIN_OPTIONS,
    LOAD_REASONING,
    SPECULATE_OPTIONS,
    SAMPLING_OPTIONS,
    LOAD_CACHE,
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

/* Everything that one call of the verb needs. */
struct run {
    const struct args *a;
    struct session *session;
    struct engine_options engine_options;
    struct engine *engine;
    struct sampling sampling;
    const char *stops[RUN_STOPS];
    size_t stop_count;
    struct buf prompt, chat_template;
    json_t *set;
    struct constraint *language; /* until the model is loaded; then NULL */
    struct constraint_ref *constraint;
    struct profile profile;
    struct adapter_mix lora;
    struct images images;        /* of --image, and of a chat */
    struct prompt_image *places; /* (images.count): in the prompt */
};

/* A budget of 0: the template is asked for no reasoning, too. */
static int run_no_reasoning(struct run *r, struct err *e)
{
    if (args_int(r->a, "reasoning-budget", -1) || json_object_get(r->set, "enable_thinking"))
        return 0;
    r->set = r->set ? r->set : json_object();
    return json_object_set_new(r->set, "enable_thinking", json_false())
               ? err_memory(e, "the template's variables", 64)
               : 0;
}

static int run_read_options(struct run *r, struct err *e)
{
    int at = 0;
    for (const char *text; (text = args_next(r->a, "stop", &at));) {
        if (!*text)
            return err_set(e, ERR_USAGE, "--stop is empty");
        if (r->stop_count == RUN_STOPS)
            return err_set(e, ERR_USAGE, "more than %d of --stop", RUN_STOPS);
        r->stops[r->stop_count++] = text;
    }
    if (!args_int(r->a, "predict", -1))
        return err_set(e, ERR_USAGE, "--predict takes 1 or more, or -1 (until the model ends), not 0");
    const char *file = args_text(r->a, "template");
    if (file && file_read(file, &r->chat_template, e))
        return -1;
    if (constrain_read(r->a, &r->language, e))
        return -1;
    return tool_set_values(r->a, &r->set, e) || run_no_reasoning(r, e) ? -1 : 0;
}

/* The prompt's text: -p, -f, or the second word. Where there is none it is a chat on a terminal, and else the
 * prompt is read from standard input once the model is there. */
static int run_prompt_text(struct run *r, bool *is_chat, struct err *e)
{
    const char *text = args_text(r->a, "prompt"), *file = args_text(r->a, "file");
    if ((text != NULL) + (file != NULL) + (r->a->count > 1) > 1)
        return err_set(e, ERR_USAGE, "the prompt is given twice: by -p, by -f or as the second word");
    *is_chat = false;
    if (file)
        return file_read(file, &r->prompt, e);
    text = text ? text : r->a->count > 1 ? r->a->words[1] : NULL;
    *is_chat = !text && isatty(STDIN_FILENO);
    if (text && !*text)
        return err_set(e, ERR_USAGE, "the prompt is empty");
    if (!text)
        return 0;
    return buf_str(&r->prompt, text) ? 0 : err_memory(e, "the prompt", strlen(text));
}

static int run_prompt_ids(struct run *r, struct ids *out, struct err *e)
{
    struct answer_prompt p = {
        .text = r->prompt.data ? r->prompt.data : "", .n = r->prompt.len, .set = r->set};
    p.system = args_text(r->a, "system");
    p.raw = args_flag(r->a, "raw");
    p.pictures = r->images.picture;
    p.picture_count = r->images.count;
    if (p.picture_count && !(p.images = r->places = mem_zalloc(p.picture_count, sizeof *r->places)))
        return err_memory(e, "images", p.picture_count * sizeof *r->places);
    return answer_prompt_ids(r->session, &p, out, e);
}

static void run_ids_json(struct json *j, const char *key, const struct ids *ids)
{
    json_key(j, key);
    json_begin(j, '[');
    for (size_t i = 0; i < ids->len; i++)
        json_int(j, ids->data[i]);
    json_end(j, ']');
}

struct run_figure {
    const char *key;
    double value;
};

static void run_figures_json(struct json *j, const char *key, const struct run_figure *rows, size_t n)
{
    json_key(j, key);
    json_begin(j, '{');
    for (size_t i = 0; i < n; i++) {
        json_key(j, rows[i].key);
        json_num(j, rows[i].value);
    }
    json_end(j, '}');
}

static int run_print_json(const struct run *r, const struct ids *prompt, const struct generation *g,
                          struct err *e)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    double read = g->prompt - g->cached, after = (double)g->ids.len - 1;
    const struct run_figure timings[] = {
        {"load_ms", 1e3 * r->session->seconds},
        {"first_token_ms", 1e3 * g->first_seconds},
        {"prompt_n", read},
        {"prompt_tok_s", g->first_seconds > 0 ? read / g->first_seconds : 0},
        {"n", (double)g->ids.len},
        {"tok_s", after > 0 && g->decode_seconds > 0 ? after / g->decode_seconds : 0},
    };
    const struct run_figure drafts[] = {
        {"drafted", g->drafted}, {"accepted", g->accepted}, {"forced", g->forced}};
    json_begin(&j, '{');
    json_key(&j, "text");
    json_strn(&j, g->text.data ? g->text.data : "", g->text.len);
    run_ids_json(&j, "ids", &g->ids);
    run_ids_json(&j, "prompt_ids", prompt);
    json_key(&j, "finish_reason");
    json_str(&j, finish_name(g->finish));
    json_key(&j, "reasoning_tokens");
    json_uint(&j, g->reasoned);
    run_figures_json(&j, "timings", timings, sizeof timings / sizeof *timings);
    if (args_text(r->a, "speculate") || args_text(r->a, "draft"))
        run_figures_json(&j, "speculation", drafts, sizeof drafts / sizeof *drafts);
    json_end(&j, '}');
    buf_char(&out, '\n');
    return tool_print(&out, e);
}

/* Writes the profile: to stderr, or to the named file. */
static int run_print_profile(struct run *r, struct err *e)
{
    const char *file = args_text(r->a, "profile-json");
    struct buf out = {0};
    profile_end(&r->profile);
    file ? profile_json(&r->profile, &out) : profile_text(&r->profile, &out);
    int failed = out.failed ? err_memory(e, "the profile", out.len) : 0;
    if (!failed && file)
        failed = output_file_write(file, out.data, out.len, e);
    else if (!failed)
        fwrite(out.data, 1, out.len, stderr);
    buf_free(&out);
    return failed;
}

/* 0: until the model ends. */
static uint32_t run_most(const struct run *r)
{
    int64_t n = args_int(r->a, "predict", -1);
    return n < 0 ? r->session->preset_most : (uint32_t)n;
}

/* Lines are broken at words on a terminal. */
static bool run_wraps(const struct run *r)
{
    return !args_flag(r->a, "no-wrap") && tool_colour(STDOUT_FILENO);
}

static int run_once(struct run *r, struct err *e)
{
    bool json = args_flag(r->a, "json");
    bool profiled = args_flag(r->a, "profile") || args_text(r->a, "profile-json");
    struct ids prompt = {0};
    struct generation g = {0};
    struct wrap wrap = {0};
    struct answer_options o = {
        .sampler = &r->sampling.params,
        .most = run_most(r),
        .stop_strings = r->stops,
        .stops = r->stop_count,
        .constraint = r->constraint,
        .quiet = json,
        .special = args_flag(r->a, "special"),
        .ignore_eog = args_flag(r->a, "ignore-eos"),
        .lora = r->lora,
        .wrap = !json && run_wraps(r) ? &wrap : NULL,
    };
    tool_locale();
    int failed = run_prompt_ids(r, &prompt, e);
    if (!failed && profiled)
        failed = profile_start(&r->profile, r->session, (uint32_t)prompt.len, e);
    o.reasoning = answer_reasoning(r->session, &prompt);
    o.images = r->places;
    o.image_count = r->images.count;
    interrupt_catch();
    failed = failed || answer_run(r->engine, &prompt, &o, &g, e);
    if (!json && g.text.len && (failed || g.text.data[g.text.len - 1] != '\n'))
        putchar('\n');
    if (!failed && json)
        failed = run_print_json(r, &prompt, &g, e);
    tool_flush(); /* before what goes to stderr, which may be the same file */
    if (!failed && g.context_full)
        log_warn("the answer ends because the context of %u tokens is full; --ctx makes it larger",
                 r->session->runner->ctx);
    if (!failed && args_flag(r->a, "verbose"))
        answer_stats(r->session, &g);
    if (!failed && profiled)
        failed = run_print_profile(r, e);
    if (!failed && g.finish == FINISH_CANCEL && !tool_flush())
        failed = err_set(e, ERR_INTERRUPTED, "interrupted");
    wrap_free(&wrap);
    ids_free(&prompt);
    generation_free(&g);
    return failed ? -1 : 0;
}

static int run_talk(struct run *r, struct err *e)
{
    if (!r->session->chat) {
        *e = r->session->chat_why;
        return -1;
    }
    struct chat_options o = {
        .system = args_text(r->a, "system"),
        .sampling = &r->sampling,
        .most = run_most(r),
        .stop_strings = r->stops,
        .stops = r->stop_count,
        .constraint = r->constraint,
        .lora = r->lora,
        .set = r->set,
        .verbose = args_flag(r->a, "verbose"),
        .wrap = run_wraps(r),
        .context_shift = !args_flag(r->a, "no-context-shift"),
        .history = !args_flag(r->a, "no-history"),
        .resume = args_flag(r->a, "continue"),
        .images = &r->images,
    };
    return chat_run(r->session, r->engine, &o, e);
}

/* Before the work: may the profile be written there. */
static int run_check_output(const struct run *r, struct err *e)
{
    const char *file = args_text(r->a, "profile-json"), *model = r->a->count ? r->a->words[0] : NULL;
    struct output_file output = {.force = args_flag(r->a, "force")};
    int failed = file && (output_file_reads_model(&output, model, e) || output_file_allow(&output, file, e));
    output_file_free(&output);
    return failed ? -1 : 0;
}

static int run_all(struct run *r, struct err *e)
{
    bool is_chat = false;
    struct session_options o = {0};
    if (run_read_options(r, e) || run_prompt_text(r, &is_chat, e) ||
        speculate_read(r->a, &r->engine_options, &o, e))
        return -1;
    if (is_chat && args_flag(r->a, "json"))
        return err_set(e, ERR_USAGE, "--json needs a prompt (-p TEXT, or standard input)");
    if (!is_chat && args_flag(r->a, "continue"))
        return err_set(e, ERR_USAGE, "--continue is for a chat: it takes no prompt");
    o.chat_template = r->chat_template.data;
    /* decoding forks: before the model's threads start */
    if ((is_chat && images_start(&r->images, e)) || images_load(&r->images, r->a, e))
        return -1;
    char last[PATH_MAX];
    const char *model = r->a->count ? r->a->words[0] : NULL;
    if (!model && args_flag(r->a, "continue")) {
        if (chat_last_model(last, e))
            return -1;
        model = last;
    }
    if (run_check_output(r, e) || load_model(&r->session, model, &o, r->a, e) ||
        load_predicts(r->session->model, r->session->store->path, e) ||
        sampling_read(r->a, &r->session->defaults, &r->sampling, e) ||
        sampler_check(&r->sampling.params, r->session->model->plan.out_width, e) ||
        images_prepare(&r->images, r->session->vision, e))
        return -1;
    for (size_t i = 0; !r->stop_count && i < r->session->preset_stop_count && i < RUN_STOPS; i++)
        r->stops[i] = r->session->preset_stops[i];
    r->stop_count = r->stop_count || r->session->preset_stop_count == 0 ? r->stop_count
                    : r->session->preset_stop_count < RUN_STOPS         ? r->session->preset_stop_count
                                                                        : RUN_STOPS;
    if (!is_chat && !r->prompt.len && file_read("-", &r->prompt, e))
        return -1;
    if (!is_chat && !r->prompt.len)
        return err_set(e, ERR_USAGE, "the prompt is empty");
    struct constraint *c = r->language;
    r->language = NULL;
    if (constrain_ref(c, r->session, &r->constraint, e) ||
        speculate_load(r->a, args_text(r->a, "draft"), &r->engine_options, r->session, e) ||
        load_cache(r->a, &r->engine_options, e) || load_mix(r->session, &r->lora, e) ||
        engine_open(&r->engine, r->session, &r->engine_options, e))
        return -1;
    return is_chat ? run_talk(r, e) : run_once(r, e);
}

static int run_run(const struct args *a, struct err *e)
{
    static struct run r; /* large: the biases */
    r = (struct run){.a = a, .prompt.max = 64 << 20, .chat_template.max = 4 << 20};
    int result = run_all(&r, e);
    engine_close(r.engine);
    profile_free(&r.profile);
    constraint_free(r.language);
    constraint_ref_drop(r.constraint);
    session_close(r.engine_options.draft_model);
    session_close(r.session);
    json_decref(r.set);
    buf_free(&r.prompt);
    buf_free(&r.chat_template);
    images_free(&r.images);
    mem_free(r.places);
    return result;
}

const struct tool_verb tool_run = {
    .name = "run",
    .words = "[MODEL] [PROMPT]",
    .brief = "answer a prompt, or chat in the terminal",
    .more = "Without MODEL the default model answers; without a prompt, on a terminal, it is a chat.\n"
            "  quern run -p \"Why is the sky blue?\"\n"
            "  quern run model.gguf \"Write a haiku about mills\" --temp 0.5\n"
            "  git diff | quern run coder.gguf --system \"Review this change.\"\n"
            "  quern run gemma3.gguf --image photo.jpg -p \"What is this?\"\n"
            "  quern run --json-schema person.json -p \"Invent a person.\"\n",
    .options = run_options,
    .least = 0,
    .most = 2,
    .run = run_run,
};
