#define _GNU_SOURCE
/* A tokenizer from hostile files, and hostile text through it. The first byte says what the rest is: a
 * GGUF file, a tokenizer.json, a SentencePiece model, ranks, a tekken.json, a word list; a NUL after a
 * marker parts the file from the text. */
#include "base/mem.h"
#include "format/gguf.h"
#include "lang/token/tok.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char marker[] = "\n--text--\n";

/* The readers take paths: a file that lives in memory. */
static int write_file(const uint8_t *data, size_t size, const char *tail, char *path, size_t room)
{
    snprintf(path, room, "/tmp/quern-fuzz-%d%s", (int)getpid(), tail);
    FILE *f = fopen(path, "wb");
    if (!f)
        return -1;
    size_t n = fwrite(data, 1, size, f);
    return fclose(f) || n != size ? -1 : 0;
}

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct ids ids = {0};
        struct buf back = {0};
        struct err e = {0};
        if (!tokenizer_encode(t, text, n, flags, &ids, &e))
            for (size_t i = 0; i < ids.len; i++)
                if (ids.data[i] < 0 || ids.data[i] >= tokenizer_vocab(t))
                    __builtin_trap();
        e = (struct err){0};
        tokenizer_decode(t, ids.data, ids.len, flags & 1, &back, &e);
        buf_free(&back);
        ids_free(&ids);
    }
}

static int open_any(struct tokenizer *t, uint8_t kind, const uint8_t *file, size_t n, struct gguf **g,
                    struct err *e)
{
    char path[64];
    int (*const from[])(struct tokenizer *, const char *, struct err *) = {
        tok_from_json, tok_from_spm, tok_from_tiktoken, tok_from_tekken, tok_from_wordlist};
    if (kind % 6 == 0)
        return gguf_parse(g, file, n, e) ? -1 : tok_from_gguf(t, *g, e);
    if (write_file(file, n, "", path, sizeof path))
        return err_set(e, ERR_DATA, "no file");
    int rc = from[kind % 6 - 1](t, path, e);
    unlink(path);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 1 << 16)
        return 0;
    const uint8_t *cut = memmem(data + 1, size - 1, marker, sizeof marker - 1);
    size_t file = cut ? (size_t)(cut - data) - 1 : size - 1;
    const char *text = cut ? (const char *)cut + sizeof marker - 1 : "Hello  wörld's 123 <s>\n";
    size_t n = cut ? size - 1 - file - (sizeof marker - 1) : strlen(text);
    struct tokenizer *t = mem_zalloc(1, sizeof *t);
    struct gguf *g = NULL;
    struct err e = {0};
    if (t && !open_any(t, data[0], data + 1, file, &g, &e) && !tok_finish(t, &e))
        use(t, text, n);
    else if (t && !e.code)
        __builtin_trap(); /* a failure has a reason */
    tokenizer_close(t);
    if (g)
        gguf_close(g);
    return 0;
}
