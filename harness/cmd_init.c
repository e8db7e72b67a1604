/* `verdict init -- COMMAND…`: a first experiment file from a command line that people already run. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/init.h"
#include "harness/init_llama_bench.h"
#include "harness/init_sweep.h"
#include "harness/report.h"

#define SWEEP_BYTES_MAX ((size_t)1 << 20)

static const char help_text[] =
	"usage: verdict init [options] -- COMMAND [ARGUMENT…]\n"
	"\n"
	"Writes an experiment file for a server that you start like this: what its flags set becomes the baseline, and each knob "
	"that\n"
	"usually matters gets one or two candidates. Knows vllm serve, python -m sglang.launch_server, llama-server and "
	"verdict-engine\n"
	"serve, with variables (NAME=value) or a wrapper before them, and llama-bench, whose grid is run on llama-server. Nothing "
	"is launched, and no file is overwritten.\n";

static const char help_end[] = "\n"
			       "Example: verdict init -- vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 256\n"
			       "         verdict plan experiment.json\n";

/* What is written must be what `check` accepts, and the experiment says what it holds. */
static enum status check(const struct text *text, const char *source, struct experiment **out, struct err *err)
{
	if (experiment_parse(text_str(text), text->len, source, NULL, out, err))
		return err_add(err, "no experiment can be made of this command line");
	return STATUS_OK;
}

/* O_EXCL: a file that appears meanwhile is not lost either. */
static enum status write_new(const char *path, const struct text *text, struct err *err)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0 && errno == EEXIST)
		return err_set(err, STATUS_INPUT, "'%s' exists already and is not overwritten; --output names another file", path);
	if (fd < 0)
		return err_set_errno(err, STATUS_INPUT, errno, "creating '%s'", path);
	enum status status = file_write_all(fd, text_str(text), text->len, err);
	if (close(fd) != 0 && !status)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "writing '%s'", path);
	if (status)
		unlink(path);
	return status;
}

static enum status tell(const struct experiment *experiment, const char *path, const struct text *notes, struct err *err)
{
	int candidates = 0;
	for (int i = 0; i < experiment->n_arms; i++)
		candidates += experiment->arms[i].kind == ARM_CANDIDATE;
	struct text text = {0};
	text_printf(&text, "%s: %d setting%s to compare with the command line as given\n", path, candidates,
		candidates == 1 ? "" : "s");
	text_append_str(&text, text_str(notes));
	text_printf(&text, "next: verdict plan %s\n", path);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

static enum status apply_sweep(struct json *document, const char *sweep, struct err *err)
{
	struct text text = {0};
	struct json *entries = NULL;
	enum status status = file_read(sweep, SWEEP_BYTES_MAX, &text, err);
	if (!status)
		status = json_parse(text_str(&text), text.len, sweep, &entries, err);
	if (!status)
		status = init_apply_sweep(document, entries, sweep, err);
	json_free(entries);
	text_release(&text);
	return status;
}

static enum status init(const struct init_request *request, const char *sweep, const char *path, struct err *err)
{
	struct json *document = NULL;
	struct experiment *experiment = NULL;
	struct text text = {0}, notes = {0};
	bool bench = init_is_llama_bench(request);
	enum status status =
		bench ? init_llama_bench(request, &document, &notes, err) : init_document(request, &document, &notes, err);
	if (!status && sweep)
		status = apply_sweep(document, sweep, err);
	if (!status) {
		json_write(document, JSON_STYLE_PRETTY, &text);
		text_append_char(&text, '\n');
		status = check(&text, path, &experiment, err);
	}
	if (!status && text_equal(path, "-"))
		status = report_print(&text, err);
	else if (!status)
		status = write_new(path, &text, err);
	if (!status && !text_equal(path, "-"))
		status = tell(experiment, path, &notes, err);
	experiment_release(experiment);
	json_free(document);
	text_release(&text);
	text_release(&notes);
	return status;
}

enum status cmd_init(int argc, char **argv, struct err *err)
{
	const char *words[INIT_WORDS_MAX];
	struct init_request request = {.words = words, .cpus = (int)sysconf(_SC_NPROCESSORS_ONLN)};
	const char *path = "experiment.json", *sweep = NULL;
	bool help = false;
	const struct option options[] = {
		{"output", OPTION_STRING, &path, 1, 0, "FILE", "File to write (default experiment.json); - prints it."},
		{"name", OPTION_STRING, &request.name, 1, 0, "NAME", "Name of the experiment (default: engine and model)."},
		{"sweep", OPTION_STRING, &sweep, 1, 0, "FILE", "Take the candidates from a parameter file of vllm bench sweep."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0];
	enum status status = options_parse(options, n_options, argc, argv, 2, words, INIT_WORDS_MAX, &request.n_words, err);
	if (!status && help)
		return cmd_print_help(help_text, options, n_options, help_end, err);
	if (!status && !request.n_words)
		status = err_set(err, STATUS_INPUT, "init needs a command line after -- (see verdict init --help)");
	return status ? status : init(&request, sweep, path, err);
}
