/* Many answers at once: batch MODEL "PROMPT" "PROMPT" ... */
#include <quern.h>

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };

int main(int argc, char **argv)
{
    struct quern_error why;
    struct quern_stream *streams[MOST];
    int count = argc - 2, failed = 0;
    if (count < 1 || count > MOST) {
        fprintf(stderr, "usage: %s MODEL PROMPT...   (at most %d)\n", argv[0], MOST);
        return 64;
    }
    struct quern_options options = {.ctx = 1024, .streams = 8, .queue = MOST};
    struct quern_model *m = quern_open(argv[1], &options, &why);
    if (!m) {
        fprintf(stderr, "%s\n", why.text);
        return why.code;
    }
    for (int i = 0; i < count; i++) {
        struct quern_request request = {.prompt = argv[2 + i], .max_tokens = 24, .greedy = 1};
        streams[i] = quern_submit(m, &request, &why);
        if (!streams[i])
            fprintf(stderr, "%s\n", why.text);
    }
    for (int i = 0; i < count; i++) {
        struct quern_chunk chunk = {0};
        printf("%d: ", i + 1);
        while (streams[i] && !chunk.done) {
            if (quern_next(streams[i], -1, &chunk, &why) < 0) {
                fprintf(stderr, "%s\n", why.text);
                failed = why.code;
                break;
            }
            fwrite(chunk.text, 1, chunk.text_length, stdout);
        }
        printf("\n(%s, %u of %u prompt tokens were known)\n", chunk.done ? chunk.finish_reason : "failed",
               (unsigned)chunk.cached_tokens, (unsigned)chunk.prompt_tokens);
        quern_stream_close(streams[i]);
    }
    quern_close(m);
    return failed;
}
