/* Repairing, normalising, scanning and the streaming of decoded bytes, over any bytes at all. */
#include "base/mem.h"
#include "base/utf8.h"
#include "lang/token/pretok_scan.h"
#include "lang/token/tok.h"
#include "lang/token/unicode.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HOLDS(x)                                                                                             \
    do {                                                                                                     \
        if (!(x))                                                                                            \
            __builtin_trap();                                                                                \
    } while (0)

/* Every pass moves forward, stays inside, and cuts between characters. */
static void scan(const char *s, size_t n)
{
    static const char *const names[] = {"default", "llama3",       "qwen35",      "gpt-4o",
                                        "tekken",  "deepseek-llm", "deepseek-v3", "bloom",
                                        "kimi-k2", "tiny_aya",     "afmoe",       "youtu"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct scan_model *m = scan_for_name(names[i], strlen(names[i]));
        for (int k = 0; k < 6 && m->passes[k]; k++) {
            struct scan_memo memo = {0};
            for (size_t at = 0, len; at < n;) {
                size_t end = scan_match(m->passes[k], &memo, s, n, at);
                HOLDS(end >= at && end <= n && (end == n || ((unsigned char)s[end] & 0xc0) != 0x80));
                if (end == at)
                    unicode_next(s + at, &len);
                at = end > at ? end : at + len;
            }
        }
    }
}

/* Bytes one at a time through the decoder of a vocabulary of bytes: all come out, never half a character
 * before the rest of it could still come. */
static void stream(const uint8_t *data, size_t size)
{
    static char byte[256];
    static struct tok_str bytes[256];
    static uint8_t attr[256];
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        bytes[i] = (struct tok_str){&byte[i], 1};
    }
    struct tokenizer t = {.n = 256, .bytes = bytes, .attr = attr};
    struct tok_decoder d = {.t = &t};
    struct buf out = {0};
    struct err e = {0};
    for (size_t i = 0; i < size; i++) {
        HOLDS(!tok_decoder_feed(&d, data[i], &out, &e));
        HOLDS(out.len + d.n == i + 1 && d.n < 4);
        HOLDS(!d.n || utf8_partial(d.held, d.n) == d.n);
    }
    tok_decoder_flush(&d, &out);
    HOLDS(out.len == size && (!size || !memcmp(out.data, data, size)));
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1 << 14)
        return 0;
    struct buf text = {0};
    unicode_repair(&text, (const char *)data, size);
    HOLDS(utf8_valid(text.data ? text.data : "", text.len));
    for (int form = 0; form < 4 && text.len; form++) {
        struct buf once = {0}, twice = {0};
        unicode_normalize(&once, (enum unicode_form)form, text.data, text.len);
        HOLDS(utf8_valid(once.data ? once.data : "", once.len));
        unicode_normalize(&twice, (enum unicode_form)form, once.data, once.len);
        if (size < 512) /* longer runs of marks are cut */
            HOLDS(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
        buf_free(&once);
        buf_free(&twice);
    }
    if (text.len) {
        scan(text.data, text.len);
        for (size_t at = 0; at < text.len;) {
            size_t end = unicode_grapheme(text.data, text.len, at);
            HOLDS(end > at && end <= text.len);
            at = end;
        }
    }
    stream(data, size);
    buf_free(&text);
    return 0;
}
