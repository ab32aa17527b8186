/* Any bytes as the image of a request, in every API's form: as a file in base64, or as the text of a URL. It gets a reply,
 * or an error with a status and a message. The first byte chooses the form. */
#include "ready.h"

#include "base/base64.h"
#include "base/json.h"
#include "serve/anthropic.h"
#include "serve/openai.h"
#include "serve/responses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct form {
    struct route route;
    const char *before, *after; /* of the image's text, a JSON string */
} forms[] = {
    {{.prepare = openai_chat},
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":",
     "}},{\"type\":\"text\",\"text\":\"a\"}]}]}"},
    {{.prepare = responses_create, .api = API_RESPONSES},
     "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":",
     "}]}]}"},
    {{.prepare = anthropic_messages, .api = API_ANTHROPIC},
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{"
     "\"type\":\"base64\","
     "\"data\":",
     "}}]}]}"},
    {{.prepare = openai_completion},
     "{\"prompt\":[{\"prompt_string\":\"<__media__>\",\"multimodal_data\":[",
     "]}]}"},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct vision_params seen = {
        .family = VISION_LLAVA,
        .patch = 14,
        .merge = 1,
        .image_token = 257,
        .pixels = {.sizing = SIZING_PIXELS, .filter = FILTER_BICUBIC, .resize = true, .max_pixels = 28 * 28},
    };
    struct buf text = {0};
    struct json j = {.out = &text};
    if (size < 1 || size > 1 << 16)
        return 0;
    const struct form *f = &forms[data[0] & 3];
    struct request *a = ready_request(&f->route, false);
    a->model->session->vision = &seen;
    buf_str(&text, data[0] & 4 ? "data:image/png;base64," : "");
    if (data[0] & 8)
        buf_add(&text, data + 1, size - 1);
    else
        base64_add(&text, data + 1, size - 1);
    buf_str(&a->body, f->before);
    j.out = &a->body;
    json_strn(&j, text.data ? text.data : "", text.len);
    buf_str(&a->body, f->after);
    buf_free(&text);
    json_t *body = openai_body(a);
    if (body)
        f->route.prepare(a);
    json_decref(body);
    ready_check(a, &f->route);
    ready_drop(a);
    return 0;
}
