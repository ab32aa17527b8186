/* A Modelfile from anywhere: it is read, or there is an error; and what was read passes the check. */
#include "base/log.h"
#include "hub/preset.h"

#include <assert.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    log_set_level(LOG_ERROR);
    json_t *preset = modelfile_read((const char *)data, n, "/nowhere", &e);
    assert(!preset == (e.code != 0));
    assert(!preset || !preset_check(preset, "it", &e));
    json_decref(preset);
    return 0;
}
