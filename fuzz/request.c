/* Any bytes as the body of a request, on every path that makes text, up to the engine. It gets a response, or
 * an error with a status and a message, in the API's own shape. The first byte chooses the path, the second
 * the family. */
#include "ready.h"

#include "serve/anthropic.h"
#include "serve/format.h"
#include "serve/openai.h"
#include "serve/request.h"
#include "serve/responses.h"
#include "serve/route.h"
#include "serve/text.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct route routes[] = {
        {.prepare = openai_chat},     {.prepare = openai_completion},
        {.prepare = text_template},   {.prepare = anthropic_messages, .api = API_ANTHROPIC},
        {.prepare = text_tokenize},   {.prepare = anthropic_count, .api = API_ANTHROPIC},
        {.prepare = text_detokenize}, {.prepare = responses_create, .api = API_RESPONSES}};
    if (size < 2 || size > 1 << 16)
        return 0;
    const struct route *r = &routes[data[0] % 8];
    struct request *a = ready_request(r, data[0] & 8);
    a->model->session->form = &output_forms[data[1] % output_form_count];
    buf_add(&a->body, data + 2, size - 2);
    json_t *body = openai_body(a);
    if (body) /* as a worker does, once there is a model */
        r->prepare(a);
    json_decref(body);
    ready_check(a, r);
    ready_drop(a);
    return 0;
}
