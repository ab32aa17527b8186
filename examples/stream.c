/* An answer that the reader cuts short, token by token, with log-probabilities: stream MODEL "PROMPT" */
#include <quern.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    struct quern_error why;
    struct quern_chunk chunk = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 64;
    }
    struct quern_model *m = quern_open(argv[1], NULL, &why);
    struct quern_request request = {.prompt = argv[2], .greedy = 1, .logprobs = 1};
    struct quern_stream *s = m ? quern_submit(m, &request, &why) : NULL;
    if (!s) {
        fprintf(stderr, "%s\n", why.text);
        quern_close(m);
        return why.code;
    }
    int failed = 0;
    for (size_t seen = 0; !chunk.done && !failed;) {
        failed = quern_next(s, -1, &chunk, &why) < 0;
        for (size_t i = 0; i < chunk.count && !failed; i++)
            printf("%6d %8.4f  %.*s\n", (int)chunk.ids[i], (double)chunk.logprobs[i],
                   i ? 0 : (int)chunk.text_length, chunk.text);
        seen += chunk.count;
        if (seen >= 12)
            quern_cancel(s);
    }
    if (failed)
        fprintf(stderr, "%s\n", why.text);
    else
        printf("(%s after %.0f ms)\n", chunk.finish_reason, 1e3 * chunk.seconds);
    quern_stream_close(s);
    quern_close(m);
    return failed ? why.code : 0;
}
