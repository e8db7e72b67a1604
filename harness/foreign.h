/* Reading what other benchmarks write: llama-bench (JSON, JSONL, SQL), vLLM's `bench serve`, SGLang's bench_serving, InferenceX
 * rows. One measurement becomes one row of the table "measurement": recorded, never judged. Pure. */
#ifndef HARNESS_FOREIGN_H
#define HARNESS_FOREIGN_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"

#define FOREIGN_ROWS_MAX 100000 /* of one file */

/* len bytes with a NUL after them, as struct text holds them. Reads a whole file into an array of rows with members named like the
 * columns of the table; "document" is the entry as it stood. Columns that an entry does not tell are absent, those that are not
 * known stay in the document. *out is NULL, with STATUS_OK, when the text is none of these formats: the caller may know it. Every
 * complaint is "SOURCE:LINE:COL: …" or "SOURCE: entry N (TOOL): MEMBER: …", STATUS_INPUT, and then nothing of the file is to be
 * kept. Caller frees *out. */
enum status foreign_read(const char *bytes, size_t len, const char *source, struct json **out, struct err *err);

/* llama-bench's SQL: its CREATE TABLE, and INSERT INTO llama_bench (columns) VALUES (values), into an array of objects. */
enum status foreign_read_sql(const char *bytes, size_t len, const char *source, struct json **out, struct err *err);

#endif
