/* Waitable words: changes are seen, sleepers are woken, nobody sleeps for ever, and no wake-up gets lost. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/wait.h"
#include "base/wait_word.h"

#define SECOND_NS 1000000000LL

static void a_changed_word_is_not_waited_for(void **state)
{
	struct wait_word word = {0};
	wait_word_set(&word, 7);
	assert_int_equal(wait_word_get(&word), 7);
	assert_true(wait_word_while_equal(&word, 0, 0, NULL, 0));
	assert_int_equal(atomic_load(&word.sleepers), 0);
}

static void a_wait_ends_at_its_deadline(void **state)
{
	struct wait_word word = {0};
	int64_t start_ns = clock_monotonic_ns();
	assert_false(wait_word_while_equal(&word, 0, 100, NULL, start_ns + 30000000));
	int64_t took_ns = clock_monotonic_ns() - start_ns;
	assert_true(took_ns >= 30000000 && took_ns < 2 * SECOND_NS);
	assert_int_equal(atomic_load(&word.sleepers), 0);
}

static void a_wait_ends_when_the_abort_word_is_set(void **state)
{
	struct wait_word word = {0};
	_Atomic uint32_t abort_word = 1;
	int64_t start_ns = clock_monotonic_ns();
	assert_false(wait_word_while_equal(&word, 0, 100, &abort_word, INT64_MAX));
	assert_true(clock_monotonic_ns() - start_ns < 2 * SECOND_NS);
}

/* Two threads pass a number back and forth. */
struct table {
	struct wait_word there, back;
	uint32_t first, n, spins;
	bool failed;
};

static void *answer(void *argument)
{
	struct table *table = argument;
	int64_t deadline_ns = clock_monotonic_ns() + 30 * SECOND_NS;
	for (uint32_t i = 0; i < table->n; i++) {
		uint32_t value = table->first + i;
		if (!wait_word_while_equal(&table->there, value, table->spins, NULL, deadline_ns)) {
			table->failed = true;
			return NULL;
		}
		wait_word_set(&table->back, value + 1);
	}
	return NULL;
}

static void pass_back_and_forth(uint32_t first, uint32_t n, uint32_t spins)
{
	struct table table = {.first = first, .n = n, .spins = spins};
	pthread_t thread;
	bool good = true;
	int64_t deadline_ns = clock_monotonic_ns() + 30 * SECOND_NS;
	wait_word_set(&table.there, first);
	wait_word_set(&table.back, first);
	assert_int_equal(pthread_create(&thread, NULL, answer, &table), 0);
	for (uint32_t i = 0; i < n && good; i++) {
		wait_word_set(&table.there, first + i + 1);
		good = wait_word_while_equal(&table.back, first + i, spins, NULL, deadline_ns);
	}
	pthread_join(thread, NULL);
	assert_true(good);
	assert_false(table.failed);
	assert_int_equal(atomic_load(&table.there.sleepers), 0);
	assert_int_equal(atomic_load(&table.back.sleepers), 0);
}

static void no_wake_up_is_lost_between_sleepers(void **state)
{
	/* A lost one costs 20 ms each time, the most that a sleep lasts: 20000 of them would pass the deadline. */
	pass_back_and_forth(0, 20000, 0);
}

static void no_wake_up_is_lost_between_spinners_and_the_count_may_wrap(void **state)
{
	pass_back_and_forth(UINT32_MAX - 100, 5000, wait_default_spins(2));
}

/* One wait that is woken out of its sleep. */
struct sleeper {
	struct wait_word word;
	_Atomic pid_t thread;
	_Atomic int64_t woken_ns;
};

static void *sleep_once(void *argument)
{
	struct sleeper *sleeper = argument;
	atomic_store(&sleeper->thread, (pid_t)syscall(SYS_gettid));
	wait_word_while_equal(&sleeper->word, 0, 0, NULL, clock_monotonic_ns() + 30 * SECOND_NS);
	atomic_store(&sleeper->woken_ns, clock_monotonic_ns());
	return NULL;
}

/* The kernel's word for a thread's state: 'S' while it sleeps. */
static bool is_asleep(pid_t thread)
{
	char path[64], text[256];
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
	FILE *file = fopen(path, "r");
	if (file == NULL)
		return false;
	size_t n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = '\0';
	const char *state = strrchr(text, ')');
	return state != NULL && state[1] == ' ' && state[2] == 'S';
}

/* From the change of the word to the end of the sleep. */
static int64_t time_one_wake_up(void)
{
	struct sleeper sleeper = {0};
	pthread_t thread;
	int64_t deadline_ns = clock_monotonic_ns() + 10 * SECOND_NS;
	assert_int_equal(pthread_create(&thread, NULL, sleep_once, &sleeper), 0);
	while ((atomic_load(&sleeper.word.sleepers) == 0 || !is_asleep(atomic_load(&sleeper.thread))) &&
		clock_monotonic_ns() < deadline_ns)
		sched_yield();
	int64_t set_ns = clock_monotonic_ns();
	wait_word_set(&sleeper.word, 1);
	pthread_join(thread, NULL);
	return atomic_load(&sleeper.woken_ns) - set_ns;
}

static void a_sleeper_is_woken_by_the_change_and_not_by_its_own_clock(void **state)
{
	/* A sleep ends by itself after 20 ms. Most wake-ups must be far below that; a busy machine may delay a few. */
	int n_prompt = 0;
	for (int i = 0; i < 15; i++)
		n_prompt += time_one_wake_up() < 8000000;
	assert_true(n_prompt >= 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_changed_word_is_not_waited_for),
		cmocka_unit_test(a_wait_ends_at_its_deadline),
		cmocka_unit_test(a_wait_ends_when_the_abort_word_is_set),
		cmocka_unit_test(no_wake_up_is_lost_between_sleepers),
		cmocka_unit_test(a_sleeper_is_woken_by_the_change_and_not_by_its_own_clock),
		cmocka_unit_test(no_wake_up_is_lost_between_spinners_and_the_count_may_wrap),
	};
	return cmocka_run_group_tests_name("wait_word", tests, NULL, NULL);
}
