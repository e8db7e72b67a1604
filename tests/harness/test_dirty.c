/* Machines that do not come back after a launch: whole runs end with what is left by name, blame no setting for it, and go on with
 * the same experiment when the machine has recovered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/guard.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

#define SURVIVORS "VERDICT_TEST_SURVIVORS" /* set: guards say that one process did not die, as one stuck in the kernel does not */

/* ---- a guard that could not end everything ---- */

/* Passes one message on; false at the end. */
static bool pass(int from, int to, bool from_guard)
{
	char bytes[64];
	struct guard_message message;
	ssize_t got = recv(from, bytes, sizeof(bytes), 0);
	if (got <= 0)
		return false;
	if (from_guard && got == (ssize_t)sizeof(message)) {
		memcpy(&message, bytes, sizeof(message));
		message.code = message.event == GUARD_CLEAN ? 1 : message.code;
		memcpy(bytes, &message, sizeof(message));
	}
	return send(to, bytes, (size_t)got, MSG_NOSIGNAL) == got;
}

/* A real guard, behind a process that changes its last word. */
static int guard_with_survivors(void)
{
	int inner[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, inner) != 0)
		return 1;
	pid_t guard = fork();
	if (guard == 0) {
		dup2(inner[1], GUARD_CONTROL_FD);
		close(inner[0]);
		_exit(guard_run());
	}
	close(inner[1]);
	struct pollfd fds[] = {{.fd = GUARD_CONTROL_FD, .events = POLLIN}, {.fd = inner[0], .events = POLLIN}};
	bool ended = false;
	while (!ended && poll(fds, 2, -1) > 0) {
		if (fds[1].revents)
			ended = !pass(inner[0], GUARD_CONTROL_FD, true);
		else if (fds[0].revents)
			ended = !pass(GUARD_CONTROL_FD, inner[0], false);
	}
	close(inner[0]); /* to the guard this is our death */
	return waitpid(guard, NULL, 0) == guard ? 0 : 1;
}

/* ---- tests ---- */

static void processes_that_did_not_die_end_the_run_and_a_resumed_one_goes_on(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0}, launches = {0};
	run_bed_open(&bed,
		&(struct stub_experiment){.matrix = "{\"factors\": {\"speculation\": [\"off\", \"ngram\"]}, \"aa_twin\": false}",
			.protocol = "{\"blocks\": 2, \"max_blocks\": 2, \"runs_per_launch\": 1, \"warmup\": "
				    "{\"requests_per_slot\": 0}}",
			.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"});
	setenv(SURVIVORS, "1", 1);
	int code = run_bed_run(&bed, NULL, &document, &errors);
	unsetenv(SURVIVORS);
	assert_int_equal(code, 3);
	assert_non_null(strstr(text_str(&errors), "the machine did not come back after "));
	assert_non_null(strstr(text_str(&errors), ": processes of the engine are left"));
	json_free(document);
	/* The launch that left something was itself measured well, and is blamed for nothing. */
	document = run_bed_show(&bed);
	const struct json *first = json_get(document, "launches");
	assert_int_equal(json_count(first), 1);
	assert_string_equal(json_text(json_get(json_at(first, 0), "failure")), "none");
	assert_int_equal(json_int(json_get(json_at(first, 0), "machine_dirty"), 0), 1);
	json_free(document);
	text_clear(&errors);
	assert_int_equal(run_bed_run(&bed, "--resume", &document, &errors), 0);
	assert_string_not_equal(json_text(json_get(run_bed_row(document, "speculation", "ngram"), "verdict")), "failed");
	run_bed_list_launches(&bed, &launches);
	assert_int_equal(run_bed_count_of(&launches, " "), 2 * 2);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&bed);
}

int main(int argc, char **argv)
{
	int code;
	if (argc > 1 && strcmp(argv[1], GUARD_COMMAND) == 0 && getenv(SURVIVORS))
		return guard_with_survivors();
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(processes_that_did_not_die_end_the_run_and_a_resumed_one_goes_on),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
