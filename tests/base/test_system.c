/* Tests of base/options, file, mem, wait, clock and err. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/text.h"
#include "base/wait.h"

struct values {
	bool flag;
	long long count;
	double fraction;
	const char *name;
	struct option_list set;
};

static enum status parse(struct values *v, int argc, char **argv, const char **words, size_t *n_words, struct err *err)
{
	const struct option options[] = {
		{"stream", OPTION_FLAG, &v->flag, 0, 0, NULL, "Stream."},
		{"count", OPTION_I64, &v->count, 1, 8, "N", "Count."},
		{"fraction", OPTION_DOUBLE, &v->fraction, 0, 1, "F", "Fraction."},
		{"name", OPTION_STRING, &v->name, 0, 0, "NAME", "Name."},
		{"set", OPTION_STRING_LIST, &v->set, 0, 0, "K=V", "Set."},
	};
	return options_parse(options, sizeof options / sizeof options[0], argc, argv, 1, words, 2, n_words, err);
}

static void options_take_both_forms_lists_and_positionals(void **state)
{
	struct values v = {0};
	struct err err = {0};
	const char *words[2];
	size_t n_words;
	char *argv[] = {
		"p", "--stream", "file", "--count=3", "--fraction", "0.5", "--set", "a=1", "--set=b=2", "--name", "-", "--", "--x"};
	assert_int_equal(parse(&v, 13, argv, words, &n_words, &err), STATUS_OK);
	assert_true(v.flag && v.count == 3 && v.fraction == 0.5 && v.set.count == 2);
	assert_string_equal(v.set.items[1], "b=2");
	assert_string_equal(v.name, "-");
	assert_int_equal(n_words, 2);
	assert_string_equal(words[1], "--x");
	char *off[] = {"p", "--no-stream"};
	assert_int_equal(parse(&v, 2, off, words, &n_words, &err), STATUS_OK);
	assert_false(v.flag);
}

static void options_refuse_what_they_do_not_know(void **state)
{
	static const struct {
		char *a, *b;
		const char *says;
	} bad[] = {
		{"--cout", "3", "--cout"},
		{"--count", "9", "--count"},
		{"--count", "x", "'x'"},
		{"--count", NULL, "needs a value"},
		{"--stream=1", NULL, "takes no value"},
		{"-c", "3", "'-c'"},
		{"--fraction", "nan", "'nan'"},
		{"--no-count", NULL, "--no-count"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct values v = {0};
		struct err err = {0};
		const char *words[2];
		char *argv[] = {"p", bad[i].a, bad[i].b};
		assert_int_equal(parse(&v, bad[i].b ? 3 : 2, argv, words, NULL, &err), STATUS_INPUT);
		assert_non_null(strstr(err.text, bad[i].says));
	}
}

static void errors_keep_the_first_cause_and_gain_nouns(void **state)
{
	struct err err = {0};
	assert_int_equal(err_set(&err, STATUS_INPUT, "tensor '%s'", "x"), STATUS_INPUT);
	assert_int_equal(err_set(&err, STATUS_TIMEOUT, "later"), STATUS_INPUT);
	assert_int_equal(err_add(&err, "model '%s'", "m"), STATUS_INPUT);
	assert_string_equal(err.text, "model 'm': tensor 'x'");
	assert_int_equal(err_set(NULL, STATUS_INPUT, "nobody listens"), STATUS_INPUT);
	err_clear(NULL);
	char long_noun[3000];
	memset(long_noun, 'n', sizeof long_noun - 1);
	long_noun[sizeof long_noun - 1] = '\0';
	err_add(&err, "%s", long_noun);
	assert_int_equal(strlen(err.text), ERR_TEXT_BYTES_MAX - 1);
	assert_int_equal(status_exit_code(STATUS_RANK_DIED), 4);
	assert_int_equal(status_exit_code((enum status)99), 3);
}

static void files_are_written_whole_and_read_with_limits(void **state)
{
	struct err err = {0};
	char path[] = "/tmp/verdict-test-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(file_write_atomic(path, "hello", 5, &err), STATUS_OK);
	struct text text = {0};
	assert_int_equal(file_read(path, 5, &text, &err), STATUS_OK);
	assert_string_equal(text_str(&text), "hello");
	assert_int_equal(file_read(path, 4, &text, &err), STATUS_INPUT);
	err_clear(&err);
	struct file_map map;
	assert_int_equal(file_map_open(path, &map, &err), STATUS_OK);
	assert_int_equal(map.size, 5);
	file_map_close(&map);
	unlink(path);
	assert_int_equal(file_map_open(path, &map, &err), STATUS_NOT_FOUND);
	assert_non_null(strstr(err.text, path));
	err_clear(&err);
	assert_int_equal(file_map_open("/tmp", &map, &err), STATUS_INPUT);
	err_clear(&err);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(file_map_open(path, &map, &err), STATUS_INPUT); /* and does not wait for somebody to write to it */
	unlink(path);
	err_clear(&err);
	assert_int_equal(file_read("/tmp", 5, &text, &err), STATUS_INPUT);
	err_clear(&err);
	assert_int_equal(file_read("/dev/null/x", 5, &text, &err), STATUS_INPUT);
	err_clear(&err);
	assert_int_equal(file_write_atomic("/nonexistent/x", "a", 1, &err), STATUS_UNAVAILABLE);
	assert_true(file_machine_cpus() >= 1 && file_machine_memory_bytes() > 1 << 20);
	text_release(&text);
}

static void arenas_give_zeroed_aligned_blocks_that_never_move(void **state)
{
	struct arena arena = {0};
	char *first = arena_strndup(&arena, "first", 5);
	for (size_t i = 1; i < 300; i++) {
		unsigned char *block = arena_calloc(&arena, i, 100);
		assert_int_equal((uintptr_t)block % 64, 0);
		for (size_t k = 0; k < i * 100; k++)
			assert_int_equal(block[k], 0);
		memset(block, 0xFF, i * 100);
	}
	assert_string_equal(first, "first");
	arena_release(&arena);
	assert_null(arena.chunks);
	void *pages;
	struct err err = {0};
	assert_int_equal(mem_map(SIZE_MAX, &pages, &err), STATUS_NO_MEMORY);
	assert_null(pages);
}

static void *store_and_wake(void *ctx)
{
	_Atomic uint32_t *word = ctx;
	clock_sleep_ns(2000000);
	atomic_store(word, 1);
	wait_wake_all(word);
	return NULL;
}

static void waiting_ends_by_change_by_deadline_and_by_abort(void **state)
{
	_Atomic uint32_t word = 0, abort_word = 0;
	assert_true(wait_while_equal(&word, 5, 10, NULL, INT64_MAX));
	int64_t begin = clock_monotonic_ns();
	assert_false(wait_while_equal(&word, 0, 10, NULL, begin + 3000000));
	assert_true(clock_monotonic_ns() - begin >= 3000000);
	atomic_store(&abort_word, 1);
	assert_false(wait_while_equal(&word, 0, 10, &abort_word, INT64_MAX));
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, store_and_wake, &word), 0);
	assert_true(wait_while_equal(&word, 0, 10, NULL, clock_monotonic_ns() + 5000000000));
	pthread_join(thread, NULL);
}

static void times_are_shown_in_utc(void **state)
{
	char shown[CLOCK_UTC_BYTES];
	clock_format_utc(shown, 1700000000123456789);
	assert_string_equal(shown, "2023-11-14T22:13:20.123Z");
	clock_format_utc(shown, -1);
	assert_string_equal(shown, "1969-12-31T23:59:59.999Z");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_take_both_forms_lists_and_positionals),
		cmocka_unit_test(options_refuse_what_they_do_not_know),
		cmocka_unit_test(errors_keep_the_first_cause_and_gain_nouns),
		cmocka_unit_test(files_are_written_whole_and_read_with_limits),
		cmocka_unit_test(arenas_give_zeroed_aligned_blocks_that_never_move),
		cmocka_unit_test(waiting_ends_by_change_by_deadline_and_by_abort),
		cmocka_unit_test(times_are_shown_in_utc),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
