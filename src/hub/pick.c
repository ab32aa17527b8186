#define _GNU_SOURCE
#include "hub/pick.h"

#include "base/log.h"
#include "base/edit_distance.h"
#include "base/num.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { PICK_TAIL = sizeof "-00001-of-00003.gguf" - 1 };

static bool pick_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcasecmp(name + n - m, end);
}

/* part and of, of "…-00002-of-00003.gguf"; false where it is no split. */
static bool pick_split(const char *file, uint64_t *part, uint64_t *of)
{
    size_t n = strlen(file);
    const char *tail = file + n - PICK_TAIL;
    return n > PICK_TAIL && tail[0] == '-' && !strncmp(tail + 6, "-of-", 4) && pick_ends(file, ".gguf") &&
           num_u64(tail + 1, 5, 99999, part) && num_u64(tail + 10, 5, 99999, of);
}

unsigned pick_parts(const char *file)
{
    uint64_t part, of;
    return pick_split(file, &part, &of) && part == 1 && of ? (unsigned)of : 1;
}

void pick_part(const char *first, unsigned i, char *out, size_t size)
{
    size_t stem = strlen(first) - (PICK_TAIL - 1);
    snprintf(out, size, "%.*s%05u%s", (int)stem, first, i, first + stem + 5);
}

bool pick_is_first(const char *file)
{
    uint64_t part, of;
    const char *base = path_base(file);
    return pick_ends(file, ".gguf") && !(pick_split(file, &part, &of) && part != 1) &&
           strncasecmp(base, "mmproj", 6) && !strcasestr(base, "imatrix") && !strcasestr(base, "mmproj-");
}

/* Whether a name contains a word, bounded by other characters than letters and digits: Q4_K in "x-Q4_K.gguf",
 * not in "x-Q4_K_M". */
static bool pick_has_word(const char *name, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = name; (at = strcasestr(at, word)); at++) {
        char before = at == name ? '-' : at[-1], after = at[n];
        if (!isalnum((unsigned char)before) && !isalnum((unsigned char)after) && after != '_')
            return true;
    }
    return false;
}

static bool pick_matches(const char *file, const char *quant)
{
    return !strcmp(file, quant) || !strcmp(path_base(file), quant) ||
           (!pick_ends(quant, ".gguf") && pick_has_word(file, quant));
}

void pick_quant(const char *file, char *out, size_t size)
{
    uint64_t part, of;
    const char *base = path_base(file);
    size_t n = strlen(base) - (pick_split(base, &part, &of) ? PICK_TAIL : strlen(".gguf"));
    const char *best = NULL;
    size_t length = 0;
    for (size_t i = 0; i < n; i++) { /* the last word that begins like a type */
        bool begins = !i || strchr("-._", base[i - 1]);
        size_t digits = i + (strncasecmp(base + i, "IQ", 2) ? 1 : 2);
        bool type =
            begins && strchr("Qq", base[digits - 1]) && digits < n && isdigit((unsigned char)base[digits]);
        bool is_float = begins && (!strncasecmp(base + i, "BF16", 4) || !strncasecmp(base + i, "F16", 3) ||
                                   !strncasecmp(base + i, "F32", 3) || !strncasecmp(base + i, "MXFP4", 5));
        if (type || is_float) {
            best = base + i;
            for (length = 0; i + length < n && (isalnum((unsigned char)best[length]) || best[length] == '_');)
                length++;
            i += length;
        }
    }
    snprintf(out, size, "%.*s", (int)(best ? length : n), best ? best : base);
}

/* ---- GGUF ---- */

static int pick_no_quant(const struct path_list *all, const char *quant, struct err *e)
{
    char known[512] = "", one[64], best[64] = "";
    struct nearest near = {.word = quant};
    int at = 0, far = EDIT_DISTANCE_FAR;
    for (size_t i = 0; i < all->count; i++) {
        if (!pick_is_first(all->names[i]))
            continue;
        pick_quant(all->names[i], one, sizeof one);
        near = (struct nearest){.word = quant};
        nearest_offer(&near, one);
        if (near.best && near.far < far) {
            far = near.far;
            snprintf(best, sizeof best, "%s", one);
        }
        if ((size_t)at + strlen(one) + 3 < sizeof known)
            at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", at ? ", " : "", one);
    }
    if (!at)
        return err_set(
            e, ERR_DATA,
            "there is no GGUF of type '%s', and no other GGUF; without a type, safetensors are taken where "
            "there are some",
            log_safe(quant));
    if (*best)
        return err_set(e, ERR_DATA, "there is no GGUF of type '%s'; did you mean %s? There are %s",
                       log_safe(quant), log_safe(best), log_safe(known));
    return err_set(e, ERR_DATA, "there is no GGUF of type '%s'; there are %s", log_safe(quant),
                   log_safe(known));
}

static int pick_gguf(struct pick *p, const struct path_list *all, const char *first, struct err *e)
{
    unsigned parts = pick_parts(first);
    p->kind = PICK_GGUF;
    for (unsigned i = 1; i <= parts; i++) {
        char name[1100];
        snprintf(name, sizeof name, "%s", first);
        if (parts > 1)
            pick_part(first, i, name, sizeof name);
        if (!path_list_has(all, name))
            return err_set(e, ERR_DATA, "%s is not there, though %s says that there are %u parts",
                           log_safe(name), log_safe(first), parts);
        if (path_list_add(&p->files, name, strlen(name), e))
            return -1;
    }
    return 0;
}

/* ---- safetensors ---- */

/* A file of a sentence-transformers module: "1_Pooling/config.json", "2_Dense/model.safetensors". */
static bool pick_is_module(const char *file)
{
    size_t digits = strspn(file, "0123456789");
    const char *slash = strchr(file, '/');
    return digits && file[digits] == '_' && slash &&
           (!strcmp(slash, "/config.json") || !strcmp(slash, "/model.safetensors"));
}

static bool pick_stands_beside(const char *file)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".tiktoken"};
    if (pick_is_module(file) || !strncmp(file, "additional_chat_templates/", 26))
        return true;
    if (strchr(file, '/') || strstr(file, ".bin.index.") || strstr(file, ".msgpack.index.") ||
        strstr(file, ".h5.index.") || strstr(file, ".safetensors.index."))
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (pick_ends(file, ends[i]))
            return true;
    return !strcmp(file, "README.md") || !strncmp(file, "LICENSE", 7);
}

/* The same order of preference in which store_open looks into a folder. */
static const char *pick_weights(const struct path_list *all, bool *indexed)
{
    const char *only = NULL;
    int count = 0;
    *indexed = false;
    if (path_list_has(all, "model.safetensors"))
        return "model.safetensors";
    if (path_list_has(all, PICK_INDEX)) {
        *indexed = true;
        return PICK_INDEX;
    }
    for (size_t i = 0; i < all->count; i++)
        if (pick_ends(all->names[i], ".safetensors") && !strchr(all->names[i], '/') &&
            strncmp(all->names[i], "adapter_", 8)) {
            only = all->names[i];
            count++;
        }
    return count == 1 ? only : NULL;
}

static int pick_safetensors(struct pick *p, const struct path_list *all, struct err *e)
{
    const char *weights = pick_weights(all, &p->indexed);
    if (!weights)
        return 0;
    p->kind = PICK_SAFETENSORS;
    if (path_list_add(&p->files, weights, strlen(weights), e))
        return -1;
    for (size_t i = 0; i < all->count; i++)
        if (pick_stands_beside(all->names[i]) &&
            path_list_add(&p->files, all->names[i], strlen(all->names[i]), e))
            return -1;
    return 0;
}

int pick_files(struct pick *p, const struct path_list *all, const char *quant, struct err *e)
{
    const char *first = NULL, *chosen = NULL;
    *p = (struct pick){0};
    for (size_t i = 0; i < all->count; i++) {
        const char *file = all->names[i];
        bool exact = *quant && !strcmp(file, quant); /* named in full: even what would not be offered */
        if (!exact && !pick_is_first(file))
            continue;
        first = first ? first : file;
        if (exact || (!chosen && pick_matches(file, *quant ? quant : "Q4_K_M")))
            chosen = file;
    }
    if (!*quant)
        chosen = chosen ? chosen : first;
    int bad = 0;
    if (chosen)
        bad = pick_gguf(p, all, chosen, e);
    else if (*quant && all->count)
        bad = pick_no_quant(all, quant, e);
    else
        bad = pick_safetensors(p, all, e);
    if (bad)
        pick_free(p);
    return bad;
}

void pick_free(struct pick *p)
{
    path_list_free(&p->files);
    *p = (struct pick){0};
}
