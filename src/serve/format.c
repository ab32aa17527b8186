#include "serve/format.h"
#include "serve/request.h"
#include "serve/route.h"

static const struct api_format *const formats[API_COUNT] = {
    [API_OPENAI] = &openai_api, [API_ANTHROPIC] = &anthropic_api, [API_RESPONSES] = &responses_api,
    [API_INFILL] = &infill_api, [API_OLLAMA] = &ollama_api,       [API_OLLAMA_CHAT] = &ollama_api,
};

const struct api_format *format_of(enum api api)
{
    return formats[api];
}

const struct api_format *format_for(const struct route *r)
{
    return format_of(r ? r->api : API_OPENAI);
}

struct usage request_usage(const struct request *a)
{
    struct usage u = {0};
    for (uint32_t i = 0; i < a->prompt_count; i++)
        u.prompt += a->prompts[i].len;
    for (uint32_t i = 0; i < a->count; i++) {
        u.made += a->choices[i].made;
        u.thought += a->choices[i].end.reasoned;
        /* the answers to one prompt share it: it counts once */
        if (!i || a->choices[i].prompt_at != a->choices[i - 1].prompt_at)
            u.cached += a->choices[i].end.cached;
    }
    return u;
}
