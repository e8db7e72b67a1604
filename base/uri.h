/* Targets of requests (RFC 3986, RFC 9112), which anybody may have written. */
#ifndef BASE_URI_H
#define BASE_URI_H

#include <stdbool.h>

#include "base/text.h"

/* Appends the path of a request target without query, its percent-escapes decoded; of a whole URL ("http://host/path") too.
 * "%2F" stays an escape, in this spelling: it is a slash in a name, not one between names. False, with the reason in *why,
 * when the path does not begin with '/', an escape is cut short or not hexadecimal, a control character stands in it as a
 * byte or as an escape (NUL above all: string functions would lose the rest of the path), or the result is not UTF-8. out
 * may hold a part of it then. */
bool uri_decode_path(const char *target, struct text *out, const char **why);

#endif
