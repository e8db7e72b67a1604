/* Whether a record of an experiment (see store_rows.h) is sound: every member by its rule, every list without duplicates, every
 * reference to something that is there. Nothing else is ever put into a database. Pure. */
#ifndef HARNESS_RECORD_CHECK_H
#define HARNESS_RECORD_CHECK_H

#include "base/err.h"
#include "base/json.h"

#define RECORD_BLOCKS_MAX 100000 /* guess: far above what anybody has the time for */
#define RECORD_PATH_BYTES 160

/* STATUS_INPUT: "PATH: reason", such as "launches[2].runs[0].duration_ns: must be …". path gets the first part of it that is in
 * the document, for its line; it may be NULL. */
enum status record_check(const struct json *record, char path[RECORD_PATH_BYTES], struct err *err);

#endif
