/* A conversation whose last message is continued (run/prefill.h): the answer holds only the new text. */
#include "run/prefill.h"
#include "serve/openai.h"
#include "serve/openai_request.h"
#include "serve/request.h"

#include <jansson.h>

int openai_turn(struct request *a, const json_t *body, enum openai_turn *out)
{
    const json_t *messages = json_object_get(body, "messages"),
                 *last = json_array_get(messages, json_array_size(messages) - 1),
                 *goes_on = json_object_get(body, "continue_final_message"),
                 *begins = json_object_get(body, "add_generation_prompt");
    bool open = prefill_is_open(last);
    if (json_is_true(goes_on) && json_is_true(begins))
        return request_fail(
            a, 400, "continue_final_message",
            "continue_final_message and add_generation_prompt cannot both be true: the last message "
            "goes on, or a new one begins");
    if (json_is_true(goes_on) && json_array_size(json_object_get(last, "tool_calls")))
        return request_fail(a, 400, "continue_final_message",
                            "the last message has tool_calls, which end it: it cannot be continued");
    *out = goes_on                         ? json_is_true(goes_on) ? TURN_GOES_ON : TURN_BEGINS
           : open && !json_is_true(begins) ? TURN_GOES_ON
                                           : TURN_BEGINS;
    if (*out == TURN_BEGINS && json_is_false(begins))
        *out = TURN_CLOSED;
    return 0;
}
