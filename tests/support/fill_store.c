/* Launches without engines. */
#include "tests/support/fill_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "harness/session.h"
#include "tests/support/launch_make.h"

void fill_store(
	const char *db, struct experiment *experiment, int blocks, double (*tps)(const struct arm *arm, int index, int block))
{
	struct session session = SESSION_INIT;
	bool resumed;
	session.db = db;
	session.experiment = experiment;
	assert_int_equal(session_find(&session, NULL), STATUS_OK);
	assert_int_equal(store_open(db, &session.store, NULL), STATUS_OK);
	const struct store_subject subject = {&session.machine, &session.build, session_model_name(&session), session.model_hash};
	assert_int_equal(store_begin_experiment(session.store, experiment, &subject, false, &session.experiment_id, &resumed, NULL),
		STATUS_OK);
	for (int block = 0; block < blocks; block++)
		for (int arm = 0; arm < experiment->n_arms; arm++) {
			struct launch_result launch;
			launch_make(&launch, experiment, arm, block, tps(&experiment->arms[arm], arm, block));
			assert_int_equal(
				store_save_launch(session.store, session.experiment_id, experiment, &launch, NULL), STATUS_OK);
			launch_result_release(&launch);
		}
	session.experiment = NULL; /* the caller's */
	session_close(&session);
}
