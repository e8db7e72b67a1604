/* What the parts of the store share. Private to store*.c. Functions here expect an open transaction where they write. */
#ifndef HARNESS_STORE_INTERNAL_H
#define HARNESS_STORE_INTERNAL_H

#include "harness/sql.h"
#include "harness/store.h"
#include "harness/store_rows.h"

struct store {
	struct sql *sql;
	char *path;
	int claim_fd; /* -1: none; see store_claim */
};

/* store_open with another limit to the wait for other writers. */
enum status store_open_waiting(const char *path, int busy_ms, struct store **out, struct err *err);

/* Gives up what store_claim took. */
void store_release_claim(struct store *store);

/* Keeps a launch row that could not be saved in a file beside the database. */
enum status store_keep_unsaved(struct store *store, int64_t experiment_id, const struct json *launch, struct err *err);

/* Saves the launches that are kept so, and removes their files. What cannot be saved yet stays, with a warning. */
void store_save_unsaved(struct store *store);

/* Inserts the head of a record (see store_rows.h) with its machine, build, model, configurations and workloads. */
enum status store_insert_head(
	struct store *store, const struct json *record, bool imported, int64_t *experiment_id, struct err *err);

/* Inserts a launch row with its runs and requests. */
enum status store_insert_launch(struct store *store, int64_t experiment_id, const struct json *launch, struct err *err);

/* Inserts an extension row. */
enum status store_insert_extension(struct store *store, int64_t experiment_id, const struct json *extension, struct err *err);

/* Inserts a confirmation row. */
enum status store_insert_confirmation(struct store *store, int64_t experiment_id, const struct json *confirmation, struct err *err);

/* Inserts a verdict row, or updates the one of the same arm and workload. */
enum status store_put_verdict(struct store *store, int64_t experiment_id, const struct json *verdict, struct err *err);

#endif
