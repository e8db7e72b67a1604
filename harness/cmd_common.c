/* Options and texts that several commands share. See cmd_common.h. */
#include "harness/cmd_common.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/report.h"

void experiment_options_append(struct experiment_options *options, struct option *table, size_t *count)
{
	const struct option list[EXPERIMENT_OPTIONS_COUNT] = {
		{"set", OPTION_STRING_LIST, &options->set, 0, 0, "KEY.PATH=VALUE",
			"Change a value of the file, such as protocol.blocks=5; may be given again."},
		{"only", OPTION_STRING, &options->only, 1, 0, "ARM", "Only this candidate, beside the baseline and its twin."},
		{"model", OPTION_STRING, &options->model, 1, 0, "PATH", "Model to use instead of the file's."},
		{"quick", OPTION_FLAG, &options->quick, 0, 0, NULL,
			"Three blocks, one run a launch, short outputs; marked so in the store."},
	};
	memcpy(table + *count, list, sizeof list);
	*count += EXPERIMENT_OPTIONS_COUNT;
}

struct experiment_overrides experiment_options_overrides(const struct experiment_options *options)
{
	return (struct experiment_overrides){.quick = options->quick,
		.set = options->set.items,
		.n_set = options->set.count,
		.only = options->only,
		.model = options->model};
}

enum status cmd_print_help(const char *before, const struct option *options, size_t count, const char *after, struct err *err)
{
	struct text text = {0};
	text_printf(&text, "%s\n", before);
	options_help(options, count, &text);
	text_append_str(&text, after);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

void cmd_builtin_engine(struct text *out)
{
	char path[4096];
	ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
	const char *slash = len > 0 ? memrchr(path, '/', (size_t)len) : NULL;
	text_append(out, path, slash ? (size_t)(slash + 1 - path) : 0);
	text_append_str(out, "verdict-engine");
}

enum status cmd_require_database(const char *db, struct err *err)
{
	if (file_exists(db))
		return STATUS_OK;
	return err_set(err, STATUS_NOT_FOUND, "there is no database '%s' (verdict run makes one; --db names another)", db);
}
