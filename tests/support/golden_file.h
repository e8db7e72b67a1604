/* Files below tests/golden/. */
#ifndef TESTS_SUPPORT_GOLDEN_FILE_H
#define TESTS_SUPPORT_GOLDEN_FILE_H

#include "base/text.h"

/* Appends the bytes of tests/golden/FOLDER/NAME, at most 1 MiB, to out; fails the running test when it cannot. */
void golden_file_read(const char *folder, const char *name, struct text *out);

#endif
