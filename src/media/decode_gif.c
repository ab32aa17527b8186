/* The first frame of a GIF, on a canvas of its transparent colour (of colour 0 where it has none), as PIL shows it. */
#include "base/cursor.h"
#include "base/mem.h"
#include "media/decode.h"

#include <string.h>

enum { GIF_COLOURS = 256, GIF_CODES = 4096 };

struct gif_reader {
    struct cursor c;
    uint32_t width, height;
    uint8_t palette[GIF_COLOURS][3];
    int transparent; /* -1: no colour is */
    /* the frame */
    uint32_t x, y, wide, high;
    bool interlaced;
    uint8_t *pixels; /* (high, wide): colour numbers */
    /* the codes: bits from the sub-blocks */
    uint32_t bits;
    int bit_count, block_left;
};

static uint32_t gif_u16(struct gif_reader *g)
{
    uint32_t low = cursor_u8(&g->c);
    return low | (uint32_t)cursor_u8(&g->c) << 8;
}

static void gif_palette(struct gif_reader *g, int flags)
{
    for (int i = 0; flags & 0x80 && i < 2 << (flags & 7); i++)
        for (int c = 0; c < 3; c++)
            g->palette[i][c] = cursor_u8(&g->c);
}

static void gif_skip_blocks(struct gif_reader *g)
{
    for (uint8_t n; (n = cursor_u8(&g->c)) && !g->c.failed;)
        cursor_skip(&g->c, n);
}

static void gif_extension(struct gif_reader *g)
{
    enum { CONTROL = 0xf9 };
    if (cursor_u8(&g->c) == CONTROL) {
        uint8_t n = cursor_u8(&g->c);
        const uint8_t *b = cursor_bytes(&g->c, n);
        if (b && n >= 4)
            g->transparent = b[0] & 1 ? b[3] : -1;
    }
    gif_skip_blocks(g);
}

/* ---- LZW ---- */

/* -1: the data ends. */
static int gif_code(struct gif_reader *g, int size)
{
    while (g->bit_count < size) {
        if (!g->block_left && !(g->block_left = cursor_u8(&g->c)))
            return -1;
        g->bits |= (uint32_t)cursor_u8(&g->c) << g->bit_count;
        g->block_left--;
        g->bit_count += 8;
        if (g->c.failed)
            return -1;
    }
    int code = (int)(g->bits & ((1u << size) - 1));
    g->bits >>= size;
    g->bit_count -= size;
    return code;
}

/* The table of strings: each is another one and one byte more. */
struct gif_table {
    uint16_t prefix[GIF_CODES];
    uint8_t last[GIF_CODES], stack[GIF_CODES + 1];
    int clear, next, size, old; /* old: the code before, -1 after a clear */
};

static void table_clear(struct gif_table *t)
{
    t->next = t->clear + 2;
    t->size = __builtin_ctz((unsigned)t->clear) + 1;
    t->old = -1;
}

/* The string of a code, backwards on the stack: its length; 0 where the code is not valid here. */
static size_t table_string(struct gif_table *t, int code)
{
    size_t n = 0;
    int at = code;
    if (t->old < 0 ? code >= t->clear : code > t->next || (code == t->next && t->next == GIF_CODES))
        return 0;
    if (code == t->next) { /* the string before and its own first byte, which is filled in below */
        n = 1;
        at = t->old;
    }
    for (; at >= t->clear; at = t->prefix[at])
        t->stack[n++] = t->last[at];
    t->stack[n++] = (uint8_t)at;
    if (code == t->next)
        t->stack[0] = (uint8_t)at;
    if (t->old >= 0 && t->next < GIF_CODES) {
        t->prefix[t->next] = (uint16_t)t->old;
        t->last[t->next++] = (uint8_t)at;
        if (t->next == 1 << t->size && t->size < 12)
            t->size++;
    }
    t->old = code;
    return n;
}

static int gif_unpack(struct gif_reader *g, struct gif_table *t, int least, struct err *e)
{
    size_t total = (size_t)g->wide * g->high;
    t->clear = 1 << least;
    table_clear(t);
    for (size_t done = 0; done < total;) {
        int code = gif_code(g, t->size);
        if (code < 0 || code == t->clear + 1)
            return err_set(e, ERR_DATA, "the file ends before the image does");
        if (code == t->clear) {
            table_clear(t);
            continue;
        }
        size_t n = table_string(t, code);
        if (!n)
            return err_set(e, ERR_DATA, "the image's data is damaged");
        while (n && done < total)
            g->pixels[done++] = t->stack[--n];
    }
    return 0;
}

/* ---- the image ---- */

/* The row of the image that row i of the data is. */
static uint32_t gif_row(const struct gif_reader *g, uint32_t i)
{
    static const struct {
        uint8_t first, step;
    } passes[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
    for (size_t p = 0; g->interlaced && p < 4; p++) {
        uint32_t rows =
            g->high > passes[p].first ? (g->high - passes[p].first + passes[p].step - 1) / passes[p].step : 0;
        if (i < rows)
            return passes[p].first + i * passes[p].step;
        i -= rows;
    }
    return i;
}

static void gif_colour(const struct gif_reader *g, uint8_t *rgb, int index)
{
    static const uint8_t white[3] = {255, 255, 255};
    memcpy(rgb, index == g->transparent ? white : g->palette[index], 3);
}

static int gif_frame(struct gif_reader *g, struct image *out, const struct image_source *s, struct err *e)
{
    g->x = gif_u16(g);
    g->y = gif_u16(g);
    g->wide = gif_u16(g);
    g->high = gif_u16(g);
    uint8_t flags = cursor_u8(&g->c);
    g->interlaced = flags & 0x40;
    gif_palette(g, flags);
    int least = cursor_u8(&g->c);
    if (g->c.failed || least < 1 || least > 11)
        return err_set(e, ERR_DATA, "the image's header is damaged");
    /* a frame that is larger than the screen enlarges it */
    g->width = g->x + g->wide > g->width ? g->x + g->wide : g->width;
    g->height = g->y + g->high > g->height ? g->y + g->high : g->height;
    if (!g->wide || !g->high)
        return err_set(e, ERR_DATA, "the image has no pixels");
    if (decode_start(out, s, g->width, g->height, e))
        return -1;
    struct gif_table *t = mem_alloc(1, sizeof *t);
    g->pixels = mem_alloc((size_t)g->wide * g->high, 1);
    int failed =
        !t || !g->pixels ? err_memory(e, "an image", (size_t)g->wide * g->high) : gif_unpack(g, t, least, e);
    mem_free(t);
    for (size_t i = 0; !failed && i < (size_t)g->width * g->height; i++)
        gif_colour(g, out->rgb + 3 * i, g->transparent >= 0 ? g->transparent : 0);
    for (uint32_t i = 0; !failed && i < g->high; i++) {
        uint8_t *row = out->rgb + ((size_t)(g->y + gif_row(g, i)) * g->width + g->x) * 3;
        for (uint32_t x = 0; x < g->wide; x++)
            gif_colour(g, row + 3 * (size_t)x, g->pixels[(size_t)i * g->wide + x]);
    }
    mem_free(g->pixels);
    return failed;
}

int decode_gif(struct image *out, struct image_source *s, struct err *e)
{
    enum { IMAGE = 0x2c, EXTENSION = 0x21 };
    struct gif_reader g = {.c = {.data = s->bytes, .size = s->size}, .transparent = -1};
    cursor_skip(&g.c, 6);
    g.width = gif_u16(&g);
    g.height = gif_u16(&g);
    uint8_t flags = cursor_u8(&g.c);
    cursor_skip(&g.c, 2);
    for (int i = 0; i < GIF_COLOURS; i++) /* without a palette: grey */
        memset(g.palette[i], i, 3);
    gif_palette(&g, flags);
    for (;;) {
        uint8_t kind = cursor_u8(&g.c);
        if (kind == IMAGE && !g.c.failed)
            return gif_frame(&g, out, s, e);
        if (g.c.failed || kind != EXTENSION)
            return err_set(e, ERR_DATA, "there is no image in the file, or it is damaged");
        gif_extension(&g);
    }
}
