/* A run that is killed at random moments loses nothing that was saved, does nothing twice, and leaves no process.
 * usage: test_kills [POINTS [SEED]]: how many moments (20), and where they begin to be drawn from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

#define MS ((int64_t)1000000)
#define POINTS 20
#define KILL_AFTER_MS_MAX 700 /* some launches of the stub */
#define ARMS 4
#define BLOCKS 2
#define LAUNCHES_MAX (ARMS * BLOCKS - 1) /* the arm that cannot start is not started again */

struct kills {
	int points, done;
	uint64_t seed;
};

/* The folder's name among the stub's arguments tells its processes from those of other tests. */
static void open_bed(struct run_bed *bed, char log_path[96])
{
	const char *stub[] = {"--token-ms", "1", "--request-log", log_path, NULL};
	struct stub_experiment options = {.stub = stub,
		.baseline = "{\"speculation\": \"off\", \"mem_fraction\": 0.9}",
		.matrix =
			"{\"mode\": \"ofat\", \"factors\": {\"speculation\": [\"off\", \"ngram\"], \"mem_fraction\": [0.9, 0.2]}}",
		.protocol = "{\"blocks\": 2, \"max_blocks\": 2, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1}, "
			    "\"stall_s\": 5, \"run_timeout_s\": 20}"};
	snprintf(log_path, 96, "/dev/null");
	run_bed_open(bed, &options);
	snprintf(log_path, 96, "%s/posts", bed->folder);
	struct text text = {0};
	stub_experiment_text(&options, &text);
	assert_int_equal(file_write_atomic(bed->file, text.data, text.len, NULL), STATUS_OK);
	text_release(&text);
}

/* Runs on, killed after so many milliseconds. False: it had ended by itself before. */
static bool run_and_kill(const struct run_bed *bed, int64_t after_ms)
{
	const char *arguments[] = {"run", bed->file, "--db", bed->db, "--resume", NULL};
	pid_t pid = support_spawn(arguments), ended = 0;
	int wait_status = 0;
	int64_t until_ns = clock_monotonic_ns() + after_ms * MS;
	while (!ended && clock_monotonic_ns() < until_ns) {
		clock_sleep_ns(MS);
		ended = waitpid(pid, &wait_status, WNOHANG);
	}
	if (ended) {
		assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
		return false;
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &wait_status, 0), pid);
	int64_t killed_ns = clock_monotonic_ns();
	while (run_bed_count_stubs(bed->folder) > 0 && clock_monotonic_ns() < killed_ns + 10000 * MS)
		clock_sleep_ns(5 * MS);
	if (clock_monotonic_ns() - killed_ns > 2000 * MS)
		fail_msg("killed after %d ms, processes were left for %d ms", (int)after_ms,
			(int)((clock_monotonic_ns() - killed_ns) / MS));
	return true;
}

/* Launches that are saved now must all be there later, once each. */
static void check_launches(const struct run_bed *bed, struct text *before)
{
	struct text now = {0};
	if (!file_exists(bed->db))
		return;
	run_bed_list_launches(bed, &now);
	if (strncmp(text_str(&now), text_str(before), before->len) != 0)
		fail_msg("'%s' has become '%s'", text_str(before), text_str(&now));
	for (int block = 0; block < BLOCKS; block++)
		for (int arm = 0; arm < ARMS; arm++) {
			char cell[32];
			snprintf(cell, sizeof(cell), "%d.%d.0 ", block, arm);
			if (run_bed_count_of(&now, cell) > 1)
				fail_msg("launch %sis there twice: %s", cell, text_str(&now));
		}
	text_clear(before);
	text_append(before, text_str(&now), now.len);
	text_release(&now);
}

/* One experiment from its beginning to its end, killed on the way. */
static void run_to_the_end(struct kills *kills)
{
	struct run_bed bed;
	struct text launches = {0}, errors = {0};
	char log_path[96];
	open_bed(&bed, log_path);
	while (kills->done < kills->points) {
		int64_t after_ms = (int64_t)random_below(kills->seed, 0, (uint64_t)kills->done, KILL_AFTER_MS_MAX);
		if (!run_and_kill(&bed, after_ms))
			break;
		kills->done++;
		check_launches(&bed, &launches);
	}
	struct json *document = NULL;
	if (run_bed_run(&bed, "--resume", &document, &errors) != 0)
		fail_msg("%s", text_str(&errors));
	check_launches(&bed, &launches);
	assert_int_equal(run_bed_count_of(&launches, " "), LAUNCHES_MAX);
	assert_int_equal(json_count(json_get(document, "verdicts")), ARMS - 1);
	json_free(document);
	text_release(&launches);
	text_release(&errors);
	run_bed_close(&bed);
}

static void a_run_killed_at_random_moments_loses_and_repeats_nothing(void **state)
{
	struct kills *kills = *state;
	print_message("%d moments, seed %llu\n", kills->points, (unsigned long long)kills->seed);
	int experiments = 0;
	for (; kills->done < kills->points; experiments++)
		run_to_the_end(kills);
	print_message("%d experiments were killed %d times\n", experiments, kills->done);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	struct kills kills = {.points = argc > 1 ? (int)strtol(argv[1], NULL, 10) : POINTS,
		.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : random_entropy()};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(a_run_killed_at_random_moments_loses_and_repeats_nothing, &kills),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
