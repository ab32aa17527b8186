#include "serve/refuse.h"
#include "base/log.h"
#include "serve/request.h"

#include <jansson.h>
#include <stdio.h>

static bool asks_for_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

int refuse_fields(struct request *a, const json_t *body, const struct refusal *table, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!asks_for_nothing(json_object_get(body, table[i].name)))
            return request_fail(a, 400, table[i].name, "%s is not supported: %s", table[i].name,
                                table[i].why);
    return 0;
}

int refuse_tool(struct request *a, size_t at, const char *type)
{
    char param[FAILURE_PARAM];
    snprintf(param, sizeof param, "tools[%zu]", at);
    return request_fail(
        a, 400, param,
        "%s is of type '%s', which is not supported: this server runs no tools; give functions, "
        "which the client runs",
        param, log_safe(type));
}
