/* The database that tests of the store work on. */
#include "tests/support/store_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/experiment_text.h"

static const char experiment_text[] =
	"{'name':'demo','baseline':{'params':{'graph_max_bs':8,'speculation':'off'}},'matrix':{'factors':{'graph_max_bs':[8,0]},"
	"'include':[{'name':'both','graph_max_bs':0,'speculation':'ngram'}]},"
	"'workloads':[{'name':'w','concurrency':2,'requests':2,'sampling':{'max_tokens':4}}],"
	"'verdict':{'constraints':[{'metric':'ttft_ms_p90','max_regress_pct':10}]}}";

int store_bed_open(void **state)
{
	struct store_bed *f = mem_calloc(1, sizeof *f);
	*state = f;
	snprintf(f->folder, sizeof f->folder, "/tmp/verdict-store-XXXXXX");
	if (!mkdtemp(f->folder))
		return -1;
	snprintf(f->path, sizeof f->path, "%s/r.db", f->folder);
	f->experiment = experiment_from_text(experiment_text);
	f->machine.facts = json_new_object();
	json_set(f->machine.facts, "host", json_new_string("box"));
	snprintf(f->machine.hash, sizeof f->machine.hash, "%064d", 1);
	snprintf(f->build.hash, sizeof f->build.hash, "%064d", 2);
	f->build.program = "/usr/bin/verdict-engine";
	f->build.version = "0.1.0";
	return store_open(f->path, &f->store, &f->err) ? -1 : 0;
}

int store_bed_close(void **state)
{
	struct store_bed *f = *state;
	static const char *const names[] = {"r.db", "r.db-wal", "r.db-shm", "other.db", "other.db-wal", "other.db-shm"};
	store_close(f->store);
	experiment_release(f->experiment);
	json_free(f->machine.facts);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		char path[160];
		snprintf(path, sizeof path, "%s/%s", f->folder, names[i]);
		unlink(path);
	}
	rmdir(f->folder);
	mem_free(f);
	return 0;
}

void store_bed_begin(struct store_bed *f, bool resume, bool *resumed)
{
	const struct store_subject subject = {&f->machine, &f->build, "m.gguf", "abc"};
	if (store_begin_experiment(f->store, f->experiment, &subject, resume, &f->id, resumed, &f->err))
		fail_msg("%s", f->err.text);
}

void store_bed_save(struct store_bed *f, int arm, int block, double tps)
{
	struct launch_result launch;
	launch_make(&launch, f->experiment, arm, block, tps);
	enum status status = store_save_launch(f->store, f->id, f->experiment, &launch, &f->err);
	launch_result_release(&launch);
	if (status)
		fail_msg("%s", f->err.text);
}

void store_bed_save_all(struct store_bed *f)
{
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 4; arm++)
			store_bed_save(f, arm, block, (arm == 3 ? 130 : 100) + 0.1 * (arm * 3 + block * 5 % 7));
}

void store_bed_judge(struct store_bed *f, bool final)
{
	struct launch_cells cells = {0};
	struct verdict_row rows[EXPERIMENT_ARMS_MAX];
	char reason[VERDICT_REASON_BYTES];
	size_t n_rows = 0;
	bool failed = false;
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	const struct verdict_input input = {
		.experiment = f->experiment, .cells = cells.items, .n_cells = cells.count, .n_looks = 1};
	assert_int_equal(verdict_compute(&input, 0, rows, &n_rows, &failed, reason, &f->err), STATUS_OK);
	assert_int_equal(store_save_verdicts(f->store, f->id, f->experiment, rows, n_rows, final, &f->err), STATUS_OK);
	launch_cells_release(&cells);
}

int64_t store_bed_ask(struct store *store, const char *question)
{
	struct sql_statement *statement = NULL;
	struct err err = {0};
	bool row = false;
	if (sql_prepare(store->sql, question, &statement, &err) || sql_step(statement, &row, &err) || !row)
		fail_msg("%s: %s", question, err.text);
	int64_t answer = sql_int(statement, 0);
	sql_finish(statement);
	return answer;
}

struct json *store_bed_export(struct store_bed *f, int64_t id)
{
	struct json *record = NULL;
	if (store_export(f->store, id, &record, &f->err))
		fail_msg("%s", f->err.text);
	return record;
}
