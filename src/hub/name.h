/* MODEL as a person writes it, read: a path, a repository on the Hub, an address, an alias or a built-in name. */
#pragma once

#include "base/err.h"

#include <limits.h>
#include <stdbool.h>

struct hub;

/* The model that is meant where none is said. */
#define HUB_DEFAULT "smollm2"

enum hub_kind {
    HUB_PATH, /* text: a file or folder, which need not be there */
    HUB_REPO, /* repo, revision, quant */
    HUB_URL,  /* text: http(s)://…/file.gguf, not of the Hub */
};

struct hub_name {
    enum hub_kind kind;
    char text[PATH_MAX]; /* HUB_PATH, HUB_URL; of a built-in name's HUB_REPO, the file that serves as well */
    char repo[200];      /* "user/repo", or one word for the Hub's oldest ones */
    char revision[128];  /* "main" unless it was said */
    char quant[256];     /* "" = the default; "Q4_K_M", or the name of a file in the repository */
    bool plain;          /* written without hf: or a host, so it may be a path with a slip in it */
};

/* NULL = the default model. What is there as a path goes before every name. */
int name_read(struct hub_name *n, const struct hub *h, const char *model, struct err *e);
/* "user/repo@rev:quant": what a person can write to mean the same. Of the last eight calls of a thread. */
const char *name_text(const struct hub_name *n);

/* The built-in names, one after the other from i = 0; NULL after the last. file: its name in hub.own/models. */
const char *name_built_in(int i, const char **file);
/* "user/repo" spelt as the Hub allows it. */
bool name_is_repo(const char *text);
