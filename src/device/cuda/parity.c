#include "device/cuda/parity.h"

#include "base/dtype.h"
#include "base/log.h"
#include "base/mem.h"

int parity_check(struct cuda_device *d, struct err *e)
{
    (void)d;
    (void)e;
    return 0;
}
