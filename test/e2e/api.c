/* What the library does beyond the examples, printed line by line for test_library.py: api MODEL */
#include <quern.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct quern_error why;

static int check(int good, const char *what)
{
    if (!good)
        printf("FAILED %s: %s\n", what, why.text);
    return good;
}

static void answer(struct quern_model *m, const char *what, struct quern_request *r)
{
    struct quern_answer a;
    if (!check(!quern_generate(m, r, &a, &why), what))
        return;
    printf("%s|%s|%s\n", what, a.text, a.finish_reason);
    check(!a.logprobs || (a.id_count && a.logprobs[0] <= 0), "logprobs");
    quern_answer_free(&a);
}

/* Zero in a field: of the first version the model's default, of this one zero. */
static void versions(struct quern_model *m)
{
    struct quern_request old = {.prompt = "Tell a story.", .max_tokens = 12, .seed = 7},
                         fresh = QUERN_REQUEST;
    struct quern_request by_call;
    fresh.prompt = old.prompt;
    fresh.max_tokens = old.max_tokens;
    fresh.seed = old.seed;
    answer(m, "old", &old);
    answer(m, "default", &fresh);
    fresh.temperature = 0;
    answer(m, "zero", &fresh);
    old.greedy = 1;
    answer(m, "greedy", &old);
    quern_request_init(&by_call, sizeof by_call);
    check(by_call.size == sizeof by_call && isnan(by_call.temperature) && by_call.top_k == -1, "init");
    /* a caller whose struct ends after max_tokens */
    quern_request_init(&by_call, offsetof(struct quern_request, seed));
    by_call.prompt = old.prompt;
    by_call.max_tokens = 12;
    memset((char *)&by_call + by_call.size, 0xff, sizeof by_call - by_call.size);
    answer(m, "short", &by_call);
    check(quern_abi() == QUERN_ABI && *quern_version(), "versions");
}

static void constraints(struct quern_model *m)
{
    struct quern_request r = QUERN_REQUEST;
    r.prompt = "Is the sky blue?";
    r.temperature = 0;
    r.max_tokens = 32;
    r.logprobs = 1;
    r.regex = "(yes|no), [a-z]{3,8}";
    answer(m, "regex", &r);
    r.regex = NULL;
    r.choices = (const char *const[]){"maybe", "perhaps", NULL};
    answer(m, "choices", &r);
    r.grammar = "root ::= \"x\"";
    check(!quern_submit(m, &r, &why) && why.code == 64, "two formats are refused");
    r.choices = NULL;
    r.sampling = "{\"no_such\": 1}";
    check(!quern_submit(m, &r, &why) && strstr(why.text, "no_such"), "unknown sampling field");
    r.sampling = "{\"repeat_penalty\": 1.3}";
    answer(m, "grammar", &r);
    r.prompt = NULL;
    r.grammar = NULL;
    r.sampling = NULL;
    r.max_tokens = 4;
    r.messages = "[{\"role\": \"user\", \"content\": \"Count to ten\"}, {\"role\": \"assistant\", "
                 "\"content\": \"1, 2, 3,\"}]";
    answer(m, "continued", &r);
}

static void tokens(struct quern_model *m)
{
    int32_t *ids, *prompt;
    char *text;
    float *logits, *last;
    const char *said = "One two three";
    long n = quern_tokenize(m, said, strlen(said), 0, &ids, &why);
    check(n > 0 && quern_detokenize(m, ids, (size_t)n, 0, &text, &why) == (long)strlen(said), "detokenize");
    check(!strcmp(text, said), "round trip");
    long rows = quern_logits(m, ids, (size_t)n, 0, NULL, &logits, &why);
    check(rows == n, "logits");
    check(quern_logits(m, ids, (size_t)n, (size_t)n - 1, NULL, &last, &why) == 1, "the last row");
    char *info = quern_info(m);
    const char *vocabulary = strstr(info, "\"vocabulary\":");
    size_t width = strtoul(vocabulary + strlen("\"vocabulary\":"), NULL, 10);
    double worst = 0;
    for (size_t i = 0; i < width; i++)
        worst = fmax(worst, fabs((double)(last[i] - logits[(size_t)(n - 1) * width + i])));
    check(worst < 0.05, "the last row is the last of all");
    printf("logits|%zu|%.4f\n", width, (double)last[0]);
    struct quern_request r = QUERN_REQUEST;
    r.prompt = "Hi";
    check(quern_prompt(m, &r, &prompt, &why) > 5, "prompt");
    check(quern_logits(m, ids, (size_t)n, (size_t)n, NULL, &logits, &why) < 0, "no rows");
    quern_free(prompt);
    quern_free(info);
    quern_free(text);
    quern_free(ids);
    quern_free(last);
}

/* Many streams, one reader; every second one is cut short. */
static void ready(struct quern_model *m)
{
    enum { MANY = 12 };
    struct quern_stream *streams[MANY];
    struct quern_event events[4];
    size_t counts[MANY] = {0}, left = MANY;
    for (size_t i = 0; i < MANY; i++) {
        struct quern_request r = QUERN_REQUEST;
        r.prompt = "Write about mills.";
        r.temperature = 0;
        r.max_tokens = 16;
        r.notify = 1;
        r.arg = &counts[i];
        check((streams[i] = quern_submit(m, &r, &why)) != NULL, "submit");
    }
    while (left) {
        size_t n = quern_ready(m, -1, events, 4);
        for (size_t i = 0; i < n; i++) {
            struct quern_chunk c;
            size_t *count = events[i].arg, at = (size_t)(count - counts);
            check(events[i].stream == streams[at], "the stream's arg");
            if (quern_next(events[i].stream, 0, &c, &why) <= 0)
                continue;
            *count += c.count;
            if (at % 2 && *count >= 3 && !c.done)
                quern_cancel(streams[at]);
            if (c.done) {
                left--;
                check(!strcmp(c.finish_reason, at % 2 ? "cancelled" : "length"), c.finish_reason);
                quern_stream_close(streams[at]);
            }
        }
    }
    quern_interrupt(m);
    check(quern_ready(m, -1, events, 4) == 0, "interrupt");
    check(quern_ready(m, 0.01, events, 4) == 0, "nothing left");
}

int main(int argc, char **argv)
{
    struct quern_options options;
    quern_options_init(&options, sizeof options);
    options.streams = 8;
    options.ctx = 512;
    options.offline = 1;
    struct quern_model *m = argc == 2 ? quern_open(argv[1], &options, &why) : NULL;
    if (!check(m != NULL, "open"))
        return 1;
    versions(m);
    constraints(m);
    tokens(m);
    ready(m);
    quern_close(m);
    return 0;
}
