/* Activations by the names of config.json. */
#include "model/act.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    enum act_kind kind;
} acts[] = {
    {"silu", ACT_SILU},
    {"swish", ACT_SILU},
    {"swiglu", ACT_SILU},
    {"gelu", ACT_GELU},
    {"gelu_python", ACT_GELU},
    {"gelu_new", ACT_GELU_TANH},
    {"gelu_pytorch_tanh", ACT_GELU_TANH},
    {"gelu_fast", ACT_GELU_TANH},
    {"gelu_accurate", ACT_GELU_TANH},
    {"gelu_python_tanh", ACT_GELU_TANH},
    {"quick_gelu", ACT_GELU_QUICK},
    {"relu", ACT_RELU},
    {"relu2", ACT_RELU2},
    {"sqrelu", ACT_RELU2},
    {"xielu", ACT_NONE}, /* its numbers are tensors */
};

bool act_named(const char *name, enum act_kind *out)
{
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(name, acts[i].name)) {
            *out = acts[i].kind;
            return true;
        }
    return false;
}

const char *act_name(enum act_kind kind)
{
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (acts[i].kind == kind)
            return acts[i].name;
    return NULL;
}
