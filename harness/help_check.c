/* Looking for switches in --help. See help_check.h. */
#include "harness/help_check.h"

#include <ctype.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "harness/environment.h"
#include "harness/target.h"

#define HELP_TIMEOUT_S 120.0 /* guess: Python engines import for half a minute on a cold disk */

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '-' || c == '_';
}

static bool names_word(const char *help, const char *name)
{
	size_t len = strlen(name);
	for (const char *at = strstr(help, name); at; at = strstr(at + 1, name))
		if (!is_word(at[len]) && (at == help || !is_word(at[-1])))
			return true;
	return false;
}

/* vLLM lists "--disable-x" as the opposite of "--enable-x", and the other way round; it takes "--no-" before either all the same.
 */
static bool names_opposite(const char *help, const char *name)
{
	static const char *const pairs[][2] = {{"--no-enable-", "--disable-"}, {"--no-disable-", "--enable-"}};
	bool found = false;
	for (size_t i = 0; i < 2; i++) {
		struct text opposite = {0};
		if (text_starts_with(name, pairs[i][0]))
			text_printf(&opposite, "%s%s", pairs[i][1], name + strlen(pairs[i][0]));
		found = found || (opposite.len && names_word(help, text_str(&opposite)));
		text_release(&opposite);
	}
	return found;
}

bool help_names_switch(const char *help, const char *name)
{
	return names_word(help, name) || names_opposite(help, name);
}

/* The entry of a switch that the help lists under its earlier name; NULL: it does not. */
static const struct name_value *find_older(const struct target_ops *ops, const char *help, const char *name)
{
	for (size_t i = 0; i < ops->n_older_switches; i++) {
		const struct name_value *older = &ops->older_switches[i];
		char newer[64];
		if (ops->switch_of(ops, older->name, newer) && text_equal(newer, name) && names_word(help, older->value))
			return older;
	}
	return NULL;
}

enum status help_check_switch(const struct target_ops *ops, const char *help, const char *arm, const char *name, struct err *err)
{
	if (help_names_switch(help, name))
		return STATUS_OK;
	const struct name_value *older = find_older(ops, help, name);
	if (older)
		return err_set(err, STATUS_INPUT,
			"arm '%s' uses %s, which in this version of the engine is %s: write \"flags\": {\"%s\": \"%s\"} in "
			"\"engine\"",
			arm, name, older->value, older->name, older->value);
	return err_set(err, STATUS_INPUT, "arm '%s' uses %s, which the engine's %s does not list: this version has no such switch",
		arm, name, ops->help_word);
}

/* Appends what the command prints with its help word; nothing when that takes too long. */
static enum status read_help(const struct experiment *experiment, const struct arm *arm, const struct runner_ops *runner,
	char *const *environment, const char *guard_program, struct text *out, struct err *err)
{
	const struct engine_spec *engine = arm_engine(experiment, arm);
	struct string_vector arguments = {0}, overrides = {0}, variables = {0};
	struct json *record = NULL;
	struct launch *launch = NULL;
	struct arm bare = *arm;
	bare.n_settings = 0;
	const struct target_launch target = {experiment, &bare, NULL, 1};
	enum status status = target_command(&target, &arguments, err);
	string_vector_add(&arguments, target_of_engine(engine)->help_word);
	if (!status)
		status = target_environment(&target, &overrides, err);
	environment_build(environment, &overrides, target.port, "", &variables, &record);
	const struct launch_request request = {.arguments = &arguments, .environment = &variables, .guard_program = guard_program};
	if (!status)
		status = runner->start(&request, &launch, err);
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(HELP_TIMEOUT_S * 1e9);
	while (!status && !launch_update(launch)->exited && !launch_update(launch)->clean && clock_monotonic_ns() < until_ns) {
		struct pollfd wait = {.fd = launch_fd(launch), .events = POLLIN};
		poll(&wait, 1, 100);
	}
	if (launch) {
		launch_stop(launch, 1);
		logring_read(launch_log(launch), out);
		launch_destroy(launch);
	}
	string_vector_release(&arguments);
	string_vector_release(&overrides);
	string_vector_release(&variables);
	json_free(record);
	return status;
}

static enum status check_arm(const struct experiment *experiment, const struct arm *arm, const char *help, struct err *err)
{
	struct string_vector switches = {0};
	enum status status = STATUS_OK;
	target_switches(experiment, arm, &switches);
	for (size_t i = 0; i < switches.count && !status; i++)
		status = help_check_switch(target_of_engine(arm_engine(experiment, arm)), help, arm->name, switches.items[i], err);
	string_vector_release(&switches);
	return status;
}

enum status help_check(const struct experiment *experiment, const struct runner_ops *runner, char *const *environment,
	const char *guard_program, struct err *err)
{
	const struct engine_spec *asked = NULL;
	struct text help = {0};
	enum status status = STATUS_OK;
	/* Arms of one engine follow each other, so that few programs are asked twice. */
	for (int i = 0; i < experiment->n_arms && !status; i++) {
		const struct arm *arm = &experiment->arms[i];
		const struct engine_spec *engine = arm_engine(experiment, arm);
		if (!target_of_engine(engine)->help_word)
			continue;
		if (engine != asked) {
			asked = engine;
			text_clear(&help);
			status = read_help(experiment, arm, runner, environment, guard_program, &help, err);
		}
		/* Every server of these kinds has --port; a text without it is no list of switches. */
		if (!status && names_word(text_str(&help), "--port"))
			status = check_arm(experiment, arm, text_str(&help), err);
	}
	text_release(&help);
	return status;
}
