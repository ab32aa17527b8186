/* What somebody may have meant who wrote a word that is not known. */
#pragma once

/* How far two words are apart: letters to change, add or leave out. EDIT_DISTANCE_FAR is what no slip of the hand
 * explains: three letters, or more than half of the word. */
enum { EDIT_DISTANCE_FAR = 3 };
int edit_distance(const char *a, const char *b);

/* The nearest so far: offer it one candidate after the other. */
struct nearest {
    const char *word; /* what was written */
    const char *best; /* NULL = nothing is near */
    int far;
};
void nearest_offer(struct nearest *n, const char *candidate);
