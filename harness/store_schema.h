/* Versions of the results database. Private to store*.c and their tests. */
#ifndef HARNESS_STORE_SCHEMA_H
#define HARNESS_STORE_SCHEMA_H

#include "harness/sql.h"

/* One step from version N to N + 1, as SQL. The list is only ever appended to: a step that was released is never edited. */
extern const char *const store_migrations[];
extern const int store_migrations_count;

/* Brings the database from its version (PRAGMA user_version) to count, each step and its version in one transaction, so that a
 * killed migration leaves the older version whole. Refused with STATUS_INPUT: a newer version, a database that is not ours. */
enum status store_migrate(struct sql *sql, const char *const *migrations, int count, struct err *err);

/* Refuses what can only be read and has another version than count. */
enum status store_check_version(struct sql *sql, int count, struct err *err);

#endif
