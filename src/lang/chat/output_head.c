/* How calls without a mark of their own begin: a block of JSON or of code, or JSON alone. The parser reads them by these
 * patterns, and the grammar holds the model to the tool's schema from the same byte on. */
#include "lang/chat/output_internal.h"

#include "base/mem.h"

#include <string.h>

const struct output_head output_heads[] = {
    {"{ \"name\" : \"@\"", 1},
    {"{ \"tool_name\" : \"@\"", 1},
    {"{ \"function\" : \"@\"", 1},
    {"{ \"tool\" : \"@\"", 1},
    {"{ \"type\" : \"function\" , \"name\" : \"@\"", 1},
    {"{ \"function\" : { \"name\" : \"@\"", 2},
    {"{ \"type\" : \"function\" , \"function\" : { \"name\" : \"@\"", 2},
    {"{ { \"name\" : \"@\"", 2}, /* some copy the doubled braces of a template */
};
const size_t output_head_count = sizeof output_heads / sizeof *output_heads;

const char *const output_arguments[] = {
    " , \"arguments\" : ", " , \"parameters\" : ", " , \"args\" : ", " , \"input\" : ", NULL};

int output_match(const char *pattern, struct output_text t, struct output_call_head *h)
{
    size_t at = 0;
    for (; *pattern; pattern++) {
        if (*pattern == ' ') {
            while (at < t.n && output_is_white(t.s[at]))
                at++;
        } else if (at == t.n)
            return 0;
        else if (*pattern == '@') {
            h->name =
                (struct output_text){t.s + at, output_name_length((struct output_text){t.s + at, t.n - at})};
            at += h->name.n;
        } else if (t.s[at++] != *pattern)
            return -1;
    }
    h->n = at;
    return 1;
}

static bool head_is_known(const json_t *tools, struct output_text name)
{
    char *own = mem_strndup(name.s, name.n);
    bool known = own && output_tool(tools, own);
    mem_free(own);
    return known;
}

static struct output_text head_skip(struct output_text t, const char *text)
{
    struct output_call_head h;
    return output_match(text, t, &h) > 0 ? (struct output_text){t.s + h.n, t.n - h.n} : t;
}

/* NAME( or NAME{, also printed, and in a list. */
static int head_code(const json_t *tools, struct output_text t)
{
    static const char call[] = ".call";
    struct output_text name = head_skip(head_skip(head_skip(t, " "), "print( "), "[ ");
    size_t at = name.n = output_name_length(name), end = (size_t)(name.s - t.s);
    if (name.n > strlen(call) && !memcmp(name.s + name.n - strlen(call), call, strlen(call)))
        name.n -= strlen(call);
    for (at += end; at < t.n && output_is_white(t.s[at]);)
        at++;
    if (at == t.n)
        return 0;
    return (t.s[at] == '(' || t.s[at] == '{') && head_is_known(tools, name) ? 1 : -1;
}

int output_begins(const struct output_wrap *w, const json_t *tools, struct output_text t)
{
    int best = -1;
    if (w->shape == SHAPE_CODE)
        return head_code(tools, t);
    t = head_skip(head_skip(t, " "), "[ ");
    for (size_t i = 0; i < output_head_count && best < 1; i++) {
        struct output_call_head h = {0};
        int match = output_match(output_heads[i].text, t, &h);
        if (match > 0 && !head_is_known(tools, h.name))
            match = -1;
        best = match > best ? match : best;
    }
    return best;
}
