/* Any bytes as a model's output, in any family. How they are cut makes no difference; what is no call comes
 * out unchanged, except marks and white space; a call's arguments are a JSON object. The first bytes choose
 * the family. */
#include "base/buf.h"
#include "lang/chat/output.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"integer\",\"null\"]},\"c\":{}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

struct heard {
    struct buf all; /* every piece with its kind, neighbours of one kind joined */
    struct buf said;
    int last;
    uint32_t calls;
    bool ruled; /* the parser assumes the syntax of calls, which the text may violate */
    bool open;  /* a call goes on */
    bool cut;   /* the text ends where the model would have gone on */
};

/* A call begins with its name; what goes on belongs to one that has begun. */
static void take_call(struct heard *h, const struct output_piece *p)
{
    if (p->name ? !*p->name : !h->open)
        abort();
    if (!h->ruled) {
        json_t *arguments = json_loadb(p->text, p->n, JSON_ALLOW_NUL, NULL);
        if (!json_is_object(arguments) || p->more || !p->name)
            abort();
        json_decref(arguments);
    }
    if (p->name) {
        buf_printf(&h->all, "\n%s %s ", p->name, p->id ? p->id : "-");
        h->calls++;
    }
    h->open = p->more;
}

static void take(void *arg, const struct output_piece *p)
{
    struct heard *h = arg;
    if (p->part == OUTPUT_CALL)
        take_call(h, p);
    else {
        if (h->last != (int)p->part + 1)
            buf_printf(&h->all, "\n%d ", (int)p->part);
        buf_add(&h->said, p->text, p->n);
        if (!p->n)
            abort();
    }
    buf_add(&h->all, p->text, p->n);
    h->last = p->part == OUTPUT_CALL ? 0 : (int)p->part + 1;
}

static void hear(const struct output_options *from, const char *text, size_t n, size_t piece, struct heard *h)
{
    struct output_options o = *from;
    struct err e = {0};
    o.take = take;
    o.arg = h;
    h->ruled = o.ruled;
    struct output_parser *r = output_open(&o, &e);
    for (size_t at = 0; at < n; at += piece)
        output_feed(r, text + at, n - at < piece ? n - at : piece);
    output_end(r, h->cut);
    output_close(r);
    buf_char(&h->all, 0);
}

static size_t solid(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !(s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r');
    return count;
}

/* Bytes of all places where the mark stands. */
static size_t marked(const char *mark, const char *text, size_t n)
{
    size_t len = mark ? strlen(mark) : 0, sum = 0;
    for (size_t at = 0; len && at + len <= n; at++)
        sum += memcmp(text + at, mark, len) ? 0 : len;
    return sum;
}

static void check_kept(const struct output_options *o, const struct heard *h, const char *text, size_t n)
{
    size_t at = 0, lost = solid(text, n) - solid(h->said.data, h->said.len), may = 0;
    for (size_t i = 0; i < n && at < h->said.len; i++)
        at += text[i] == h->said.data[at];
    for (size_t i = 0; i < 4; i++)
        may += marked(o->form->section[i], text, n);
    for (size_t i = 0; i < OUTPUT_MARKS; i++)
        may += marked(o->form->drop[i], text, n);
    if (o->thought)
        may += marked(o->thought->open, text, n) + marked(o->thought->close, text, n);
    if (at < h->said.len || lost > may)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools;
    if (size < 2 || size > 1 << 15)
        return 0;
    tools = tools ? tools : json_loads(tools_text, 0, NULL);
    struct output_options o = {.form = &output_forms[data[0] % output_form_count],
                               .thought =
                                   data[1] & 1 ? NULL : output_thought_find(data[1] & 2 ? "[THINK]" : ""),
                               .tools = data[1] & 4 ? NULL : tools,
                               .thinking = data[1] & 8,
                               .ruled = data[1] & 16,
                               .only_calls = (data[1] & 48) == 48};
    bool cut = data[1] & 64;
    const char *text = (const char *)data + 2;
    size_t n = size - 2, cuts[] = {SIZE_MAX, 1, 5, 2u + data[1] % 32};
    struct heard first = {.cut = cut};
    hear(&o, text, n, n ? n : 1, &first);
    for (size_t i = 1; i < sizeof cuts / sizeof *cuts; i++) {
        struct heard h = {.cut = cut};
        hear(&o, text, n, cuts[i], &h);
        if (h.all.len != first.all.len || memcmp(h.all.data, first.all.data, h.all.len))
            abort();
        buf_free(&h.all);
        buf_free(&h.said);
    }
    /* what a constraint holds, or is cut, may be markup: that is dropped */
    if (!first.calls && !o.ruled && !cut)
        check_kept(&o, &first, text, n);
    buf_free(&first.all);
    buf_free(&first.said);
    return 0;
}
