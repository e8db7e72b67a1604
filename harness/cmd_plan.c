/* `verdict plan FILE`: what `run` would launch, in which order, with which commands, and how long it would take. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/plan.h"
#include "harness/report.h"
#include "harness/report_format.h"
#include "harness/store.h"
#include "harness/target.h"

static const char help_text[] =
	"usage: verdict plan FILE [options]\n"
	"\n"
	"Prints the arms with their exact commands, the loads, the order of launches and an estimate of the time, and launches "
	"nothing.\n"
	"The estimate comes from earlier launches of the same experiment in the database, or is a guess that says so.\n";

struct plan_command {
	struct experiment_options experiment_options;
	const char *db;
	bool as_json, help;
	struct experiment *experiment;
	struct string_vector *commands; /* [n_arms] */
	double launch_s; /* mean of earlier launches; NaN when there are none */
	double total_s;
};

/* The mean of earlier launches holds for a plan as a whole, so single arms need no model of their own. */
static enum status estimate(struct plan_command *command, struct err *err)
{
	const struct experiment *experiment = command->experiment;
	struct store *store = NULL;
	enum status status = STATUS_OK;
	command->launch_s = NAN;
	if (file_exists(command->db)) {
		status = store_open_to_read(command->db, &store, err);
		if (!status)
			status = store_launch_seconds(store, experiment->hash, &command->launch_s, err);
		store_close(store);
	}
	if (isnan(command->launch_s))
		command->total_s = plan_seconds(experiment, PLAN_START_S_GUESS, PLAN_TOKENS_PER_S_GUESS);
	else
		command->total_s = plan_launches(experiment, false) * (command->launch_s + experiment->protocol.cooldown_s);
	return status;
}

static enum status build_commands(struct plan_command *command, struct err *err)
{
	struct text engine = {0};
	enum status status = STATUS_OK;
	cmd_builtin_engine(&engine);
	command->commands = mem_calloc((size_t)command->experiment->n_arms, sizeof *command->commands);
	for (int i = 0; i < command->experiment->n_arms && !status; i++) {
		const struct target_launch launch = {command->experiment, &command->experiment->arms[i], text_str(&engine), 0};
		status = target_command(&launch, &command->commands[i], err);
	}
	text_release(&engine);
	return status;
}

static void append_words(struct text *out, const struct string_vector *words)
{
	for (size_t i = 0; i < words->count; i++) {
		const char *word = words->items[i];
		bool quoted = !*word || strpbrk(word, " \t\n'\"\\`") != NULL;
		text_printf(out, "%s%s%s%s", i ? " " : "", quoted ? "'" : "", word, quoted ? "'" : "");
	}
}

/* "4 requests/s", "1 to 8 requests/s". */
static void append_rate(struct text *out, const struct schedule *schedule)
{
	char from[32], to[32];
	text_format_double(from, schedule->rate);
	text_format_double(to, schedule->rate_end);
	if (schedule->rate == schedule->rate_end)
		text_printf(out, "%s requests/s", from);
	else
		text_printf(out, "%s to %s requests/s", from, to);
}

/* "8 in flight", "Poisson arrivals at 4 requests/s, at most 16 in flight". */
static void append_load(struct text *out, const struct workload *workload)
{
	const struct schedule *schedule = &workload->schedule;
	char number[32];
	switch (schedule->kind) {
	case SCHEDULE_CLOSED:
		text_printf(out, "%d in flight", workload->concurrency);
		return;
	case SCHEDULE_AT_ONCE:
		text_append_str(out, "all due at once");
		break;
	case SCHEDULE_TRACE:
		text_format_double(number, schedule->speed);
		text_printf(out, "arrivals of %s at %s times their speed over %.0f s", workload->path, number,
			workload_arrival_seconds(workload));
		break;
	case SCHEDULE_CONSTANT:
		text_append_str(out, "constant arrivals at ");
		append_rate(out, schedule);
		break;
	case SCHEDULE_GAMMA:
		text_format_double(number, schedule->burstiness);
		if (schedule->burstiness == 1)
			text_append_str(out, "Poisson arrivals at ");
		else
			text_printf(out, "gamma arrivals (burstiness %s) at ", number);
		append_rate(out, schedule);
		break;
	}
	if (workload->concurrency)
		text_printf(out, ", at most %d in flight", workload->concurrency);
}

/* A length, or the range that jitter makes of it. */
static void append_length(struct text *out, int length, double jitter)
{
	int reach = (int)(length * jitter), low = length - reach > 1 ? length - reach : 1;
	if (reach)
		text_printf(out, "%d to %d", low, length + reach);
	else
		text_printf(out, "%d", length);
}

static void append_prompts(struct text *out, const struct workload *workload)
{
	if (workload->dataset == DATASET_SHARED_PREFIX)
		text_printf(
			out, "prompts of %d groups, each sharing %d random tokens before ", workload->groups, workload->prefix_len);
	else if (workload->dataset == DATASET_RANDOM_IDS)
		text_append_str(out, "prompts of ");
	if (workload->dataset == DATASET_TRACE) {
		text_printf(out, "prompts and answers as long as the trace says, seed %llu", (unsigned long long)workload->seed);
	} else if (workload->prompts.count) {
		text_printf(out, "%zu prompts", workload->prompts.count);
	} else {
		append_length(out, workload->input_len, workload->jitter);
		text_printf(out, " %s, seed %llu", workload->dataset == DATASET_SHARED_PREFIX ? "of their own" : "random tokens",
			(unsigned long long)workload->seed);
	}
}

static void append_goodput(struct text *out, const struct goodput_limits *limits)
{
	const struct {
		const char *name;
		double ms;
	} all[] = {{"TTFT", limits->ttft_ms}, {"TPOT", limits->tpot_ms}, {"E2E", limits->e2e_ms}};
	const char *before = ", good within ";
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		if (all[i].ms <= 0)
			continue;
		text_printf(out, "%s%s %g ms", before, all[i].name, all[i].ms);
		before = " and ";
	}
}

static void append_workload(struct text *out, const struct experiment *experiment, const struct workload *workload)
{
	int runs = experiment->protocol.runs_per_launch;
	text_printf(out, "  %s: %s, ", workload->name, workload->endpoint);
	append_load(out, workload);
	text_printf(out, ", %d requests of at most ", workload->requests);
	append_length(out, workload->output_len, workload->jitter);
	text_printf(out, " tokens, %d measured run%s a launch, ", runs, runs == 1 ? "" : "s");
	append_prompts(out, workload);
	append_goodput(out, &workload->goodput);
	text_append_char(out, '\n');
}

static void append_order(struct text *out, const struct experiment *experiment)
{
	struct plan_launch launches[EXPERIMENT_ARMS_MAX];
	text_append_str(out, "\norder\n");
	for (int block = 0; block < experiment->protocol.blocks; block++) {
		int count = plan_block(experiment, block, NULL, launches);
		text_printf(out, "  block %d: ", block + 1);
		for (int i = 0; i < count; i++)
			text_printf(out, "%s%s", i ? ", " : "", experiment->arms[launches[i].arm].name);
		text_append_char(out, '\n');
	}
	if (experiment->protocol.max_blocks > experiment->protocol.blocks)
		text_printf(out, "  up to %d blocks while something is undecided\n", experiment->protocol.max_blocks);
}

static enum status print_text(const struct plan_command *command, struct err *err)
{
	const struct experiment *experiment = command->experiment;
	struct text text = {0};
	text_printf(&text, "%s: %d settings × %d blocks, %d launches, about ", experiment->name, experiment->n_arms,
		experiment->protocol.blocks, plan_launches(experiment, false));
	format_seconds(&text, command->total_s);
	if (isnan(command->launch_s))
		text_printf(
			&text, " (a guess: %.0f s to start, %.0f tok/s per slot)\n", PLAN_START_S_GUESS, PLAN_TOKENS_PER_S_GUESS);
	else
		text_append_str(&text, " (from earlier launches)\n");
	for (size_t i = 0; i < experiment->notices.count; i++)
		text_printf(&text, "note: %s\n", experiment->notices.items[i]);
	text_append_str(&text, "\nworkloads\n");
	for (int i = 0; i < experiment->n_workloads; i++)
		append_workload(&text, experiment, &experiment->workloads[i]);
	if (experiment->pin.client_text || experiment->pin.engine_text)
		text_printf(&text, "\npinned to CPUs: client %s, engine %s\n",
			experiment->pin.client_text ? experiment->pin.client_text : "any",
			experiment->pin.engine_text ? experiment->pin.engine_text : "any");
	text_append_str(&text, "\narms\n");
	for (int i = 0; i < experiment->n_arms; i++) {
		text_printf(&text, "  %s\n    ", experiment->arms[i].name);
		append_words(&text, &command->commands[i]);
		text_append_char(&text, '\n');
	}
	append_order(&text, experiment);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

static struct json *arm_json(const struct arm *arm, const struct string_vector *command)
{
	static const char *const kinds[] = {"baseline", "aa_twin", "candidate"};
	struct json *object = json_new_object(), *words = json_new_array(), *changed = json_new_object();
	for (size_t i = 0; i < command->count; i++)
		json_append(words, json_new_string(command->items[i]));
	for (size_t i = 0; i < arm->n_changed; i++)
		json_set(changed, arm->changed[i].knob, json_clone(arm->changed[i].value));
	json_set(object, "name", json_new_string(arm->name));
	json_set(object, "kind", json_new_string(kinds[arm->kind]));
	json_set(object, "changed", changed);
	json_set(object, "config_hash", json_new_string(arm->config_hash));
	json_set(object, "command", words);
	return object;
}

static struct json *launches_json(const struct experiment *experiment)
{
	struct plan_launch launches[EXPERIMENT_ARMS_MAX];
	struct json *array = json_new_array();
	for (int block = 0; block < experiment->protocol.blocks; block++) {
		int count = plan_block(experiment, block, NULL, launches);
		for (int i = 0; i < count; i++) {
			struct json *launch = json_new_object();
			json_set(launch, "block", json_new_integer(block));
			json_set(launch, "order", json_new_integer(launches[i].order));
			json_set(launch, "arm", json_new_string(experiment->arms[launches[i].arm].name));
			json_append(array, launch);
		}
	}
	return array;
}

static enum status print_json(const struct plan_command *command, struct err *err)
{
	const struct experiment *experiment = command->experiment;
	struct json *document = json_new_object(), *arms = json_new_array(), *workloads = json_new_array(),
		    *notices = json_new_array();
	for (int i = 0; i < experiment->n_arms; i++)
		json_append(arms, arm_json(&experiment->arms[i], &command->commands[i]));
	for (int i = 0; i < experiment->n_workloads; i++) {
		struct json *workload = workload_json(&experiment->workloads[i]);
		json_set(workload, "name", json_new_string(experiment->workloads[i].name));
		json_set(workload, "dataset", json_new_string(dataset_name(experiment->workloads[i].dataset)));
		json_set(workload, "arrival_seconds", json_new_number(workload_arrival_seconds(&experiment->workloads[i])));
		json_append(workloads, workload);
	}
	for (size_t i = 0; i < experiment->notices.count; i++)
		json_append(notices, json_new_string(experiment->notices.items[i]));
	json_set(document, "name", json_new_string(experiment->name));
	json_set(document, "hash", json_new_string(experiment->hash));
	json_set(document, "seconds", json_new_number(command->total_s));
	json_set(document, "seconds_are_a_guess", json_new_bool(isnan(command->launch_s)));
	json_set(document, "blocks", json_new_integer(experiment->protocol.blocks));
	json_set(document, "max_blocks", json_new_integer(experiment->protocol.max_blocks));
	json_set(document, "pin_client", json_new_string(experiment->pin.client_text));
	json_set(document, "pin_engine", json_new_string(experiment->pin.engine_text));
	json_set(document, "workloads", workloads);
	json_set(document, "arms", arms);
	json_set(document, "launches", launches_json(experiment));
	json_set(document, "notices", notices);
	enum status status = report_print_json(document, err);
	json_free(document);
	return status;
}

static void release(struct plan_command *command)
{
	for (int i = 0; command->commands && i < command->experiment->n_arms; i++)
		string_vector_release(&command->commands[i]);
	mem_free(command->commands);
	experiment_release(command->experiment);
}

enum status cmd_plan(int argc, char **argv, struct err *err)
{
	struct plan_command command = {.db = "results.db"};
	struct option options[EXPERIMENT_OPTIONS_COUNT + 3] = {
		{"db", OPTION_STRING, &command.db, 1, 0, "FILE", "Results database, for the estimate (default results.db)."},
		{"json", OPTION_FLAG, &command.as_json, 0, 0, NULL, "Print JSON."},
		{"help", OPTION_FLAG, &command.help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = 3, n_words = 0;
	const char *words[2];
	experiment_options_append(&command.experiment_options, options, &n_options);
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 2, &n_words, err);
	if (!status && command.help)
		return cmd_print_help(help_text, options, n_options, "", err);
	if (!status && n_words != 1)
		status = err_set(err, STATUS_INPUT, "plan takes one experiment file, got %zu (see verdict plan --help)", n_words);
	if (status)
		return status;
	const struct experiment_overrides overrides = experiment_options_overrides(&command.experiment_options);
	status = experiment_load(words[0], &overrides, &command.experiment, err);
	if (!status)
		status = build_commands(&command, err);
	if (!status)
		status = estimate(&command, err);
	if (!status)
		status = command.as_json ? print_json(&command, err) : print_text(&command, err);
	release(&command);
	return status;
}
