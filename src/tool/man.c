/* The manual pages, written from the tables that --help is written from: quern(1), and quern-VERB(1) for each verb. */
#include "base/buf.h"
#include "tool/tool.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Text of a line as roff takes it: no escapes of its own, hyphens that can be copied. */
static void man_text(struct buf *out, const char *s, size_t n)
{
    if (n && (*s == '.' || *s == '\''))
        buf_str(out, "\\&");
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\\')
            buf_str(out, "\\e");
        else if (s[i] == '-')
            buf_str(out, "\\-");
        else
            buf_char(out, s[i]);
}

static void man_line(struct buf *out, const char *s)
{
    man_text(out, s, strlen(s));
    buf_char(out, '\n');
}

static void man_title(struct buf *out, const char *name)
{
    buf_str(out, ".TH \"");
    for (; *name; name++)
        buf_char(out, (char)toupper((unsigned char)*name));
    buf_str(out, "\" \"1\" \"\" \"quern " QUERN_VERSION "\" \"User Commands\"\n");
}

static void man_options(struct buf *out, const struct arg_option *o)
{
    for (; o && o->name; o++) {
        buf_str(out, ".TP\n");
        if (o->letter)
            buf_printf(out, "\\fB\\-%c\\fR, ", o->letter);
        buf_str(out, "\\fB\\-\\-");
        man_text(out, o->name, strlen(o->name));
        buf_str(out, "\\fR");
        if (o->value) {
            buf_str(out, " \\fI");
            man_text(out, o->value, strlen(o->value));
            buf_str(out, "\\fR");
        }
        buf_char(out, '\n');
        man_line(out, o->help);
    }
}

/* A verb's closing text: indented lines are commands, others are sentences. */
static void man_more(struct buf *out, const char *s)
{
    bool example = false, gap = false;
    const char *start = s;
    buf_str(out, ".SH EXAMPLES\n");
    while (*s) {
        size_t n = strcspn(s, "\n");
        bool indented = n > 2 && !strncmp(s, "  ", 2);
        if (indented != example)
            buf_str(out, !indented ? ".fi\n" : s == start ? ".nf\n" : ".PP\n.nf\n");
        if (!indented && n && (gap || example))
            buf_str(out, ".PP\n");
        gap = !n;
        example = indented;
        if (n) {
            man_text(out, s + (indented ? 2 : 0), n - (indented ? 2 : 0));
            buf_char(out, '\n');
        }
        s += n + (s[n] == '\n');
    }
    if (example)
        buf_str(out, ".fi\n");
}

void man_verb(struct buf *out, const struct tool_verb *v)
{
    char name[64];
    snprintf(name, sizeof name, "quern-%s", v->name);
    man_title(out, name);
    buf_printf(out, ".SH NAME\nquern\\-%s \\- ", v->name);
    man_line(out, v->brief);
    buf_printf(out, ".SH SYNOPSIS\n.B quern %s\n", v->name);
    if (*v->words)
        man_line(out, v->words);
    buf_str(out, "[\\fIoptions\\fR]\n.SH OPTIONS\n");
    man_options(out, v->options);
    man_options(out, args_common);
    if (v->more)
        man_more(out, v->more);
    buf_str(
        out,
        ".SH SEE ALSO\n.BR quern (1),\nwhich has the exit codes, the names of models and the environment\n");
}

void man_program(struct buf *out)
{
    static const char *const codes[][2] = {
        {"0", "done"},
        {"64", "the command line is wrong"},
        {"65", "a model, or other input, is bad or missing"},
        {"69", "a server or the Hub cannot be reached, or refuses"},
        {"70", "a GPU failed, or a rank was lost"},
        {"74", "the model's file changed while it was in use, or output could not be written"},
        {"75", "out of memory, room on the disk or another resource"},
        {"130", "interrupted"},
    };
    static const char *const variables[][2] = {
        {"HF_HOME, HF_HUB_CACHE", "where the Hub's cache is (~/.cache/huggingface, and hub below it)"},
        {"HF_ENDPOINT", "another Hub than https://huggingface.co"},
        {"HF_TOKEN", "opens private and gated repositories; else the file HF_HOME/token is read"},
        {"HF_HUB_OFFLINE", "1: nothing is fetched, as with --offline"},
        {"HF_HUB_DOWNLOAD_TIMEOUT", "seconds without a byte until a connection is given up (20)"},
        {"SSL_CERT_FILE", "certificates to trust instead of the system's"},
        {"QUERN_API_KEY", "a key that quern serve asks of its clients"},
        {"NO_COLOR", "no colours and no bars"},
    };
    man_title(out, "quern");
    buf_str(
        out,
        ".SH NAME\nquern \\- run language models, on the CPU or an NVIDIA GPU\n"
        ".SH SYNOPSIS\n.B quern\n\\fIcommand\\fR [\\fIoptions\\fR]\n"
        ".SH DESCRIPTION\nquern opens GGUF files and Hugging Face folders of safetensors without conversion, "
        "answers prompts, chats,\nand serves models over HTTP.\n.SH COMMANDS\n");
    for (int i = 0; tool_verbs[i]; i++) {
        buf_printf(out, ".TP\n.BR quern\\-%s (1)\n", tool_verbs[i]->name);
        man_line(out, tool_verbs[i]->brief);
    }
    buf_str(
        out,
        ".SH MODELS\n.I MODEL\nis a path to a .gguf (the first part of a split one) or to a folder with "
        "safetensors;\n.IR USER / REPO [ @REVISION ][ :QUANT ],\na repository of the Hub (also with hf: in "
        "front);\nthe address of a .gguf; a name that\n.I ~/.config/quern/models.json\ngives "
        "({\"name\": \"MODEL\"}); or a built\\-in name (smollm2).\nA path that exists goes before a name. "
        "What is not here is fetched.\n.SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        buf_printf(out, ".TP\n.B %s\n", codes[i][0]);
        man_line(out, codes[i][1]);
    }
    buf_str(out, ".SH ENVIRONMENT\n");
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        buf_printf(out, ".TP\n.B %s\n", variables[i][0]);
        man_line(out, variables[i][1]);
    }
    buf_str(out, ".SH FILES\n.TP\n.I ~/.config/quern/models.json\nnames for models\n"
                 ".TP\n.I ~/.cache/huggingface/hub\nwhat was fetched from the Hub\n"
                 ".TP\n.I ~/.cache/quern\nwhat was fetched from elsewhere\n");
}
