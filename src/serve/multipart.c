#define _GNU_SOURCE
#include "serve/multipart.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* A parameter of a header's value: NAME=token or NAME="quoted"; with \" as a quote inside. */
static bool multipart_parameter(const char *value, const char *end, const char *name, char *out, size_t size)
{
    size_t own = strlen(name), n = 0;
    for (const char *at = value; (at = memchr(at, ';', (size_t)(end - at)));) {
        for (at++; at < end && (*at == ' ' || *at == '\t');)
            at++;
        bool same = (size_t)(end - at) > own && !strncasecmp(at, name, own) && at[own] == '=';
        bool quoted = false;
        for (at += same ? own + 1 : 0; at < end && (quoted || *at != ';'); at++) {
            bool escaped = quoted && *at == '\\' && at + 1 < end && (at[1] == '"' || at[1] == '\\');
            if (*at == '"') {
                quoted = !quoted;
                continue;
            }
            at += escaped;
            if (same && n + 1 < size && *at)
                out[n++] = *at;
        }
        if (same) {
            while (n && !quoted && (out[n - 1] == ' ' || out[n - 1] == '\t'))
                n--;
            out[n] = 0;
            return true;
        }
    }
    return false;
}

int multipart_boundary(const char *type, char out[MULTIPART_BOUNDARY])
{
    static const char form[] = "multipart/form-data";
    char text[MULTIPART_BOUNDARY + 1];
    if (!type || strncasecmp(type, form, sizeof form - 1) != 0 ||
        !multipart_parameter(type, type + strlen(type), "boundary", text, sizeof text))
        return -1;
    size_t n = strlen(text);
    if (!n || n >= MULTIPART_BOUNDARY)
        return -1;
    memcpy(out, text, n + 1);
    return 0;
}

/* The header lines of a part: only Content-Disposition counts. */
static void multipart_headers(const char *at, const char *end, struct multipart_part *p)
{
    static const char name[] = "content-disposition:";
    while (at < end) {
        const char *line = memmem(at, (size_t)(end - at), "\r\n", 2);
        line = line ? line : end;
        if ((size_t)(line - at) > sizeof name - 1 && !strncasecmp(at, name, sizeof name - 1)) {
            multipart_parameter(at, line, "name", p->name, sizeof p->name);
            multipart_parameter(at, line, "filename", p->filename, sizeof p->filename);
        }
        at = line + 2;
    }
}

static int multipart_part(const char *at, const char *end, struct multipart *out, struct err *e)
{
    const char *head =
        end - at >= 2 && !memcmp(at, "\r\n", 2) ? at : memmem(at, (size_t)(end - at), "\r\n\r\n", 4);
    if (!head)
        return err_set(e, ERR_USAGE, "the body is no form: a part has no end of its headers");
    if (out->count == MULTIPART_PARTS)
        return err_set(e, ERR_USAGE, "the form has more than %d parts", MULTIPART_PARTS);
    struct multipart_part *p = &out->parts[out->count++];
    *p = (struct multipart_part){.data = head == at ? at + 2 : head + 4};
    p->n = (size_t)(end - p->data);
    multipart_headers(at, head, p);
    return p->name[0] ? 0 : err_set(e, ERR_USAGE, "the body is no form: a part has no name");
}

int multipart_read(const char *boundary, const char *body, size_t n, struct multipart *out, struct err *e)
{
    char mark[MULTIPART_BOUNDARY + 4] = "\r\n--";
    size_t length = strlen(boundary) + 4;
    const char *end = body + n, *at = NULL;
    memcpy(mark + 4, boundary, strlen(boundary) + 1);
    out->count = 0;
    if (n >= length - 2 && !memcmp(body, mark + 2, length - 2))
        at = body + length - 2;
    else if ((at = memmem(body, n, mark, length))) /* what is before the first one is ignored */
        at += length;
    while (at) {
        if (end - at >= 2 && !memcmp(at, "--", 2))
            return 0;
        while (at < end && (*at == ' ' || *at == '\t'))
            at++;
        const char *next =
            end - at >= 2 && !memcmp(at, "\r\n", 2) ? memmem(at, (size_t)(end - at), mark, length) : NULL;
        if (!next)
            break;
        /* a part without headers begins with its empty line; one without a body ends with its headers */
        if (multipart_part(at + 2, next, out, e))
            return -1;
        at = next + length;
    }
    return err_set(e, ERR_USAGE, "the body is no form: it has no end with its boundary");
}

const struct multipart_part *multipart_find(const struct multipart *m, const char *name)
{
    for (size_t i = 0; i < m->count; i++)
        if (!strcmp(m->parts[i].name, name))
            return &m->parts[i];
    return NULL;
}
