/* quern help [COMMAND] and the texts of --help, all generated from the tables of the verbs. */
#include "tool/tool.h"

#include "base/buf.h"
#include "tool/sampling.h"

#include <stdio.h>
#include <string.h>

void help_short(struct buf *out)
{
    buf_str(
        out,
        "quern runs language models: GGUF files and Hugging Face folders, on the CPU or an NVIDIA GPU.\n\n"
        "usage: quern COMMAND [options]\n\n");
    for (int i = 0; tool_verbs[i]; i++)
        buf_printf(out, "  %-11s %s\n", tool_verbs[i]->name, tool_verbs[i]->brief);
    buf_str(
        out,
        "\n'quern help COMMAND' describes one; 'quern --version' prints the version.\n"
        "MODEL is a .gguf (the first part of a split one), a folder with safetensors, USER/REPO[:QUANT] on "
        "the Hub,\nthe address of a .gguf, or a name (smollm2).\n");
}

/* Headings, by the option that they stand before. */
static const struct {
    const char *option, *heading;
} help_headings[] = {
    {"continue", "Chat"},
    {"json-schema", "Format of the answer"},
    {"reasoning-budget", "Reasoning"},
    {"speculate", "Speculation"},
    {"temp", "Sampling"},
    {"cache-dir", "Cache of prompts"},
    {"lora", "Adapters"},
    {"threads", "Model and device"},
    {"host", "Network"},
    {"name", "Models and requests"},
    {"api-key-file", "Keys and access"},
    {"state-dir", "State and rights"},
    {"limit", "Limits and formats"},
    {"help", "Every command"},
    {"profile", "Output"},
};

static void help_heading(struct buf *out, const char *option)
{
    for (size_t i = 0; i < sizeof help_headings / sizeof *help_headings; i++)
        if (!strcmp(option, help_headings[i].option))
            buf_printf(out, "\n%s:\n", help_headings[i].heading);
}

/* Of a sampler's option, where the model's files say nothing. */
static void help_default(struct buf *out, const struct arg_option *o)
{
    const struct sampler_field *f = o->kind == ARG_NUM || o->kind == ARG_INT ? sampling_field(o->name) : NULL;
    if (f)
        buf_printf(out, " (default: %g, or the model's)", f->initial);
}

static void help_options(struct buf *out, const struct arg_option *o)
{
    for (; o && o->name; o++) {
        help_heading(out, o->name);
        char left[64], letter[] = {'-', o->letter, ',', ' ', 0};
        snprintf(left, sizeof left, "%s--%s%s%s", o->letter ? letter : "    ", o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        buf_printf(out, "  %-28s %s", left, o->help);
        help_default(out, o);
        buf_char(out, '\n');
    }
}

void help_verb(struct buf *out, const struct tool_verb *v)
{
    buf_printf(out, "usage: quern %s%s%s [options]\n\n%s\n\n", v->name, *v->words ? " " : "", v->words,
               v->brief);
    help_options(out, v->options);
    help_options(out, args_common);
    if (v->more)
        buf_printf(out, "\n%s", v->more);
}

static const struct arg_option help_options_own[] = {
    {.name = "man", .help = "print the manual page instead, for man -l"},
    {0},
};

static int help_run(const struct args *a, struct err *e)
{
    struct buf out = {0};
    const struct tool_verb *v = a->count ? tool_find(a->words[0], e) : NULL;
    if (a->count && !v)
        return -1;
    bool man = args_flag(a, "man");
    if (v)
        (man ? man_verb : help_verb)(&out, v);
    else
        (man ? man_program : help_short)(&out);
    return tool_print(&out, e);
}

const struct tool_verb tool_help = {
    .name = "help",
    .words = "[COMMAND]",
    .brief = "list the commands, or describe one",
    .options = help_options_own,
    .most = 1,
    .run = help_run,
};
