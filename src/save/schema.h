/* The tables of the database: one list of migrations for all modules. A version is never changed once it has been released:
 * what a module needs more is a new version at the end. */
#pragma once

#include <stddef.h>

extern const char *const schema_versions[]; /* [i]: from user_version i to i + 1 */
extern const int schema_count;
