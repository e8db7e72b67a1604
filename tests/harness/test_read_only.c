/* A database that may only be read, as on a read-only file system or somebody else's: questions are answered from it, nothing is
 * written beside it, and what has to write says clearly that it cannot. Every attempt is made by a child that is not root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/commands.h"
#include "tests/support/store_bed.h"

#define NOBODY 65534
#define WORDS_MAX 8

typedef enum status command(int argc, char **argv, struct err *err);

struct answer {
	enum status status;
	char error[ERR_TEXT_BYTES_MAX];
};

/* Two experiments, so that compare has something to do. */
static void fill(struct store_bed *f)
{
	bool resumed;
	for (int i = 0; i < 2; i++) {
		store_bed_begin(f, false, &resumed);
		store_bed_save_all(f);
		store_bed_judge(f, true);
	}
}

static void close_store(struct store_bed *f)
{
	store_close(f->store);
	f->store = NULL;
}

static void copy_file(const char *from, const char *to)
{
	struct text bytes = {0};
	assert_int_equal(file_read(from, 1 << 26, &bytes, NULL), STATUS_OK);
	assert_int_equal(file_write_atomic(to, text_str(&bytes), bytes.len, NULL), STATUS_OK);
	text_release(&bytes);
}

/* path.ending, which may not exist. */
static void set_mode(const char *path, const char *ending, mode_t mode)
{
	char name[200];
	snprintf(name, sizeof name, "%s%s", path, ending);
	chmod(name, mode);
}

static void allow_reading_only(struct store_bed *f, bool only)
{
	static const char *const endings[] = {"", "-wal", "-shm"};
	for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
		set_mode(f->path, endings[i], only ? 0444 : 0644);
	chmod(f->folder, only ? 0555 : 0700);
}

static void run_in_child(command *run, const char *const *words, struct answer *answer)
{
	char *argv[WORDS_MAX] = {(char *)"verdict", (char *)"command"};
	struct err err = {0};
	int argc = 2, null = open("/dev/null", O_WRONLY);
	for (; *words; words++)
		argv[argc++] = (char *)*words;
	dup2(null, STDOUT_FILENO);
	answer->status = run(argc, argv, &err);
	snprintf(answer->error, sizeof answer->error, "%s", err.text);
}

/* Runs a command on the database as somebody who may only read it. */
static struct answer ask(const char *db, command *run, const char *first, const char *second)
{
	const char *words[] = {"--db", db, first, first ? second : NULL, NULL};
	struct answer answer = {STATUS_INTERNAL, ""};
	int ends[2], exit_status = 0;
	assert_int_equal(pipe(ends), 0);
	fflush(NULL);
	pid_t child = fork();
	if (child == 0) {
		bool reader = geteuid() != 0 || (setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
		if (reader)
			run_in_child(run, words, &answer);
		_exit(write(ends[1], &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &answer, sizeof answer), sizeof answer);
	close(ends[0]);
	assert_int_equal(waitpid(child, &exit_status, 0), child);
	assert_int_equal(exit_status, 0);
	return answer;
}

static void assert_answers(struct store_bed *f)
{
	static const struct {
		command *run;
		const char *first, *second;
	} questions[] = {
		{cmd_history, NULL, NULL},
		{cmd_trend, NULL, NULL},
		{cmd_show, "1", NULL},
		{cmd_export, "1", NULL},
		{cmd_compare, "1", "5"}, /* 2 to 4 are verdicts */
		{cmd_plan, "experiments/quickstart.json", NULL},
	};
	for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
		struct answer answer = ask(f->path, questions[i].run, questions[i].first, questions[i].second);
		if (answer.status)
			fail_msg("question %zu: %d: %s", i, (int)answer.status, answer.error);
	}
}

static size_t count_files(const char *folder)
{
	size_t count = 0;
	DIR *list = opendir(folder);
	while (list && readdir(list))
		count++;
	closedir(list);
	return count;
}

static void questions_are_answered_and_nothing_is_written(void **state)
{
	struct store_bed *f = *state;
	struct text before = {0}, after = {0};
	fill(f);
	close_store(f);
	allow_reading_only(f, true);
	size_t files = count_files(f->folder);
	assert_int_equal(file_read(f->path, 1 << 26, &before, NULL), STATUS_OK);
	assert_answers(f);
	assert_int_equal(file_read(f->path, 1 << 26, &after, NULL), STATUS_OK);
	assert_true(before.len == after.len && memcmp(before.data, after.data, before.len) == 0);
	assert_int_equal(count_files(f->folder), files);
	allow_reading_only(f, false);
	text_release(&before);
	text_release(&after);
}

/* The log of a program that is at work holds all of it: nothing was moved into the file yet. */
static void what_a_writer_has_just_saved_is_read_too(void **state)
{
	struct store_bed *f = *state;
	fill(f);
	allow_reading_only(f, true);
	assert_answers(f);
	allow_reading_only(f, false);
}

/* Somebody copied a database with its log, the file of that ending, but nothing else. */
static void check_copied_log(struct store_bed *f, const char *log, const char *ending)
{
	char copy[128], copied_log[144], expected[64];
	snprintf(copy, sizeof copy, "%s/other.db", f->folder);
	snprintf(copied_log, sizeof copied_log, "%s%s", copy, ending);
	snprintf(expected, sizeof expected, "other.db%s'", ending);
	copy_file(f->path, copy);
	copy_file(log, copied_log);
	set_mode(copy, "", 0444);
	set_mode(copied_log, "", 0444);
	chmod(f->folder, 0555);
	struct answer answer = ask(copy, cmd_history, NULL, NULL);
	chmod(f->folder, 0700);
	assert_int_equal(answer.status, STATUS_UNAVAILABLE);
	assert_non_null(strstr(answer.error, expected));
}

/* The index of the log cannot be made anew here. */
static void a_log_that_cannot_be_read_is_never_passed_over(void **state)
{
	struct store_bed *f = *state;
	char log[128];
	snprintf(log, sizeof log, "%s-wal", f->path);
	fill(f);
	check_copied_log(f, log, "-wal");
}

/* A journal beside the database would have to be rolled back first. */
static void a_journal_that_cannot_be_rolled_back_is_never_passed_over(void **state)
{
	struct store_bed *f = *state;
	fill(f);
	close_store(f);
	check_copied_log(f, f->path, "-journal"); /* any bytes: nobody looks at them */
}

static void writing_is_refused_clearly(void **state)
{
	struct store_bed *f = *state;
	fill(f);
	close_store(f);
	allow_reading_only(f, true);
	struct answer import = ask(f->path, cmd_import, "experiments/reference", NULL),
		      more = ask(f->path, cmd_more, "1", "--blocks=1");
	assert_int_equal(import.status, STATUS_UNAVAILABLE);
	assert_non_null(strstr(import.error, "the database cannot be written"));
	assert_non_null(strstr(import.error, f->path));
	assert_int_equal(more.status, STATUS_UNAVAILABLE);
	assert_non_null(strstr(more.error, "the database cannot be written"));
	chmod(f->path, 0644); /* the file may be written, its folder not: there is no room for a log */
	import = ask(f->path, cmd_import, "experiments/reference", NULL);
	assert_int_equal(import.status, STATUS_UNAVAILABLE);
	assert_non_null(strstr(import.error, "the database cannot be written"));
	assert_answers(f);
	allow_reading_only(f, false);
}

static void an_older_version_is_refused_and_not_misread(void **state)
{
	struct store_bed *f = *state;
	fill(f);
	assert_int_equal(sql_exec(f->store->sql, "PRAGMA user_version = 1", NULL), STATUS_OK);
	close_store(f);
	allow_reading_only(f, true);
	struct answer answer = ask(f->path, cmd_history, NULL, NULL);
	assert_int_equal(answer.status, STATUS_UNAVAILABLE);
	assert_non_null(strstr(answer.error, "has version 1 and may only be read"));
	allow_reading_only(f, false);
}

static void what_may_not_even_be_read_is_no_answer(void **state)
{
	struct store_bed *f = *state;
	fill(f);
	close_store(f);
	allow_reading_only(f, true);
	chmod(f->path, 0);
	struct answer answer = ask(f->path, cmd_history, NULL, NULL);
	assert_int_equal(answer.status, STATUS_UNAVAILABLE);
	assert_non_null(strstr(answer.error, "Permission denied"));
	allow_reading_only(f, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(questions_are_answered_and_nothing_is_written),
		STORE_TEST(what_a_writer_has_just_saved_is_read_too),
		STORE_TEST(a_log_that_cannot_be_read_is_never_passed_over),
		STORE_TEST(a_journal_that_cannot_be_rolled_back_is_never_passed_over),
		STORE_TEST(writing_is_refused_clearly),
		STORE_TEST(an_older_version_is_refused_and_not_misread),
		STORE_TEST(what_may_not_even_be_read_is_no_answer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
