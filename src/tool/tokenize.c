#define _GNU_SOURCE
/* quern tokenize MODEL: text to ids, and back. */
#include "tool/tool.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/num.h"
#include "format/store.h"
#include "lang/token/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const struct arg_option options[] = {
    {.name = "json", .kind = ARG_FLAG, .help = "print {\"ids\": [...], \"pieces\": [...]}"},
    {.name = "no-bos", .kind = ARG_FLAG, .help = "add no special tokens (BOS, EOS, CLS, SEP)"},
    {.name = "special", .kind = ARG_FLAG, .help = "parse special tokens in the text"},
    {.name = "lines", .kind = ARG_FLAG, .help = "each line is a text; print one JSON value a line"},
    {.name = "decode", .kind = ARG_FLAG, .help = "the input is ids (or their JSON): print their text"},
    {0}};

struct tokenize_job {
    const struct tokenizer *t;
    unsigned flags;
    bool json;
};

/* The JSON value of a text's ids. With plain lines it is the list itself. */
static void print_json(const struct tokenize_job *job, const struct ids *ids, struct buf *out)
{
    struct json j = {.out = out};
    json_begin(&j, '{');
    json_key(&j, "ids");
    json_begin(&j, '[');
    for (size_t i = 0; i < ids->len; i++)
        json_int(&j, ids->data[i]);
    json_end(&j, ']');
    json_key(&j, "pieces");
    json_begin(&j, '[');
    for (size_t i = 0; i < ids->len; i++) {
        size_t n;
        const char *piece = tokenizer_piece(job->t, ids->data[i], &n);
        json_strn(&j, piece, n);
    }
    json_end(&j, ']');
    json_end(&j, '}');
    buf_char(out, '\n');
}

/* As text: one token a line, its id and its text. */
static void print_plain(const struct tokenize_job *job, const struct ids *ids, struct buf *out)
{
    for (size_t i = 0; i < ids->len; i++) {
        size_t n;
        const char *piece = tokenizer_piece(job->t, ids->data[i], &n);
        buf_printf(out, "%7d  ", ids->data[i]);
        json_escape(out, piece, n);
        buf_char(out, '\n');
    }
}

static int encode(const struct tokenize_job *job, const char *s, size_t n, bool json, struct buf *out,
                  struct err *e)
{
    struct ids ids = {0};
    int rc = tokenizer_encode(job->t, s, n, job->flags, &ids, e);
    if (!rc && json)
        print_json(job, &ids, out);
    else if (!rc)
        print_plain(job, &ids, out);
    ids_free(&ids);
    return rc;
}

static int encode_lines(const struct tokenize_job *job, const struct buf *in, struct buf *out, struct err *e)
{
    for (size_t at = 0; at < in->len;) {
        const char *end = memchr(in->data + at, '\n', in->len - at);
        size_t n = end ? (size_t)(end - in->data) - at : in->len - at;
        if (encode(job, in->data + at, n, true, out, e))
            return -1;
        at += n + (end != NULL);
        if (out->len > 1 << 20) {
            tool_write(out->data, out->len);
            buf_clear(out);
        }
    }
    return 0;
}

/* Ids are separated by anything that JSON or people put between numbers. Of a JSON object only the
 * list behind "ids" counts: pieces may hold digits. */
static int decode(const struct tokenize_job *job, const char *s, size_t n, struct buf *out, struct err *e)
{
    struct tok_decoder d = {.t = job->t};
    const char *ids = memmem(s, n, "\"ids\"", 5);
    if (ids) {
        const char *open = memchr(ids, '[', n - (size_t)(ids - s));
        const char *close = open ? memchr(open, ']', n - (size_t)(open - s)) : NULL;
        if (!close)
            return err_set(e, ERR_DATA, "the JSON has no list behind \"ids\"");
        s = open;
        n = (size_t)(close - open);
    }
    for (size_t at = 0; at < n;) {
        if (strchr(" \t\r\n,[]", s[at])) {
            at++;
            continue;
        }
        size_t end = at;
        uint64_t id;
        while (end < n && !strchr(" \t\r\n,[]", s[end]))
            end++;
        if (!num_u64(s + at, end - at, INT32_MAX, &id))
            return err_set(e, ERR_DATA, "'%s' is not the id of a token", log_safe_n(s + at, end - at));
        if (tok_decoder_feed(&d, (int32_t)id, out, e))
            return -1;
        at = end;
    }
    tok_decoder_flush(&d, out);
    return 0;
}

static int decode_lines(const struct tokenize_job *job, const struct buf *in, struct buf *out, struct err *e)
{
    struct json j = {.out = out};
    for (size_t at = 0; at < in->len;) {
        const char *end = memchr(in->data + at, '\n', in->len - at);
        size_t n = end ? (size_t)(end - in->data) - at : in->len - at;
        struct buf text = {0};
        int rc = decode(job, in->data + at, n, &text, e);
        if (!rc) {
            j = (struct json){.out = out};
            json_strn(&j, text.data ? text.data : "", text.len);
            buf_char(out, '\n');
        }
        buf_free(&text);
        if (rc)
            return -1;
        at += n + (end != NULL);
    }
    return 0;
}

static bool is_model(const char *path)
{
    size_t n = strlen(path);
    char magic[4] = "";
    FILE *f = n > 12 && !strcmp(path + n - 12, ".safetensors") ? NULL : fopen(path, "rb");
    if (!f)
        return true;
    bool is = fread(magic, 1, 4, f) == 4 && !memcmp(magic, "GGUF", 4);
    fclose(f);
    return is;
}

/* MODEL may also be a file or a folder that is only a tokenizer. */
static int open_tokenizer(struct tokenizer **t, struct store **s, const char *model, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    struct err first = {0}, second = {0};
    if (tool_model_path(model, path, sizeof path, e))
        return -1;
    bool known = !stat(path, &st);
    if (known && S_ISREG(st.st_mode) && !is_model(path))
        return tokenizer_open_file(t, path, e);
    if (!store_open(s, path, &first))
        return tokenizer_open(t, *s, e);
    if (known && S_ISDIR(st.st_mode) && !tokenizer_open_file(t, path, &second))
        return 0;
    char file[PATH_MAX];
    bool only = second.code && snprintf(file, sizeof file, "%s/tokenizer.json", path) < (int)sizeof file &&
                !stat(file, &st);
    *e = only ? second : first;
    return -1;
}

static int run(const struct args *a, struct err *e)
{
    struct tokenizer *t = NULL;
    struct store *s = NULL;
    struct buf in = {.max = (size_t)1 << 30}, out = {.max = (size_t)8 << 30};
    bool lines = args_flag(a, "lines"), json = args_flag(a, "json");
    int rc = open_tokenizer(&t, &s, a->words[0], e);
    for (int i = 1; i < a->count; i++) /* words in place of standard input */
        buf_printf(&in, i > 1 ? " %s" : "%s", a->words[i]);
    if (!rc && a->count == 1)
        rc = file_read("-", &in, e);
    struct tokenize_job job = {.t = t, .json = json};
    job.flags = (args_flag(a, "special") ? TOK_SPECIAL : 0) | (args_flag(a, "no-bos") ? 0 : TOK_ADD);
    const char *text = in.data ? in.data : "";
    if (!rc && args_flag(a, "decode")) {
        rc = lines ? decode_lines(&job, &in, &out, e) : decode(&job, text, in.len, &out, e);
        if (!rc && json && !lines) {
            struct buf quoted = {0};
            struct json j = {.out = &quoted};
            json_strn(&j, out.data ? out.data : "", out.len);
            buf_char(&quoted, '\n');
            buf_free(&out);
            out = quoted;
        }
    } else if (!rc) {
        rc = lines ? encode_lines(&job, &in, &out, e) : encode(&job, text, in.len, json, &out, e);
    }
    if (!rc)
        rc = tool_print(&out, e);
    buf_free(&in);
    buf_free(&out);
    tokenizer_close(t);
    store_close(s);
    return rc;
}

const struct tool_verb tool_tokenize = {
    .name = "tokenize",
    .words = "MODEL [TEXT]...",
    .brief = "text, of standard input or the command line, to the model's tokens, or back",
    .more = "  quern tokenize smollm2 --json <<< 'Hello'\n"
            "  quern tokenize smollm2 --decode 19556\n",
    .options = options,
    .least = 1,
    .most = INT_MAX,
    .run = run,
};
