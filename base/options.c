/* Command-line parsing from a table, and its help text. */
#include "base/options.h"

#include <string.h>

static const struct option *find(const struct option *options, size_t count, const char *name, size_t len)
{
	for (size_t i = 0; i < count; i++)
		if (strlen(options[i].name) == len && memcmp(options[i].name, name, len) == 0)
			return &options[i];
	return NULL;
}

static enum status set_number(const struct option *option, const char *value, struct err *err)
{
	double number;
	long long whole = 0;
	bool ok;
	if (option->kind == OPTION_I64) {
		ok = text_to_i64(value, &whole);
		number = (double)whole;
	} else {
		ok = text_to_double(value, &number);
	}
	if (!ok || number < option->min || number > option->max) {
		char low[32], high[32];
		text_format_double(low, option->min);
		text_format_double(high, option->max);
		return err_set_code(err, STATUS_INPUT, "bad_option", "--%s: '%s' is not %s from %s to %s", option->name, value,
			option->kind == OPTION_I64 ? "a whole number" : "a number", low, high);
	}
	if (option->kind == OPTION_I64)
		*(long long *)option->target = whole;
	else
		*(double *)option->target = number;
	return STATUS_OK;
}

static enum status set_value(const struct option *option, const char *value, struct err *err)
{
	switch (option->kind) {
	case OPTION_STRING:
		if (option->min > 0 && !*value)
			return err_set_code(
				err, STATUS_INPUT, "bad_option", "--%s: must not be empty (%s)", option->name, option->placeholder);
		*(const char **)option->target = value;
		return STATUS_OK;
	case OPTION_STRING_LIST: {
		struct option_list *list = option->target;
		if (list->count == OPTION_LIST_MAX)
			return err_set_code(
				err, STATUS_INPUT, "bad_option", "--%s: given more than %d times", option->name, OPTION_LIST_MAX);
		list->items[list->count++] = value;
		return STATUS_OK;
	}
	default:
		return set_number(option, value, err);
	}
}

/* Flags: --name and --no-name. True when word was one. */
static bool set_flag(const struct option *options, size_t count, const char *word, size_t len)
{
	const struct option *option = find(options, count, word, len);
	bool value = true;
	if (!option && len > 3 && memcmp(word, "no-", 3) == 0) {
		option = find(options, count, word + 3, len - 3);
		value = false;
	}
	if (!option || option->kind != OPTION_FLAG)
		return false;
	*(bool *)option->target = value;
	return true;
}

enum status options_parse(const struct option *options, size_t count, int argc, char **argv, int first, const char **positionals,
	size_t positionals_max, size_t *positionals_count, struct err *err)
{
	size_t n_positionals = 0;
	bool only_positionals = false;
	for (int i = first; i < argc; i++) {
		const char *word = argv[i];
		if (only_positionals || word[0] != '-' || word[1] == '\0') {
			if (n_positionals == positionals_max)
				return err_set_code(err, STATUS_INPUT, "bad_option", "'%s' is one argument too many", word);
			positionals[n_positionals++] = word;
			continue;
		}
		if (strcmp(word, "--") == 0) {
			only_positionals = true;
			continue;
		}
		if (word[1] != '-')
			return err_set_code(err, STATUS_INPUT, "bad_option", "unknown option '%s'", word);
		word += 2;
		size_t len = strcspn(word, "=");
		const char *value = word[len] == '=' ? word + len + 1 : NULL;
		if (!value && set_flag(options, count, word, len))
			continue;
		const struct option *option = find(options, count, word, len);
		if (!option)
			return err_set_code(err, STATUS_INPUT, "bad_option", "unknown option '--%.*s'", (int)len, word);
		if (option->kind == OPTION_FLAG)
			return err_set_code(err, STATUS_INPUT, "bad_option", "--%s takes no value", option->name);
		if (!value && i + 1 == argc)
			return err_set_code(
				err, STATUS_INPUT, "bad_option", "--%s needs a value (%s)", option->name, option->placeholder);
		enum status status = set_value(option, value ? value : argv[++i], err);
		if (status)
			return status;
	}
	if (positionals_count)
		*positionals_count = n_positionals;
	return STATUS_OK;
}

void options_help(const struct option *options, size_t count, struct text *out)
{
	size_t widest = 0;
	for (size_t i = 0; i < count; i++) {
		size_t width = strlen(options[i].name) + (options[i].placeholder ? 1 + strlen(options[i].placeholder) : 0);
		if (width > widest)
			widest = width;
	}
	for (size_t i = 0; i < count; i++) {
		struct text left = {0};
		text_printf(&left, "%s%s%s", options[i].name, options[i].placeholder ? " " : "",
			options[i].placeholder ? options[i].placeholder : "");
		text_printf(out, "  --%-*s  %s\n", (int)widest, text_str(&left), options[i].help);
		text_release(&left);
	}
}
