#define _GNU_SOURCE
#include "tool/sampling.h"

#include "base/log.h"
#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

const struct sampler_field *sampling_field(const char *name)
{
    char spelled[32];
    size_t n = strlen(name);
    if (n >= sizeof spelled)
        return NULL;
    for (size_t i = 0; i <= n; i++)
        spelled[i] = name[i] == '-' ? '_' : name[i];
    for (size_t i = 0; i < sampler_field_count; i++)
        if (!strcmp(sampler_fields[i].name, strcmp(spelled, "temp") ? spelled : "temperature"))
            return &sampler_fields[i];
    return NULL;
}

double *sampling_value(struct sampler_params *p, const struct sampler_field *f)
{
    return (double *)((char *)p + f->offset);
}

static int sampling_bias(const char *text, struct logit_bias *out, struct err *e)
{
    const char *eq = strchr(text, '=');
    int64_t id;
    double bias;
    bool banned = eq && !strcmp(eq + 1, "-inf");
    if (!eq || !num_i64(text, (size_t)(eq - text), 0, INT32_MAX, &id) ||
        (!banned && !num_f64(eq + 1, strlen(eq + 1), -1e6, 1e6, &bias)))
        return err_set(e, ERR_USAGE, "--logit-bias wants ID=NUMBER, such as 42=-5 or 42=-inf, not '%s'",
                       log_safe(text));
    *out = (struct logit_bias){.id = (int32_t)id, .bias = banned ? -INFINITY : (float)bias};
    return 0;
}

int sampling_read(const struct args *a, const struct sampler_params *defaults, struct sampling *out,
                  struct err *e)
{
    out->params = *defaults;
    for (int i = 0; i < a->seen_count; i++) {
        const struct arg_seen *s = &a->seen[i];
        const struct sampler_field *f = sampling_field(s->option->name);
        if (f)
            *sampling_value(&out->params, f) = s->option->kind == ARG_INT ? (double)s->integer : s->number;
    }
    const char *text;
    int at = 0;
    while ((text = args_next(a, "logit-bias", &at))) {
        if (out->params.biases == SAMPLING_BIASES)
            return err_set(e, ERR_USAGE, "more than %d of --logit-bias", SAMPLING_BIASES);
        if (sampling_bias(text, &out->bias[out->params.biases++], e))
            return -1;
    }
    out->params.bias = out->bias;
    text = args_text(a, "seed");
    if (text && !num_u64(text, strlen(text), UINT64_MAX, &out->params.seed))
        return err_set(e, ERR_USAGE, "--seed takes a whole number from 0 to %llu, not %s",
                       (unsigned long long)UINT64_MAX, log_safe(text));
    if (!text && getrandom(&out->params.seed, sizeof out->params.seed, 0) < 0)
        return err_set(e, ERR_RESOURCE, "the system gives no random numbers; give a --seed");
    return 0;
}
