/* Reads them. */
#include "tests/support/golden_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"

void golden_file_read(const char *folder, const char *name, struct text *out)
{
	struct text path = {0};
	struct err err = {0};
	text_printf(&path, "tests/golden/%s/%s", folder, name);
	if (file_read(text_str(&path), 1 << 20, out, &err))
		fail_msg("%s", err.text);
	text_release(&path);
}
