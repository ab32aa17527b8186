/* Any bytes as the Hub's response, and as the name of a model. What is accepted never leads out of the
 * cache. */
#include "base/mem.h"
#include "hub/hub.h"
#include "hub/listing.h"
#include "hub/path.h"
#include "hub/pick.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_listing(const char *text, size_t n)
{
    struct listing l = {0};
    struct pick p;
    struct err e = {0}, none = {0};
    if (!listing_read(&l, text, n, &e)) {
        for (size_t i = 0; i < l.files.count; i++)
            if (!path_is_inside(l.files.names[i]))
                abort();
        if (!pick_files(&p, &l.files, "", &none))
            pick_free(&p);
        else if (!none.code)
            abort();
    } else if (!e.code) {
        abort();
    }
    listing_free(&l);
}

static void try_name(const char *text)
{
    static const struct hub h = {
        .endpoint = "https://huggingface.co", .cache = "/nowhere", .own = "/nowhere"};
    struct hub_name n;
    struct err e = {0};
    if (name_read(&n, &h, text, &e)) {
        if (!e.code)
            abort();
        return;
    }
    if (n.kind == HUB_REPO &&
        (!name_is_repo(n.repo) || !path_is_inside(n.revision) || (*n.quant && !path_is_inside(n.quant))))
        abort();
    char again[1024];
    struct hub_name same;
    if (n.kind != HUB_REPO || *n.text || strlen(text) > 150) /* name_text cuts what is too long to print */
        return;
    snprintf(again, sizeof again, "hf:%s", name_text(&n));
    if (name_read(&same, &h, again, &e) || strcmp(same.repo, n.repo) || strcmp(same.quant, n.quant))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size);
    if (!text)
        return 0;
    try_listing(text, strlen(text));
    try_name(text);
    mem_free(text);
    return 0;
}
