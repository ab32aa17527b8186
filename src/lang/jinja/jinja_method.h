/* The methods of str. */
#pragma once

#include "lang/jinja/jinja_call.h"

const struct jfunc *jstr_methods_find(const struct jstr *name);
