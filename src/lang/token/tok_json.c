/* See tok_json.h. */
#include "lang/token/tok_json.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/utf8.h"

#include <math.h>
#include <string.h>

#define DEPTH    64
#define FILE_MAX ((size_t)512 << 20)

struct reader {
    struct tj *j;
    char *s;
    size_t n, at;
    struct err *e;
};

static int bad(struct reader *r, const char *what)
{
    return err_set(r->e, ERR_DATA, "JSON: %s at byte %zu", what, r->at);
}

static void skip_blanks(struct reader *r)
{
    while (r->at < r->n &&
           (r->s[r->at] == ' ' || r->s[r->at] == '\n' || r->s[r->at] == '\t' || r->s[r->at] == '\r'))
        r->at++;
}

static int hex4(struct reader *r, size_t at, uint32_t *out)
{
    uint32_t v = 0;
    if (r->n - at < 4)
        return bad(r, "a \\u escape is cut off");
    for (int i = 0; i < 4; i++) {
        char c = r->s[at + i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return bad(r, "a \\u escape has a digit that is not hexadecimal");
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return 0;
}

/* The escape at r->at (after the backslash), written to *to. */
static int escape(struct reader *r, size_t *to)
{
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    char c = r->s[r->at++];
    const char *p = c ? strchr(from, c) : NULL;
    if (p) {
        r->s[(*to)++] = plain[p - from];
        return 0;
    }
    uint32_t cp, low;
    if (c != 'u')
        return bad(r, "unknown escape");
    if (hex4(r, r->at, &cp))
        return -1;
    r->at += 4;
    if (cp >= 0xd800 && cp < 0xdc00 && r->n - r->at >= 6 && r->s[r->at] == '\\' && r->s[r->at + 1] == 'u') {
        if (hex4(r, r->at + 2, &low))
            return -1;
        if (low >= 0xdc00 && low < 0xe000) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            r->at += 6;
        }
    }
    if (cp >= 0xd800 && cp < 0xe000)
        cp = 0xfffd;
    char utf8[4];
    size_t len = utf8_put(cp, utf8);
    memcpy(r->s + *to, utf8, len);
    *to += len;
    return 0;
}

/* The string after its opening quote, unescaped in place. */
static int string(struct reader *r, const char **out, uint32_t *out_n)
{
    size_t from = r->at;
    while (r->at < r->n && r->s[r->at] != '"' && r->s[r->at] != '\\' && (unsigned char)r->s[r->at] >= ' ')
        r->at++;
    size_t to = r->at;
    while (r->at < r->n && r->s[r->at] != '"') {
        if ((unsigned char)r->s[r->at] < ' ')
            return bad(r, "a control character inside a string");
        if (r->s[r->at] != '\\') {
            r->s[to++] = r->s[r->at++];
            continue;
        }
        if (++r->at >= r->n || escape(r, &to))
            return r->at >= r->n ? bad(r, "a string is not closed") : -1;
    }
    if (r->at >= r->n)
        return bad(r, "a string is not closed");
    r->at++;
    if (to - from > UINT32_MAX)
        return bad(r, "a string is too long");
    *out = r->s + from;
    *out_n = (uint32_t)(to - from);
    return 0;
}

static int node_add(struct reader *r, uint32_t *out)
{
    struct tj *j = r->j;
    if (j->count == j->cap) {
        uint32_t cap = j->cap ? j->cap * 2 : 1024;
        struct tj_node *grown = j->cap >= 1u << 28 ? NULL : mem_realloc(j->nodes, cap, sizeof *grown);
        if (!grown)
            return err_memory(r->e, "JSON", (unsigned long long)cap * sizeof *grown);
        j->nodes = grown;
        j->cap = cap;
    }
    j->nodes[j->count] = (struct tj_node){.type = TJ_NULL};
    *out = j->count++;
    return 0;
}

static int value(struct reader *r, uint32_t at, int depth);

static int members(struct reader *r, uint32_t at, char close, int depth)
{
    uint32_t last = 0, count = 0;
    if (depth >= DEPTH)
        return bad(r, "nested too deeply");
    r->j->nodes[at].type = close == '}' ? TJ_OBJECT : TJ_ARRAY;
    r->j->nodes[at].child = 0;
    skip_blanks(r);
    if (r->at < r->n && r->s[r->at] == close) {
        r->at++;
        return 0;
    }
    for (;; r->at++) {
        uint32_t node;
        if (node_add(r, &node))
            return -1;
        skip_blanks(r);
        if (close == '}') {
            if (r->at >= r->n || r->s[r->at++] != '"')
                return bad(r, "a name in quotes was expected");
            const char *key;
            uint32_t key_n;
            if (string(r, &key, &key_n))
                return -1;
            r->j->nodes[node].key = key;
            r->j->nodes[node].key_n = key_n;
            skip_blanks(r);
            if (r->at >= r->n || r->s[r->at++] != ':')
                return bad(r, "':' was expected");
        }
        if (value(r, node, depth + 1))
            return -1;
        *(last ? &r->j->nodes[last].next : &r->j->nodes[at].child) = node;
        last = node;
        r->j->nodes[at].n = ++count;
        skip_blanks(r);
        if (r->at < r->n && r->s[r->at] == close) {
            r->at++;
            return 0;
        }
        if (r->at >= r->n || r->s[r->at] != ',')
            return bad(r, close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
    }
}

static int number(struct reader *r, struct tj_node *node)
{
    size_t from = r->at;
    uint64_t whole = 0;
    while (r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9' && r->at - from < 18)
        whole = whole * 10 + (uint64_t)(r->s[r->at++] - '0');
    node->type = TJ_NUMBER;
    node->number = (double)whole;
    if (r->at > from && (r->at >= r->n || !strchr("+-.eE0123456789", r->s[r->at])))
        return 0;
    while (r->at < r->n && r->s[r->at] && strchr("+-.eE0123456789", r->s[r->at]))
        r->at++;
    if (!num_f64(r->s + from, r->at - from, -1e308, 1e308, &node->number))
        return bad(r, "not a number");
    return 0;
}

static int value(struct reader *r, uint32_t at, int depth)
{
    static const struct {
        const char *word;
        enum tj_type type;
        double v;
    } words[] = {{"true", TJ_BOOL, 1}, {"false", TJ_BOOL, 0}, {"null", TJ_NULL, 0}};
    skip_blanks(r);
    if (r->at >= r->n)
        return bad(r, "a value was expected, the text ends");
    char c = r->s[r->at];
    if (c == '"') {
        r->at++;
        struct tj_node *node = &r->j->nodes[at];
        node->type = TJ_STRING;
        return string(r, &node->s, &node->n);
    }
    if (c == '{' || c == '[') {
        r->at++;
        return members(r, at, c == '{' ? '}' : ']', depth);
    }
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i].word);
        if (r->n - r->at >= n && !memcmp(r->s + r->at, words[i].word, n)) {
            r->at += n;
            r->j->nodes[at].type = words[i].type;
            r->j->nodes[at].number = words[i].v;
            return 0;
        }
    }
    return number(r, &r->j->nodes[at]);
}

static int tj_parse(struct tj *j, struct err *e)
{
    struct reader r = {.j = j, .s = j->text.data, .n = j->text.len, .e = e};
    uint32_t root;
    j->e = e;
    j->file = j->file ? j->file : "JSON";
    if (r.n >= 3 && !memcmp(r.s, "\xef\xbb\xbf", 3))
        r.at = 3;
    if (node_add(&r, &root) || value(&r, root, 0))
        return -1;
    skip_blanks(&r);
    return r.at == r.n ? 0 : bad(&r, "something follows the value");
}

int tj_open(struct tj *j, const char *path, struct err *e)
{
    const char *name = strrchr(path, '/');
    j->text.max = FILE_MAX;
    j->file = name ? name + 1 : path;
    if (file_read(path, &j->text, e) || tj_parse(j, e)) {
        err_prefix(e, "%s", log_safe(path));
        tj_close(j);
        return -1;
    }
    return 0;
}

void tj_close(struct tj *j)
{
    mem_free(j->nodes);
    buf_free(&j->text);
    *j = (struct tj){0};
}

const struct tj_node *tj_first(const struct tj *j, const struct tj_node *n)
{
    return n && (n->type == TJ_ARRAY || n->type == TJ_OBJECT) && n->child ? &j->nodes[n->child] : NULL;
}

const struct tj_node *tj_next(const struct tj *j, const struct tj_node *n)
{
    return n->next ? &j->nodes[n->next] : NULL;
}

bool tj_is(const struct tj_node *n, const char *text)
{
    return n && n->type == TJ_STRING && n->n == strlen(text) && !memcmp(n->s, text, n->n);
}

/* ---- typed getters ---- */

/* Nodes are in the order of the text, so that a node stands below the last child that does not follow it. */
static const char *path_of(const struct tj *j, const struct tj_node *n, const char *key, struct buf *out)
{
    const struct tj_node *at = &j->nodes[0];
    out->max = 400;
    while (at != n) {
        size_t i = 0;
        const struct tj_node *child = tj_first(j, at), *next;
        for (; child && (next = tj_next(j, child)) && next <= n; child = next)
            i++;
        if (!child)
            break;
        if (at->type == TJ_OBJECT)
            buf_printf(out, "%s%s", out->len ? "." : "", log_safe_n(child->key, child->key_n));
        else
            buf_printf(out, "[%zu]", i);
        at = child;
    }
    if (key)
        buf_printf(out, "%s%.*s", out->len ? "." : "", (int)strcspn(key, "?"), key);
    return out->len ? log_safe_n(out->data, out->len) : "the value";
}

static const char *type_name(const struct tj_node *n)
{
    switch (n->type) {
    case TJ_NULL:
        return "null";
    case TJ_BOOL:
        return n->number != 0 ? "true" : "false";
    case TJ_NUMBER:
        return "a number";
    case TJ_STRING:
        return "a string";
    case TJ_ARRAY:
        return "an array";
    default:
        return "an object";
    }
}

static unsigned type_of(const struct tj_node *n)
{
    static const unsigned types[] = {
        [TJ_BOOL] = JSONREAD_IS_BOOL,   [TJ_NUMBER] = JSONREAD_IS_NUMBER, [TJ_STRING] = JSONREAD_IS_STRING,
        [TJ_ARRAY] = JSONREAD_IS_ARRAY, [TJ_OBJECT] = JSONREAD_IS_OBJECT, [TJ_NULL] = 0};
    bool whole = n->type == TJ_NUMBER && floor(n->number) == n->number;
    return types[n->type] | (whole ? JSONREAD_IS_INT : 0);
}

/* A member or, without a key, the node itself. */
static void wrong(const struct tj *j, const struct tj_node *n, const char *key, const char *is,
                  unsigned types)
{
    struct buf path = {0};
    jsonread_wrong(j->e, log_safe(j->file), path_of(j, n, key, &path), is, types);
    buf_free(&path);
}

static void twice(const struct tj *j, const struct tj_node *n)
{
    struct buf path = {0};
    err_set(j->e, ERR_DATA, "%s: %s is given twice", log_safe(j->file), path_of(j, n, NULL, &path));
    buf_free(&path);
}

bool tj_expect(const struct tj *j, const struct tj_node *n, unsigned types)
{
    if (type_of(n) & types)
        return true;
    wrong(j, n, NULL, type_name(n), types);
    return false;
}

const struct tj_node *tj_get(const struct tj *j, const struct tj_node *o, const char *key, unsigned types)
{
    size_t n = strcspn(key, "?");
    const struct tj_node *found = NULL;
    if (!o || !tj_expect(j, o, JSONREAD_IS_OBJECT))
        return NULL;
    for (const struct tj_node *m = tj_first(j, o); m; m = tj_next(j, m)) {
        if (m->key_n != n || memcmp(m->key, key, n) != 0)
            continue;
        if (found) {
            twice(j, m);
            return NULL;
        }
        found = m;
    }
    if (!found || (found->type == TJ_NULL && key[n]))
        return NULL;
    return tj_expect(j, found, types) ? found : NULL;
}

const struct tj_node *tj_need(const struct tj *j, const struct tj_node *o, const char *key, unsigned types)
{
    const struct tj_node *found = tj_get(j, o, key, types);
    if (!found && o)
        wrong(j, o, key, "missing", types); /* says nothing after another error */
    return found;
}

int64_t tj_whole(const struct tj *j, const struct tj_node *n, int64_t least, int64_t most)
{
    struct buf path = {0};
    if (!n || !tj_expect(j, n, JSONREAD_IS_INT))
        return -1;
    if (n->number >= (double)least && n->number <= (double)most)
        return (int64_t)n->number;
    jsonread_out_of_range(j->e, log_safe(j->file), path_of(j, n, NULL, &path), n->number,
                          (double[]){(double)least, (double)most});
    buf_free(&path);
    return -1;
}

bool tj_bool(const struct tj *j, const struct tj_node *o, const char *key, bool otherwise)
{
    const struct tj_node *m = tj_get(j, o, key, JSONREAD_IS_BOOL);
    return m ? m->number != 0 : otherwise;
}
