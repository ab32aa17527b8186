/* One answer, streamed: generate MODEL "PROMPT" */
#include <quern.h>

#include <stdio.h>

static int print(void *arg, const char *text, size_t n)
{
    fwrite(text, 1, n, arg);
    fflush(arg);
    return 0;
}

int main(int argc, char **argv)
{
    struct quern_error why;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 64;
    }
    struct quern_model *m = quern_open(argv[1], NULL, &why);
    struct quern_request request = {
        .prompt = argv[2], .max_tokens = 48, .greedy = 1, .text = print, .arg = stdout};
    struct quern_answer answer;
    if (!m || quern_generate(m, &request, &answer, &why)) {
        fprintf(stderr, "%s\n", why.text);
        quern_close(m);
        return why.code;
    }
    printf("\n(%zu tokens, %s)\n", answer.id_count, answer.finish_reason);
    quern_answer_free(&answer);
    quern_close(m);
    return 0;
}
