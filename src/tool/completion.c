/* quern completion SHELL: scripts for bash, zsh and fish that complete a command line, from the tables of the
 * verbs. */
#include "base/buf.h"
#include "base/log.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>

/* Both tables of a verb's options, one after the other. */
struct completion_options {
    const struct arg_option *at;
    bool common;
};

static const struct arg_option *completion_next(const struct tool_verb *v, struct completion_options *c)
{
    if (!c->at && !c->common)
        c->at = v->options;
    if ((!c->at || !c->at->name) && !c->common) {
        c->common = true;
        c->at = args_common;
    }
    return c->at->name ? c->at++ : NULL;
}

static bool completion_takes_file(const struct arg_option *o)
{
    return o->value && (!strcmp(o->value, "FILE") || !strcmp(o->value, "F") || !strcmp(o->value, "DIR"));
}

/* The kind of words that are not options. */
static bool completion_takes_model(const struct tool_verb *v)
{
    return strstr(v->words, "MODEL") || strstr(v->words, "IN") == v->words;
}

/* Text inside single quotes of a shell. */
static void completion_quoted(struct buf *out, const char *s, const char *also)
{
    for (; *s; s++) {
        if (*s == '\'')
            buf_str(out, "'\\''");
        else if (also && strchr(also, *s))
            buf_printf(out, "\\%c", *s);
        else
            buf_char(out, *s);
    }
}

/* ---- bash ---- */

static void completion_bash_verb(struct buf *out, const struct tool_verb *v)
{
    struct completion_options c = {0};
    const char *between = "";
    buf_printf(out, "    %s)\n        case $prev in\n", v->name);
    for (const struct arg_option *o; (o = completion_next(v, &c));) {
        if (o->kind == ARG_FLAG)
            continue;
        buf_printf(out, "        --%s", o->name);
        if (o->letter)
            buf_printf(out, "|-%c", o->letter);
        buf_printf(out, ") %sreturn ;;\n", completion_takes_file(o) ? "_quern_files; " : "");
    }
    buf_str(out, "        esac\n        options='");
    c = (struct completion_options){0};
    for (const struct arg_option *o; (o = completion_next(v, &c)); between = " ")
        buf_printf(out, "%s--%s", between, o->name);
    buf_printf(out, "'\n        words=%s ;;\n",
               completion_takes_model(v)        ? "models"
               : !strcmp(v->name, "help")       ? "verbs"
               : !strcmp(v->name, "completion") ? "shells"
                                                : "none");
}

static void completion_bash(struct buf *out)
{
    buf_str(out,
            "# bash completion for quern: made by 'quern completion bash'\n"
            "_quern_files() { mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); compopt -o filenames; }\n"
            "_quern() {\n"
            "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb='' options='' "
            "words=none i verbs='");
    for (int i = 0; tool_verbs[i]; i++)
        buf_printf(out, "%s%s", i ? " " : "", tool_verbs[i]->name);
    buf_str(out, "'\n    COMPREPLY=()\n"
                 "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                 "        [[ ${COMP_WORDS[i]} == -* ]] || { verb=${COMP_WORDS[i]}; break; }\n"
                 "    done\n"
                 "    case $verb in\n"
                 "    '') words=verbs options='--help --version' ;;\n");
    for (int i = 0; tool_verbs[i]; i++)
        completion_bash_verb(out, tool_verbs[i]);
    buf_str(
        out,
        "    esac\n"
        "    if [[ $cur == -* ]]; then\n"
        "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\")\n"
        "        return\n"
        "    fi\n"
        "    case $words in\n"
        "    verbs) mapfile -t COMPREPLY < <(compgen -W \"$verbs\" -- \"$cur\") ;;\n"
        "    shells) mapfile -t COMPREPLY < <(compgen -W 'bash zsh fish' -- \"$cur\") ;;\n"
        "    models)\n"
        "        _quern_files\n"
        "        mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(\n"
        "            compgen -W \"$(quern ls --quiet 2>/dev/null | cut -d' ' -f1)\" -- \"$cur\")\n"
        "        type __ltrim_colon_completions >/dev/null 2>&1 && __ltrim_colon_completions \"$cur\" ;;\n"
        "    esac\n"
        "}\n"
        "complete -F _quern quern\n");
}

/* ---- zsh ---- */

static void completion_zsh_option(struct buf *out, const struct arg_option *o)
{
    char names[2][72];
    int n = 0;
    if (o->letter)
        snprintf(names[n++], sizeof names[0], "-%c%s", o->letter, o->kind == ARG_FLAG ? "" : "+");
    snprintf(names[n++], sizeof names[0], "--%s%s", o->name, o->kind == ARG_FLAG ? "" : "=");
    for (int i = 0; i < n; i++) {
        buf_printf(out, "            '*%s[", names[i]);
        completion_quoted(out, o->help, "[]:\\");
        buf_char(out, ']');
        if (o->kind != ARG_FLAG) {
            buf_char(out, ':');
            completion_quoted(out, o->value ? o->value : "value", ":\\");
            buf_str(out, completion_takes_file(o) ? ":_files" : ": ");
        }
        buf_str(out, "' \\\n");
    }
}

static void completion_zsh_verb(struct buf *out, const struct tool_verb *v)
{
    struct completion_options c = {0};
    buf_printf(out, "    (%s)\n        _arguments -s -S \\\n", v->name);
    for (const struct arg_option *o; (o = completion_next(v, &c));)
        completion_zsh_option(out, o);
    buf_printf(out, "            %s ;;\n",
               completion_takes_model(v)        ? "'*:model:_quern_models'"
               : !strcmp(v->name, "help")       ? "':command:_quern_verbs'"
               : !strcmp(v->name, "completion") ? "':shell:(bash zsh fish)'"
                                                : "'*: :'");
}

static void completion_zsh(struct buf *out)
{
    buf_str(out, "#compdef quern\n# zsh completion for quern: made by 'quern completion zsh'\n"
                 "_quern_verbs() {\n    local -a verbs=(\n");
    for (int i = 0; tool_verbs[i]; i++) {
        buf_printf(out, "        '%s:", tool_verbs[i]->name);
        completion_quoted(out, tool_verbs[i]->brief, "\\");
        buf_str(out, "'\n");
    }
    buf_str(out, "    )\n    _describe command verbs\n}\n"
                 "_quern_models() {\n"
                 "    local -a models=(${(f)\"$(quern ls --quiet 2>/dev/null | cut -d' ' -f1)\"})\n"
                 "    _alternative 'files:file:_files' \"models:model:compadd -a models\"\n}\n"
                 "_quern() {\n"
                 "    if (( CURRENT == 2 )); then\n        _quern_verbs\n        return\n    fi\n"
                 "    local verb=${words[2]}\n"
                 "    shift words\n    (( CURRENT-- ))\n"
                 "    case $verb in\n");
    for (int i = 0; tool_verbs[i]; i++)
        completion_zsh_verb(out, tool_verbs[i]);
    buf_str(out, "    esac\n}\n"
                 "if [[ $funcstack[1] == _quern ]]; then _quern \"$@\"; else compdef _quern quern; fi\n");
}

/* ---- fish ---- */

static void completion_fish_verb(struct buf *out, const struct tool_verb *v)
{
    struct completion_options c = {0};
    buf_printf(out, "complete -c quern -n __fish_use_subcommand -a %s -d '", v->name);
    completion_quoted(out, v->brief, "\\");
    buf_str(out, "'\n");
    for (const struct arg_option *o; (o = completion_next(v, &c));) {
        buf_printf(out, "complete -c quern -n '__fish_seen_subcommand_from %s' -l %s", v->name, o->name);
        if (o->letter)
            buf_printf(out, " -s %c", o->letter);
        buf_str(out, o->kind == ARG_FLAG ? "" : completion_takes_file(o) ? " -rF" : " -x");
        buf_str(out, " -d '");
        completion_quoted(out, o->help, "\\");
        buf_str(out, "'\n");
    }
    const char *words = completion_takes_model(v)
                            ? " -F -a '(quern ls --quiet 2>/dev/null | cut -d\" \" -f1)'"
                        : !strcmp(v->name, "completion") ? " -a 'bash zsh fish'"
                                                         : NULL;
    if (words)
        buf_printf(out, "complete -c quern -n '__fish_seen_subcommand_from %s'%s\n", v->name, words);
}

static void completion_fish(struct buf *out)
{
    buf_str(out, "# fish completion for quern: made by 'quern completion fish'\ncomplete -c quern -f\n");
    for (int i = 0; tool_verbs[i]; i++)
        completion_fish_verb(out, tool_verbs[i]);
}

static int completion_run(const struct args *a, struct err *e)
{
    static const struct {
        const char *shell;
        void (*write)(struct buf *out);
    } shells[] = {{"bash", completion_bash}, {"zsh", completion_zsh}, {"fish", completion_fish}};
    struct buf out = {0};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (!strcmp(a->words[0], shells[i].shell)) {
            shells[i].write(&out);
            return tool_print(&out, e);
        }
    return err_set(e, ERR_USAGE, "there is completion for bash, zsh and fish, not for '%s'",
                   log_safe(a->words[0]));
}

const struct tool_verb tool_completion = {
    .name = "completion",
    .words = "SHELL",
    .brief = "print the completion script for a shell (bash, zsh, fish)",
    .more = "  quern completion bash > ~/.local/share/bash-completion/completions/quern\n"
            "  quern completion zsh > ~/.zfunc/_quern      a folder of $fpath\n"
            "  quern completion fish > ~/.config/fish/completions/quern.fish\n",
    .least = 1,
    .most = 1,
    .run = completion_run,
};
