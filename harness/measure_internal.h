/* What the parts of measuring share. Private to measure*.c. */
#ifndef HARNESS_MEASURE_INTERNAL_H
#define HARNESS_MEASURE_INTERNAL_H

#include "harness/measure.h"
#include "harness/pin.h"
#include "harness/target.h"
#include "harness/workload.h"

/* A launch that is being measured. */
struct measuring {
	const struct measure *measure;
	const struct experiment *experiment;
	const struct arm *arm;
	const struct engine_spec *engine; /* the arm's */
	const struct target_ops *target;
	struct launch *launch; /* NULL: attached to a running server */
	int port;
	char nonce[40];
	char base_url[256];
	struct text model; /* that the server names; empty: none */
	int vocabulary;
	struct launch_result *result;
	int64_t begin_ns;
	void *session; /* of the probe */
	struct pin_session pin;
	struct json *before; /* reading of the machine before the launch */
};

/* Records the failure, unless there is one already. reason begins with the class. */
void measuring_fail(struct measuring *measuring, enum failure failure, const char *reason, ...)
	__attribute__((format(printf, 3, 4)));
bool measuring_failed(const struct measuring *measuring);

/* Explains why the engine is gone; running: it had been ready. */
void measuring_explain_exit(struct measuring *measuring, bool running);

/* What ends a wait early: the engine's end and signals. Fills watch, which points to measuring. */
void measuring_watch(struct measuring *measuring, struct client_watch *watch);
bool measuring_engine_gone(struct measuring *measuring);
void measuring_enter(struct measuring *measuring, const char *phase);

#define LOG_EXPLAIN_BYTES 65536 /* of log in which an explanation is looked for */

/* Records the failure of a run whose requests failed, or whose answers are not what was asked. */
void measuring_check_completed(struct measuring *measuring, const struct run_result *run);
void measuring_check_run(struct measuring *measuring, const struct workload *workload, const struct run_result *run);

/* How this server is asked; model is borrowed from measuring. */
struct request_style measuring_style(const struct measuring *measuring);

/* The server's counters as they stand now; false when it shows none. */
bool measuring_read_counters(struct measuring *measuring, struct run_counters *out);

/* Mean tokens of a verify step since the cache was emptied, where the server tells it; 0 where it does not. */
double measuring_read_accept_length(struct measuring *measuring);

/* GET of a path of the server; what came of it is in answer (released by the caller) and err. */
void measuring_get(struct measuring *measuring, const char *path, double timeout_s, struct client_answer *answer, struct err *err);

/* Reads back the settings in effect, which fails the launch where they are others than asked, and the server's version. */
void measuring_read_back(struct measuring *measuring);

/* Waits until the server is the one that was started, healthy, and has generated a token; reads back its settings and its model
 * name. Failures are recorded; STATUS_INTERRUPTED is returned. */
enum status measuring_wait_ready(struct measuring *measuring, struct err *err);

#endif
