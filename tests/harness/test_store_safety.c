/* harness/store: migrations, several processes at once, and processes that are killed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "tests/support/store_bed.h"

/* --- opening and migrating ------------------------------------------------------------------------------------------ */

static void a_newer_or_foreign_database_is_refused(void **state)
{
	struct store_bed *f = *state;
	struct store *store = NULL;
	assert_int_equal(sql_exec(f->store->sql, "PRAGMA user_version = 99", &f->err), STATUS_OK);
	assert_int_equal(store_open(f->path, &store, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "version 99"));
	assert_int_equal(sql_exec(f->store->sql, "PRAGMA user_version = 0", NULL), STATUS_OK);
	err_clear(&f->err);
	assert_int_equal(store_open(f->path, &store, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "another program"));
	char text_path[96];
	snprintf(text_path, sizeof text_path, "%s/other.db", f->folder);
	file_write_atomic(text_path, "this is no database, but long enough to be taken for one at first sight", 71, NULL);
	err_clear(&f->err);
	assert_int_equal(store_open(text_path, &store, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "no database"));
	err_clear(&f->err);
	assert_int_equal(store_open("", &store, &f->err), STATUS_INPUT);
	err_clear(&f->err);
	assert_int_not_equal(store_open("/no/such/folder/r.db", &store, &f->err), STATUS_OK);
}

static const char *const half_bad[] = {
	"CREATE TABLE one (x INTEGER) STRICT;", "CREATE TABLE two (x INTEGER) STRICT; CREATE TABLE one (y INTEGER);"};
static const char *const all_good[] = {
	"CREATE TABLE one (x INTEGER) STRICT;", "CREATE TABLE two (x INTEGER) STRICT; CREATE TABLE three (y INTEGER);"};

static int64_t number(struct sql *sql, const char *question)
{
	struct store store = {.sql = sql, .claim_fd = -1};
	return store_bed_ask(&store, question);
}

static void a_failed_migration_leaves_the_older_version_whole(void **state)
{
	struct store_bed *f = *state;
	struct sql *sql = NULL;
	char path[96];
	snprintf(path, sizeof path, "%s/other.db", f->folder);
	assert_int_equal(sql_open(path, 1000, &sql, &f->err), STATUS_OK);
	assert_int_not_equal(store_migrate(sql, half_bad, 2, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 1);
	assert_int_equal(number(sql, "SELECT count(*) FROM sqlite_master"), 1);
	err_clear(&f->err);
	assert_int_equal(store_migrate(sql, all_good, 2, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 2);
	assert_int_equal(number(sql, "SELECT count(*) FROM sqlite_master"), 3);
	sql_close(sql);
}

static void a_migration_killed_half_way_is_done_again(void **state)
{
	struct store_bed *f = *state;
	struct sql *sql = NULL;
	char path[96];
	snprintf(path, sizeof path, "%s/other.db", f->folder);
	pid_t child = fork();
	if (child == 0) {
		struct sql *mine = NULL;
		sql_open(path, 1000, &mine, NULL);
		store_migrate(mine, all_good, 1, NULL);
		sql_begin(mine, NULL);
		sql_exec(mine, "CREATE TABLE two (x INTEGER) STRICT; PRAGMA user_version = 2", NULL);
		raise(SIGKILL);
	}
	int status = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(sql_open(path, 1000, &sql, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 1);
	assert_int_equal(store_migrate(sql, all_good, 2, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 2);
	sql_close(sql);
}

/* --- several processes ---------------------------------------------------------------------------------------------- */

#define WRITER_LAUNCHES 12
#define READERS 4

/* Saves launches of its own experiment; exit code 0 when every one was taken. */
static void write_in_child(struct store_bed *f)
{
	struct store *store = NULL;
	bool resumed;
	if (store_open(f->path, &store, NULL))
		_exit(1);
	f->store = store;
	const struct store_subject subject = {&f->machine, &f->build, "m", "h"};
	if (store_begin_experiment(store, f->experiment, &subject, false, &f->id, &resumed, NULL))
		_exit(2);
	for (int i = 0; i < WRITER_LAUNCHES; i++) {
		struct launch_result launch;
		launch_make(&launch, f->experiment, i % 4, i / 4, 100);
		if (store_save_launch(store, f->id, f->experiment, &launch, NULL))
			_exit(3);
		launch_result_release(&launch);
	}
	_exit(0);
}

static void read_in_child(struct store_bed *f)
{
	struct store *store = NULL;
	if (store_open(f->path, &store, NULL))
		_exit(1);
	for (int i = 0; i < 40; i++) {
		struct json *rows = NULL;
		if (store_history(store, NULL, &rows, NULL))
			_exit(2);
		json_free(rows);
	}
	_exit(0);
}

static void two_writers_and_many_readers_lose_nothing(void **state)
{
	struct store_bed *f = *state;
	pid_t children[2 + READERS];
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	store_close(f->store); /* SQLite connections must not cross a fork */
	f->store = NULL;
	for (int i = 0; i < 2 + READERS; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			if (i < 2)
				write_in_child(f);
			read_in_child(f);
		}
	}
	for (int i = 0; i < 2 + READERS; i++) {
		int status = 0;
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
	assert_int_equal(store_open(f->path, &f->store, &f->err), STATUS_OK);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM experiment"), 3);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM launch"), 12 + 2 * WRITER_LAUNCHES);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM request"), (12 + 2 * WRITER_LAUNCHES) * 6);
}

/* A database that stays locked: the launch waits in a file and is there after the next opening. */
static void a_launch_that_cannot_be_saved_is_kept_and_saved_later(void **state)
{
	struct store_bed *f = *state;
	struct sql *other = NULL;
	struct launch_result launch;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save(f, 0, 0, 100);
	store_close(f->store);
	assert_int_equal(store_open_waiting(f->path, 20, &f->store, &f->err), STATUS_OK);
	assert_int_equal(sql_open(f->path, 1000, &other, &f->err), STATUS_OK);
	assert_int_equal(sql_begin(other, &f->err), STATUS_OK);
	launch_make(&launch, f->experiment, 2, 0, 123);
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_UNAVAILABLE);
	assert_non_null(strstr(f->err.text, "locked"));
	launch_result_release(&launch);
	sql_end(other, STATUS_INTERRUPTED, NULL);
	sql_close(other);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM launch"), 1);
	store_close(f->store);
	err_clear(&f->err);
	assert_int_equal(store_open(f->path, &f->store, &f->err), STATUS_OK);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM launch"), 2);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM request"), 12);
	char folder[128];
	snprintf(folder, sizeof folder, "%s.unsaved", f->path);
	assert_false(file_exists(folder));
}

/* A writer killed at any moment: what it said was saved is there, nothing is half there, and the rest can be saved afterwards. */
static void a_writer_killed_at_any_moment_leaves_whole_launches(void **state)
{
	struct store_bed *f = *state;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	int64_t id = f->id;
	store_close(f->store);
	f->store = NULL;
	for (int round = 0; round < 6; round++) {
		int pipes[2];
		assert_int_equal(pipe(pipes), 0);
		pid_t child = fork();
		if (child == 0) {
			struct store *store = NULL;
			store_open(f->path, &store, NULL);
			for (int i = 0; i < 40; i++) {
				struct launch_result launch;
				launch_make(&launch, f->experiment, i % 4, round * 10 + i / 4, 100);
				if (store_save_launch(store, id, f->experiment, &launch, NULL) || write(pipes[1], "s", 1) != 1)
					_exit(1);
				launch_result_release(&launch);
			}
			_exit(0);
		}
		char said = 0;
		for (int i = 0; i < 1 + 2 * round;
			i++) /* each round is killed after another number of launches, in the middle of the next */
			assert_int_equal(read(pipes[0], &said, 1), 1);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		close(pipes[0]);
		close(pipes[1]);
		assert_int_equal(store_open(f->path, &f->store, &f->err), STATUS_OK);
		assert_true(
			store_bed_ask(f->store, "SELECT count(*) FROM launch") >= (round + 1) * (round + 1)); /* 1 + 3 + 5 + … */
		assert_int_equal(store_bed_ask(f->store,
					 "SELECT count(*) FROM (SELECT l.launch_id FROM launch l LEFT JOIN run USING (launch_id)"
					 " LEFT JOIN request USING (run_id) GROUP BY l.launch_id HAVING count(request_id) <> 6)"),
			0);
		assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
		store_close(f->store);
		f->store = NULL;
	}
}

static void all_answers_are_of_one_moment(void **state)
{
	static const char question[] = "SELECT count(*) FROM launch";
	struct store_bed *f = *state;
	struct store *reader = NULL, *later = NULL;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save(f, 0, 0, 100.0);
	assert_int_equal(store_open_to_read(f->path, &reader, &f->err), STATUS_OK);
	assert_int_equal(store_bed_ask(reader, question), 1);
	store_bed_save(f, 1, 0, 110.0); /* while the reader is at its work */
	assert_int_equal(store_bed_ask(reader, question), 1);
	assert_int_equal(store_open_to_read(f->path, &later, &f->err), STATUS_OK);
	assert_int_equal(store_bed_ask(later, question), 2);
	store_close(later);
	store_close(reader);
}

static void an_experiment_is_measured_by_one_program_at_a_time(void **state)
{
	struct store_bed *f = *state;
	struct store *other = NULL;
	assert_int_equal(store_open(f->path, &other, &f->err), STATUS_OK);
	assert_int_equal(store_claim(f->store, 1, &f->err), STATUS_OK);
	assert_int_equal(store_claim(f->store, 1, &f->err), STATUS_OK); /* again, by the one that has it */
	assert_int_equal(store_claim(other, 1, &f->err), STATUS_UNAVAILABLE);
	assert_non_null(strstr(f->err.text, "experiment 1 is being measured by another verdict"));
	err_clear(&f->err);
	assert_int_equal(store_claim(other, 2, &f->err), STATUS_OK);
	assert_int_equal(store_claim(f->store, 3, &f->err), STATUS_OK); /* gives up the first */
	assert_int_equal(store_claim(other, 1, &f->err), STATUS_OK);
	store_close(other);
	assert_int_equal(store_claim(f->store, 1, &f->err), STATUS_OK);
	/* A child that holds the descriptor for a moment after its parent was killed is waited for. */
	int ready[2];
	assert_int_equal(pipe(ready), 0);
	pid_t child = fork();
	if (child == 0) {
		(void)!write(ready[1], "", 1);
		clock_sleep_ns(100000000);
		_exit(0);
	}
	char byte;
	assert_int_equal(read(ready[0], &byte, 1), 1);
	store_release_claim(f->store);
	assert_int_equal(store_open(f->path, &other, &f->err), STATUS_OK);
	assert_int_equal(store_claim(other, 1, &f->err), STATUS_OK);
	store_close(other);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(ready[0]);
	close(ready[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(a_newer_or_foreign_database_is_refused),
		STORE_TEST(a_failed_migration_leaves_the_older_version_whole),
		STORE_TEST(a_migration_killed_half_way_is_done_again),
		STORE_TEST(two_writers_and_many_readers_lose_nothing),
		STORE_TEST(a_launch_that_cannot_be_saved_is_kept_and_saved_later),
		STORE_TEST(a_writer_killed_at_any_moment_leaves_whole_launches),
		STORE_TEST(all_answers_are_of_one_moment),
		STORE_TEST(an_experiment_is_measured_by_one_program_at_a_time),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
