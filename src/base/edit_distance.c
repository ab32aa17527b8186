#include "base/edit_distance.h"

#include <string.h>

int edit_distance(const char *a, const char *b)
{
    enum { MOST = 128 };
    size_t n = strlen(a), m = strlen(b);
    if (n > MOST || m > MOST)
        return EDIT_DISTANCE_FAR;
    int row[MOST + 1]; /* row[j]: from the first i letters of a to the first j of b */
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]),
                shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < shift ? change : shift;
        }
    }
    return row[m] > EDIT_DISTANCE_FAR || row[m] * 2 > (int)n ? EDIT_DISTANCE_FAR : row[m];
}

void nearest_offer(struct nearest *n, const char *candidate)
{
    int far = edit_distance(n->word, candidate);
    if (far < (n->best ? n->far : EDIT_DISTANCE_FAR)) {
        n->best = candidate;
        n->far = far;
    }
}
