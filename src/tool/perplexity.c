/* quern perplexity: how well a model predicts a text, alone or against another model. */
#include "base/log.h"
#include "tool/check.h"
#include "tool/load.h"
#include "tool/output_file.h"
#include "tool/plot.h"
#include "tool/tool.h"

static const struct arg_option perplexity_options[] = {
    {"file", 'f', ARG_TEXT, "FILE", "the text ('-': standard input)", 0, 0},
    {"against", 0, ARG_TEXT, "MODEL",
     "KL divergence from this model, and how often both have the same best token", 0, 0},
    {"plot", 0, ARG_TEXT, "OUT.svg", "with --against: a plot of the divergence", 0, 0},
    {"chunks", 0, ARG_INT, "N", "only the first N chunks", 1, 1 << 24},
    {"json", 0, ARG_FLAG, NULL, "print one JSON object", 0, 0},
    OUTPUT_OPTIONS,
    LOAD_LORA,
    LOAD_OPTIONS,
    {0},
};

static int perplexity_print(const struct check *c, bool as_json, struct err *e)
{
    struct buf out = {0};
    struct json j = {.out = &out};
    if (as_json) {
        check_json(&j, c);
        buf_char(&out, '\n');
    } else {
        check_text(&out, c);
    }
    return tool_print(&out, e);
}

static int perplexity_verb(const struct args *a, struct err *e)
{
    struct check c = {0};
    const char *text = args_text(a, "file"), *against = args_text(a, "against"), *plot = args_text(a, "plot");
    if (!text)
        return err_set(e, ERR_USAGE, "quern perplexity wants a text: -f FILE");
    if (args_int(a, "ctx", 4) < 4)
        return err_set(e, ERR_USAGE, "--ctx has to be at least 4 here");
    if (plot && !against)
        return err_set(e, ERR_USAGE, "--plot shows the divergence from a second model: --against MODEL");
    struct output_file output = {.force = args_flag(a, "force")};
    int failed = (plot && (output_file_reads_model(&output, a->words[0], e) ||
                           output_file_reads_model(&output, against, e) ||
                           output_file_reads(&output, text, e) || output_file_allow(&output, plot, e))) ||
                 check_run(&c, a->words[0], against, text, a, e) ||
                 (plot && plot_divergence(plot, &c.p, a->words[0], against, e)) ||
                 perplexity_print(&c, args_flag(a, "json"), e);
    check_free(&c);
    output_file_free(&output);
    return failed ? -1 : 0;
}

const struct tool_verb tool_perplexity = {
    .name = "perplexity",
    .words = "MODEL",
    .brief = "how well a model predicts a text (lower is better)",
    .more = "The scheme is llama.cpp's: chunks of --ctx tokens (512), the second half of each scored,\n"
            "BOS at the start of each chunk where the model has one.\n\n"
            "  quern perplexity model-q4_k_m.gguf --against model-f16.gguf -f text.txt --plot kl.svg\n",
    .options = perplexity_options,
    .least = 1,
    .most = 1,
    .run = perplexity_verb,
};
