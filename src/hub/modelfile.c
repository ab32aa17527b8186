/* A Modelfile: lines of INSTRUCTION ARGUMENTS, where an argument may be "..." or """...""" over several lines. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "base/log.h"
#include "base/num.h"
#include "hub/go_template.h"
#include "hub/path.h"
#include "hub/preset.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MODELFILE_MOST = 4 << 20, MODELFILE_WORD = 64 };

struct modelfile {
    const char *at, *end, *folder;
    unsigned line;
    json_t *out;
};

static void modelfile_blanks(struct modelfile *m)
{
    while (m->at < m->end && (*m->at == ' ' || *m->at == '\t'))
        m->at++;
}

static void modelfile_word(struct modelfile *m, char *out)
{
    size_t n = 0;
    for (; m->at < m->end && !strchr(" \t\r\n", *m->at); m->at++)
        if (n + 1 < MODELFILE_WORD)
            out[n++] = *m->at;
    out[n] = 0;
    modelfile_blanks(m);
}

/* The rest of the line, or a quoted text; NULL and an error. */
static json_t *modelfile_text(struct modelfile *m, struct err *e)
{
    size_t left = (size_t)(m->end - m->at), quotes = 0;
    if (left >= 3 && !memcmp(m->at, "\"\"\"", 3))
        quotes = 3;
    else if (left >= 2 && *m->at == '"')
        quotes = 1;
    const char *from = m->at + quotes, *stop = quotes == 3   ? memmem(from, left - 3, "\"\"\"", 3)
                                               : quotes == 1 ? memchr(from, '"', left - 1)
                                                             : memchr(from, '\n', left);
    if (!stop && quotes) {
        err_set(e, ERR_DATA, "line %u of the Modelfile: a quote is not closed", m->line);
        return NULL;
    }
    stop = stop ? stop : m->end;
    for (const char *p = from; p < stop; p++)
        m->line += *p == '\n';
    m->at = stop + quotes;
    while (!quotes && stop > from && strchr(" \t\r", stop[-1]))
        stop--;
    json_t *text = json_stringn(from, (size_t)(stop - from));
    if (!text)
        err_set(e, ERR_DATA, "line %u of the Modelfile is not valid UTF-8", m->line);
    return text;
}

/* A number where it is one, true and false, else the text. Takes it over. */
static json_t *modelfile_value(json_t *text)
{
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    int64_t whole;
    double number;
    json_t *v = num_i64(s, n, INT64_MIN, INT64_MAX, &whole) ? json_integer(whole)
                : num_f64(s, n, -1e18, 1e18, &number)       ? json_real(number)
                : !strcmp(s, "true") || !strcmp(s, "false") ? json_boolean(*s == 't')
                                                            : json_incref(text);
    json_decref(text);
    return v;
}

static int modelfile_parameter(struct modelfile *m, struct err *e)
{
    char name[MODELFILE_WORD];
    modelfile_word(m, name);
    json_t *text = modelfile_text(m, e), *all = json_object_get(m->out, "parameters");
    if (!text)
        return -1;
    if (!all)
        json_object_set_new(m->out, "parameters", all = json_object());
    if (strcmp(name, "stop") != 0)
        return json_object_set_new(all, name, modelfile_value(text));
    json_t *stops = json_object_get(all, "stop");
    if (!stops)
        json_object_set_new(all, "stop", stops = json_array());
    return json_array_append_new(stops, text);
}

static int modelfile_message(struct modelfile *m, struct err *e)
{
    char role[MODELFILE_WORD];
    modelfile_word(m, role);
    if (strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant"))
        return err_set(e, ERR_DATA, "line %u of the Modelfile: MESSAGE is of system, user or assistant",
                       m->line);
    json_t *text = modelfile_text(m, e), *all = json_object_get(m->out, "messages");
    if (!text)
        return -1;
    if (!all)
        json_object_set_new(m->out, "messages", all = json_array());
    return json_array_append_new(all, json_pack("{s:s,s:o}", "role", role, "content", text));
}

/* A path of the Modelfile's folder, or the text as it is. Takes it over. */
static json_t *modelfile_path(const struct modelfile *m, json_t *text, struct err *e)
{
    const char *s = json_string_value(text), *home = getenv("HOME");
    char path[PATH_MAX];
    bool near = !strncmp(s, "./", 2) || !strncmp(s, "../", 3), own = !strncmp(s, "~/", 2) && home;
    if (!near && !own)
        return text;
    int failed = own ? path_make(path, e, "%s%s", home, s + 1) : path_make(path, e, "%s/%s", m->folder, s);
    json_decref(text);
    return failed ? NULL : json_string(path);
}

/* FROM and ADAPTER. */
static int modelfile_model(struct modelfile *m, bool adapter, struct err *e)
{
    json_t *text = modelfile_text(m, e), *path = text ? modelfile_path(m, text, e) : NULL,
           *all = json_object_get(m->out, "adapters");
    if (!path)
        return -1;
    if (!adapter)
        return json_object_set_new(m->out, "from", path);
    if (!all)
        json_object_set_new(m->out, "adapters", all = json_array());
    return json_array_append_new(all, path);
}

int preset_template(json_t *preset, struct err *e)
{
    const char *text = json_string_value(json_object_get(preset, "template"));
    struct err own = {0};
    if (!text || !go_template_is(text))
        return 0;
    json_t *jinja = go_template(text, &own);
    if (!jinja)
        return err_set(
            e, own.code,
            "the template is in Go's language, and cannot be translated: %s; one in Jinja is taken, "
            "too, or none, for the model's own",
            own.text);
    return json_object_set_new(preset, "template", jinja);
}

static int modelfile_texts(struct modelfile *m, const char *field, struct err *e)
{
    json_t *text = modelfile_text(m, e);
    if (!text)
        return -1;
    if (json_object_set_new(m->out, field, text))
        return -1;
    return !strcmp(field, "template") ? preset_template(m->out, e) : 0;
}

static int modelfile_line(struct modelfile *m, struct err *e)
{
    char word[MODELFILE_WORD];
    modelfile_word(m, word);
    if (!strcasecmp(word, "FROM") || !strcasecmp(word, "ADAPTER"))
        return modelfile_model(m, !strcasecmp(word, "ADAPTER"), e);
    if (!strcasecmp(word, "PARAMETER"))
        return modelfile_parameter(m, e);
    if (!strcasecmp(word, "MESSAGE"))
        return modelfile_message(m, e);
    if (!strcasecmp(word, "SYSTEM"))
        return modelfile_texts(m, "system", e);
    if (!strcasecmp(word, "TEMPLATE"))
        return modelfile_texts(m, "template", e);
    if (!strcasecmp(word, "LICENSE"))
        return modelfile_texts(m, "license", e);
    if (!strcasecmp(word, "REQUIRES") || !strcasecmp(word, "RENDERER") || !strcasecmp(word, "PARSER")) {
        json_t *ignored = modelfile_text(m, e);
        json_decref(ignored);
        return ignored ? 0 : -1;
    }
    return err_set(e, ERR_DATA,
                   "line %u of the Modelfile: '%s' is none of FROM, PARAMETER, SYSTEM, TEMPLATE, ADAPTER, "
                   "MESSAGE, LICENSE",
                   m->line, log_safe(word));
}

json_t *modelfile_read(const char *text, size_t n, const char *folder, struct err *e)
{
    struct modelfile m = {.at = text, .end = text + n, .folder = folder, .line = 1, .out = json_object()};
    if (n > MODELFILE_MOST)
        err_set(e, ERR_DATA, "the Modelfile has more than %d bytes", MODELFILE_MOST);
    while (m.out && !e->code && m.at < m.end) {
        modelfile_blanks(&m);
        if (m.at < m.end && *m.at == '\n') {
            m.line++;
            m.at++;
        } else if (m.at < m.end && *m.at == '\r')
            m.at++;
        else if (m.at < m.end && *m.at == '#') {
            const char *next = memchr(m.at, '\n', (size_t)(m.end - m.at));
            m.at = next ? next : m.end;
        } else if (m.at < m.end && modelfile_line(&m, e) && !e->code)
            err_memory(e, "the Modelfile", n);
    }
    if (!e->code)
        preset_check(m.out, "the Modelfile", e);
    if (!e->code)
        return m.out;
    json_decref(m.out);
    return NULL;
}
