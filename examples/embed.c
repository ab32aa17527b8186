/* How alike texts are: embed MODEL "TEXT" "TEXT" ... prints the cosine of each with the first. */
#include <quern.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct quern_error why;
    float *first = NULL, *vector;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL TEXT...\n", argv[0]);
        return 64;
    }
    struct quern_model *m = quern_open(argv[1], &(struct quern_options){.embed = 1}, &why);
    int failed = !m;
    for (int i = 2; i < argc && !failed; i++) {
        long width = quern_embed(m, argv[i], strlen(argv[i]), &vector, &why);
        if ((failed = width < 0))
            break;
        double cosine = 0;
        first = first ? first : vector;
        for (long k = 0; k < width; k++)
            cosine += (double)first[k] * vector[k];
        printf("%7.4f  %s\n", cosine, argv[i]);
        if (vector != first)
            quern_free(vector);
    }
    if (failed)
        fprintf(stderr, "%s\n", why.text);
    quern_free(first);
    quern_close(m);
    return failed ? why.code : 0;
}
