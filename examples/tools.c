/* A model that may call a tool, and says why: tools MODEL "PROMPT" */
#include <quern.h>

#include <stdio.h>
#include <stdlib.h>

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"The weather of a "
    "city\","
    " \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}},"
    " \"required\": [\"city\"]}}}]";

int main(int argc, char **argv)
{
    struct quern_error why;
    struct quern_answer answer;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 64;
    }
    struct quern_options options = QUERN_OPTIONS;
    options.ctx = 2048;
    struct quern_model *m = quern_open(argv[1], &options, &why);
    struct quern_request request = QUERN_REQUEST;
    request.prompt = argv[2];
    request.tools = tools;
    request.tool_choice = "required";
    request.temperature = 0;
    request.max_tokens = 64;
    if (!m || quern_generate(m, &request, &answer, &why)) {
        fprintf(stderr, "%s\n", why.text);
        quern_close(m);
        return why.code;
    }
    printf("%s\n%s (%s)\n", answer.text, answer.tool_calls ? answer.tool_calls : "no calls",
           answer.finish_reason);
    quern_answer_free(&answer);
    quern_close(m);
    return 0;
}
