/* Suggests a known word for a misspelt one. */
#pragma once

/* The edit distance of two words: letters to change, add or remove. EDIT_DISTANCE_FAR: too far to be a typing
 * error, three letters or more than half of the word. */
enum { EDIT_DISTANCE_FAR = 3 };
int edit_distance(const char *a, const char *b);

/* The nearest word so far: call it with one candidate after the other. */
struct nearest {
    const char *word; /* the misspelt word */
    const char *best; /* NULL = nothing is near */
    int far;
};
void nearest_offer(struct nearest *n, const char *candidate);
