/* A small layer over SQLite, and the only module that includes it: statements with values bound in order, rows as JSON. */
#ifndef HARNESS_SQL_H
#define HARNESS_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

struct sql;
struct sql_statement;

/* Opens or creates a database: WAL, foreign keys, full synchronisation, waits up to busy_ms for other writers. A name that cannot
 * be that of a database is STATUS_INPUT or STATUS_NOT_FOUND; one that may not be written is STATUS_UNAVAILABLE. */
enum status sql_open(const char *path, int busy_ms, struct sql **out, struct err *err);

/* Opens a database that may only be read, as on a read-only file system. What another program has in its write-ahead log is read
 * with it; STATUS_UNAVAILABLE where that log cannot be read without writing beside it. Nothing is ever written. */
enum status sql_open_to_read(const char *path, int busy_ms, struct sql **out, struct err *err);
void sql_close(struct sql *sql);

/* Runs statements without results. Failures: STATUS_INPUT when a constraint of the schema is broken or the file is no database,
 * else STATUS_UNAVAILABLE. */
enum status sql_exec(struct sql *sql, const char *text, struct err *err);

/* A write transaction; taken at once, so that it cannot fail half-way for want of a lock. One within another is a part of it: what
 * the inner one did is undone alone when it fails, and with the outer one when that fails. */
enum status sql_begin(struct sql *sql, struct err *err);

/* A transaction that only reads: from its first statement on everything read is of that moment, whatever other programs write.
 * Until the database is closed. */
enum status sql_begin_to_read(struct sql *sql, struct err *err);

/* Ends a transaction: commits when status is STATUS_OK, else rolls back. Returns the first failure. */
enum status sql_end(struct sql *sql, enum status status, struct err *err);

/* One statement. *out is NULL after a failure; sql_finish takes NULL. */
enum status sql_prepare(struct sql *sql, const char *text, struct sql_statement **out, struct err *err);
void sql_finish(struct sql_statement *statement);

/* Bind the next parameter. Numbers that are not finite and NULL texts become NULL. Texts are copied. A JSON value binds as what
 * it is; arrays, objects and the absent (NULL) as compact text or NULL. */
void sql_bind_int(struct sql_statement *statement, int64_t value);
void sql_bind_real(struct sql_statement *statement, double value);
void sql_bind_text(struct sql_statement *statement, const char *value);
void sql_bind_json(struct sql_statement *statement, const struct json *value);

/* Moves to the next row; *row false at the end, after which the statement may be bound and run again. */
enum status sql_step(struct sql_statement *statement, bool *row, struct err *err);

/* Runs a statement that gives no rows, and makes it ready to be bound again. */
enum status sql_run(struct sql_statement *statement, struct err *err);

/* Columns of the current row, from 0. NULL reads as 0, NaN or NULL. Texts last until the next step. */
int64_t sql_int(struct sql_statement *statement, int column);
double sql_real(struct sql_statement *statement, int column);
const char *sql_text(struct sql_statement *statement, int column);
bool sql_is_null(struct sql_statement *statement, int column);

/* The current row as an object. Text of columns named in json_columns (NULL-terminated, may be NULL) is parsed. Caller frees. */
struct json *sql_row(struct sql_statement *statement, const char *const *json_columns);

/* All rows of a prepared and bound statement as an array. Caller frees. */
enum status sql_rows(struct sql_statement *statement, const char *const *json_columns, struct json **out, struct err *err);

int64_t sql_last_id(struct sql *sql);

/* INSERT INTO table of those members of object that are named in columns (NULL-terminated; absent members become NULL). */
enum status sql_insert(
	struct sql *sql, const char *table, const char *const *columns, const struct json *object, int64_t *id, struct err *err);

#endif
