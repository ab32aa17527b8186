/* Shared by both ways to download: pull.c for repositories, url.c for single files by URL. */
#pragma once

#include "base/err.h"
#include "hub/hub.h"

/* Whether the folder's file system has room for `need` more bytes. */
int pull_space(const char *folder, uint64_t need, struct err *e);

/* hub_find and hub_pull of a HUB_URL. */
int url_find(const struct hub *h, const char *url, char path[PATH_MAX], struct err *e);
int url_pull(const struct hub *h, const char *url, struct hub_pulled *out, struct err *e);
/* The folder of hub.own for downloads from this URL. */
int url_folder(const struct hub *h, const char *url, char out[PATH_MAX], struct err *e);
