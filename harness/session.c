/* What the commands that launch engines share. See session.h. */
#include "harness/session.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/artifact.h"
#include "harness/cmd_common.h"
#include "harness/engine_version.h"
#include "harness/help_check.h"
#include "harness/pin.h"
#include "harness/plan.h"
#include "harness/report.h"
#include "harness/run_loop.h"
#include "harness/target.h"

#define VERSION_MS_MAX 10000 /* guess: a program that is read from a slow disk for the first time */

extern char **environ;

/* ---- what is measured ---- */

static const char *search_path(void)
{
	for (char **entry = environ; *entry; entry++)
		if (text_starts_with(*entry, "PATH="))
			return *entry + strlen("PATH=");
	return NULL;
}

/* Path of the program that an engine is launched with; of a server that runs already only the address is known. */
static enum status find_program(const struct session *session, const struct engine_spec *engine, struct text *out, struct err *err)
{
	text_clear(out);
	if (!target_of_engine(engine)->launches) {
		text_append_str(out, engine->url);
		return STATUS_OK;
	}
	const char *name = engine->command.count ? engine->command.items[0] : text_str(&session->engine_program);
	if (!artifact_find_program(name, search_path(), out))
		return err_set(err, STATUS_UNAVAILABLE, "engine program '%s' does not exist or cannot be run", name);
	return STATUS_OK;
}

static void hash_text(const struct text *text, char out[SHA256_HEX_BYTES])
{
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	sha256_update(&sha, text_str(text), text->len);
	sha256_finish(&sha, digest);
	sha256_hex(digest, out);
}

/* A missing program is found out before anything is stored: with it no arm could be launched. Where engines are compared, the
 * hash is of all of them: a result must not be resumed with another build of any. */
static enum status find_engine(struct session *session, struct err *err)
{
	const struct experiment *experiment = session->experiment;
	cmd_builtin_engine(&session->engine_program);
	enum status status = find_program(session, &experiment->engine, &session->engine_found, err);
	if (!status && target_of_engine(&experiment->engine)->tells_version)
		engine_version_ask(text_str(&session->engine_found), VERSION_MS_MAX, &session->engine_version);
	session->build =
		(struct build_facts){.program = text_str(&session->engine_found), .version = text_str(&session->engine_version)};
	if (!status)
		status = artifact_hash(session->build.program, NULL, session->build.hash, err);
	struct text hashes = {0}, program = {0};
	for (size_t i = 0; i < experiment->n_engines && !status; i++) {
		char hash[SHA256_HEX_BYTES];
		status = find_program(session, &experiment->engines[i], &program, err);
		if (!status)
			status = artifact_hash(text_str(&program), NULL, hash, err);
		if (!status)
			text_append_str(&hashes, hash);
	}
	if (!status && experiment->n_engines)
		hash_text(&hashes, session->build.hash);
	text_release(&hashes);
	text_release(&program);
	return status;
}

static enum status find_model(struct session *session, struct err *err)
{
	const struct engine_spec *engine = &session->experiment->engine;
	if (!engine->model)
		return STATUS_OK;
	/* "shape:llama-8b-bf16" is a model that the engine makes up, the same for the same name: the name is its identity. */
	bool made_up = text_starts_with(engine->model, "shape:");
	if (text_equal(engine->adapter, "builtin") && !made_up && !file_exists(engine->model))
		return err_set(
			err, STATUS_UNAVAILABLE, "model '%s' does not exist (make model fetches the small one)", engine->model);
	struct text cache = {0};
	text_printf(&cache, "%s-hashes.json", session->db);
	enum status status = artifact_hash(engine->model, text_str(&cache), session->model_hash, err);
	text_release(&cache);
	return status;
}

const char *session_model_name(const struct session *session)
{
	const char *model = session->experiment->engine.model;
	const char *slash = model ? strrchr(model, '/') : NULL;
	return slash ? slash + 1 : model ? model : "";
}

/* ---- results ---- */

enum status session_print(struct session *session, struct err *err)
{
	struct json *shown = NULL;
	enum status status = store_show(session->store, session->experiment_id, &shown, err);
	if (status)
		return status;
	if (session->json) {
		struct json *document = report_run_json(shown);
		status = report_print_json(document, err);
		json_free(document);
	} else {
		struct text text = {0};
		text_append_char(&text, '\n');
		report_experiment(shown, session->db, report_style_for(STDOUT_FILENO, environ), &text);
		status = report_print(&text, err);
		text_release(&text);
	}
	json_free(shown);
	return status;
}

/* ---- running ---- */

static enum status announce(struct session *session, struct progress *progress, bool resumed, struct err *err)
{
	const struct experiment *experiment = session->experiment;
	struct launch_cells cells = {0};
	enum status status = store_load_cells(session->store, session->experiment_id, experiment, &cells, err);
	int done = status ? 0 : run_loop_done(experiment, &cells), total = plan_launches(experiment, false);
	launch_cells_release(&cells);
	if (status)
		return status;
	progress_open(progress, STDERR_FILENO, experiment, done, total);
	double seconds = plan_seconds(experiment, PLAN_START_S_GUESS, PLAN_TOKENS_PER_S_GUESS) * (total > done ? total - done : 0) /
		(total > 0 ? total : 1);
	struct text text = {0};
	progress_headline(experiment, resumed ? done : 0, total, seconds, &text);
	file_write_all(STDERR_FILENO, text_str(&text), text.len, NULL);
	text_release(&text);
	for (size_t i = 0; i < experiment->notices.count; i++)
		progress_note(progress, "%s", experiment->notices.items[i]);
	return STATUS_OK;
}

enum status session_find(struct session *session, struct err *err)
{
	session->machine.facts = probe_linux.facts();
	probe_machine_hash(session->machine.facts, session->machine.hash);
	enum status status = find_engine(session, err);
	if (!status)
		status = find_model(session, err);
	if (!status)
		status = pin_check(session->experiment, err);
	return status ? status : help_check(session->experiment, &runner_local, environ, NULL, err);
}

enum status session_open(struct session *session, struct err *err)
{
	enum status status = interrupt_open(&session->interrupt, err);
	if (!status)
		status = client_create(&session->client, err);
	if (!status && !session->store)
		status = store_open(session->db, &session->store, err);
	return status;
}

/* Blocks that were added later are part of the plan from then on. */
static enum status extend(struct session *session, struct err *err)
{
	struct store_extension extensions[EXPERIMENT_EXTENSIONS_MAX];
	size_t count = 0;
	enum status status =
		store_extensions(session->store, session->experiment_id, extensions, EXPERIMENT_EXTENSIONS_MAX, &count, err);
	for (size_t i = 0; i < count && !status; i++)
		status = experiment_extend(session->experiment, extensions[i].from_blocks, extensions[i].to_blocks, err);
	return status;
}

enum status session_measure(struct session *session, bool resumed, struct err *err)
{
	struct progress progress = {.fd = -1};
	enum status status = extend(session, err);
	if (!status)
		status = announce(session, &progress, resumed, err);
	if (status)
		return status;
	struct measure measure = {
		.experiment = session->experiment,
		.runner = &runner_local,
		.probe = &probe_linux,
		.client = session->client,
		.interrupt = &session->interrupt,
		.engine_program = text_str(&session->engine_program),
		.environment = environ,
	};
	struct run_loop loop = {
		.experiment = session->experiment,
		.store = session->store,
		.experiment_id = session->experiment_id,
		.machine_hash = session->machine.hash,
		.measure = &measure,
		.progress = &progress,
	};
	status = run_loop_run(&loop, err);
	progress_close(&progress);
	/* A failed baseline is an answer too; what ended in between leaves rows for --resume to complete. */
	session->winner = loop.winner;
	session->launches = loop.launches;
	session->spent_s = loop.spent_s;
	if (!session->quiet && (status == STATUS_OK || status == STATUS_ANSWER_BAD)) {
		enum status printed = session_print(session, status ? NULL : err);
		status = status ? status : printed;
	}
	return status;
}

void session_close(struct session *session)
{
	store_close(session->store);
	client_destroy(session->client);
	interrupt_close(&session->interrupt);
	experiment_release(session->experiment);
	json_free(session->machine.facts);
	text_release(&session->engine_program);
	text_release(&session->engine_found);
	text_release(&session->engine_version);
}
