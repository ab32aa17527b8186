#define _GNU_SOURCE
#include "hub/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

static struct curl curl_table;
static char curl_missing[256]; /* "" = it is there */
static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

#define CURL_ROW(name)                                                                                       \
    {                                                                                                        \
        "curl_" #name, offsetof(struct curl, name)                                                           \
    }

static void curl_open(void)
{
    static const char *const files[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};
    static const struct {
        const char *symbol;
        size_t place;
    } rows[] = {
        CURL_ROW(easy_init),        CURL_ROW(easy_reset),
        CURL_ROW(easy_cleanup),     CURL_ROW(easy_setopt),
        CURL_ROW(easy_getinfo),     CURL_ROW(easy_strerror),
        CURL_ROW(multi_init),       CURL_ROW(multi_cleanup),
        CURL_ROW(multi_add_handle), CURL_ROW(multi_remove_handle),
        CURL_ROW(multi_perform),    CURL_ROW(multi_poll),
        CURL_ROW(multi_info_read),  CURL_ROW(slist_append),
        CURL_ROW(slist_free_all),   CURL_ROW(version),
        CURL_ROW(easy_perform),
    };
    void *library = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files && !library; i++)
        library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    struct err why = {0};
    if (!library)
        err_set(&why, ERR_UNREACHABLE,
                "libcurl is not installed, and fetching needs it (Debian and Ubuntu: "
                "apt install libcurl4)");
    for (size_t i = 0; library && i < sizeof rows / sizeof *rows; i++) {
        void *f = dlsym(library, rows[i].symbol);
        if (!f)
            err_set(&why, ERR_UNREACHABLE, "libcurl is too old: it has no %s (7.66 or later is needed)",
                    rows[i].symbol);
        memcpy((char *)&curl_table + rows[i].place, &f, sizeof f);
    }
    __typeof__(curl_global_init) *init = NULL;
    void *f = library ? dlsym(library, "curl_global_init") : NULL;
    memcpy(&init, &f, sizeof f);
    if (library && (!init || init(CURL_GLOBAL_DEFAULT)))
        err_set(&why, ERR_UNREACHABLE, "libcurl cannot be set up");
    memcpy(curl_missing, why.text, sizeof curl_missing - 1);
}

const struct curl *curl_get(struct err *e)
{
    pthread_once(&curl_once, curl_open);
    if (!curl_missing[0])
        return &curl_table;
    err_set(e, ERR_UNREACHABLE, "%s", curl_missing);
    return NULL;
}
