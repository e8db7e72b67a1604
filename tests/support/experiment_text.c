/* Experiments from short texts. See experiment_text.h. */
#include "tests/support/experiment_text.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static enum status parse(const char *text, const struct experiment_overrides *overrides, struct experiment **out, struct err *err)
{
	char *copy = mem_strdup(text);
	for (char *c = copy; *c; c++)
		if (*c == '\'')
			*c = '"';
	enum status status = experiment_parse(copy, strlen(copy), "x.json", overrides, out, err);
	mem_free(copy);
	return status;
}

struct experiment *experiment_from_text_with(const char *text, const struct experiment_overrides *overrides)
{
	struct experiment *experiment = NULL;
	struct err err = {0};
	if (parse(text, overrides, &experiment, &err)) {
		fprintf(stderr, "%s\n", err.text);
		ASSERT(!"the text of a test is refused");
	}
	return experiment;
}

struct experiment *experiment_from_text(const char *text)
{
	return experiment_from_text_with(text, NULL);
}

const char *experiment_complaint(const char *text, struct err *err)
{
	struct experiment *experiment = NULL;
	err_clear(err);
	if (parse(text, NULL, &experiment, err) == STATUS_OK)
		experiment_release(experiment);
	return err->text;
}
