/* Fuzzes the decoding of request targets: what is taken begins with a slash, is UTF-8 and holds no control character. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/uri.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct text target = {0}, path = {0};
	const char *why = NULL;
	text_append(&target, (const char *)data, size);
	if (uri_decode_path(text_str(&target), &path, &why)) {
		ASSERT(path.data[0] == '/' && strlen(path.data) == path.len && utf8_is_valid(path.data, path.len));
		for (size_t i = 0; i < path.len; i++)
			ASSERT((unsigned char)path.data[i] >= 0x20 && path.data[i] != 0x7f);
	} else {
		ASSERT(why);
	}
	text_release(&target);
	text_release(&path);
	return 0;
}
