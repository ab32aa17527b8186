/* Any bytes as an importance matrix, of either format. */
#include "quant/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile float sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct imatrix m;
    struct err e = {0};
    if (imatrix_parse(&m, data, size, &e))
        return 0;
    for (size_t i = 0; i < m.count; i++) {
        const struct imatrix_entry *x = &m.all[i];
        struct importance known;
        struct err own = {0};
        if (!imatrix_importance(&m, x->name, x->cols, x->count, &known, &own) && known.mean)
            sink += known.mean[0] + known.mean[(size_t)known.rows * x->cols - 1];
    }
    imatrix_free(&m);
    return 0;
}
