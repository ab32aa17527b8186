/* Parses MODEL of the command line: a path, a repository on the Hub, a URL, an alias or a built-in name. */
#pragma once

#include "base/err.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

struct hub;

/* The default model. */
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
    char revision[128];  /* "main" unless given */
    char quant[256];     /* "" = the default; "Q4_K_M", or the name of a file in the repository */
    bool plain;          /* written without hf: or a host, so it may be a misspelt path */
};

/* models.json, an object, empty where there is none; NULL and an error. */
json_t *name_file(const struct hub *h, struct err *e);
/* NULL = the default model. An existing path goes before every name. */
int name_read(struct hub_name *n, const struct hub *h, const char *model, struct err *e);
/* "user/repo@rev:quant": the same model as MODEL text. Valid for the last eight calls of a thread. */
const char *name_text(const struct hub_name *n);

/* The built-in names, one after the other from i = 0; NULL after the last. file: its name in hub.own/models. */
const char *name_built_in(int i, const char **file);
/* "user/repo" spelt as the Hub allows it. */
bool name_is_repo(const char *text);
