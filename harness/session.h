/* One experiment being measured from the command line: what it is measured on, what is open, and how its result is printed. Shared
 * by the commands that launch engines. */
#ifndef HARNESS_SESSION_H
#define HARNESS_SESSION_H

#include "harness/experiment.h"
#include "harness/interrupt.h"
#include "harness/measure.h"
#include "harness/store.h"

struct session {
	const char *db;
	bool json; /* end with one JSON document on standard output */
	struct experiment *experiment;
	struct store *store;
	struct client *client;
	struct interrupt interrupt;
	struct machine_facts machine;
	struct build_facts build;
	struct text engine_program; /* the built-in engine */
	struct text engine_found; /* the program that arms are launched with */
	struct text engine_version; /* what it says, empty when it is not asked or does not say */
	char model_hash[65];
	int64_t experiment_id;
	bool quiet; /* session_measure prints no result: it is not the last experiment */
	int winner, launches; /* of the experiment measured last: see struct run_loop */
	double spent_s;
};
#define SESSION_INIT \
	{ \
		.db = "results.db", .interrupt = {.fd = -1 } \
	}

/* Finds out what session->experiment would be measured on: machine, engine and model with their hashes. STATUS_UNAVAILABLE: the
 * engine's program or the model does not exist. */
enum status session_find(struct session *session, struct err *err);

/* Opens what measuring needs; the store, which creates the database, last and only when it is not open yet. */
enum status session_open(struct session *session, struct err *err);

/* File name of the model, "" when none is named. */
const char *session_model_name(const struct session *session);

/* Runs what is missing of the experiment with session->experiment_id, extensions included, and prints the result. Statuses as
 * run_loop_run. */
enum status session_measure(struct session *session, bool resumed, struct err *err);

/* Prints the result of the experiment measured last. */
enum status session_print(struct session *session, struct err *err);

void session_close(struct session *session);

#endif
