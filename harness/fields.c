/* Checking members by tables of rules. See fields.h. */
#include "harness/fields.h"

#include <math.h>
#include <string.h>

#include "base/text.h"

#define SHOWN_BYTES_MAX 40 /* of a value in a complaint */

/* "'nonsense'", "-1", "a list": what a value is, in a few words. */
static void describe(const struct json *value, struct text *out)
{
	const char *text = json_text(value);
	struct text shown = {0};
	if (text) {
		text_printf(out, "'%.*s%s'", SHOWN_BYTES_MAX, text, strlen(text) > SHOWN_BYTES_MAX ? "…" : "");
	} else if (json_is_number(value) || json_kind_of(value) == JSON_KIND_BOOL) {
		json_write(value, JSON_STYLE_COMPACT, &shown);
		text_append_str(out, text_str(&shown));
	} else {
		text_printf(out, "%s", value ? json_kind_name(json_kind_of(value)) : "missing");
	}
	text_release(&shown);
}

static enum status complain(const struct field *field, const struct json *value, const char *wanted, struct err *err)
{
	struct text is = {0};
	describe(value, &is);
	enum status status = err_set(err, STATUS_INPUT, "%s: must be %s, is %s", field->name, wanted, text_str(&is));
	text_release(&is);
	return status;
}

static bool is_listed(const char *text, const char *const *words)
{
	while (*words && !text_equal(*words, text))
		words++;
	return *words != NULL;
}

static enum status complain_of_words(const struct field *field, const struct json *value, struct err *err)
{
	struct text wanted = {0};
	text_append_str(&wanted, field->kind == FIELD_TEXT ? "one of " : "a number or one of ");
	for (size_t i = 0; field->words[i]; i++)
		text_printf(&wanted, "%s%s", i ? ", " : "", field->words[i]);
	enum status status = complain(field, value, text_str(&wanted), err);
	text_release(&wanted);
	return status;
}

static enum status check_text(const struct field *field, const struct json *value, struct err *err)
{
	const char *text = json_text(value);
	if (!text)
		return complain(field, value, "a text", err);
	if (strlen(text) != json_text_len(value))
		return err_set(err, STATUS_INPUT, "%s: must not contain a NUL character", field->name);
	if (field->words && !is_listed(text, field->words))
		return complain_of_words(field, value, err);
	if (field->kind == FIELD_NAME && !*text && !(field->flags & FIELD_OR_EMPTY))
		return err_set(err, STATUS_INPUT, "%s: must not be empty", field->name);
	for (; field->kind == FIELD_NAME && *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return err_set(err, STATUS_INPUT, "%s: must not contain control characters", field->name);
	return STATUS_OK;
}

static enum status check_number(const struct field *field, const struct json *value, struct err *err)
{
	bool right_kind = field->kind == FIELD_INTEGER ? json_kind_of(value) == JSON_KIND_INTEGER : json_is_number(value);
	double number = json_number(value, NAN);
	if (field->flags & FIELD_OR_TEXT && json_text(value))
		return is_listed(json_text(value), field->words) ? STATUS_OK : complain_of_words(field, value, err);
	if (right_kind && number >= field->min && number <= field->max)
		return STATUS_OK;
	char low[32], high[32];
	struct text wanted = {0};
	text_format_double(low, field->min);
	text_format_double(high, field->max);
	text_printf(&wanted, "%s from %s to %s", field->kind == FIELD_INTEGER ? "an integer" : "a number", low, high);
	enum status status = complain(field, value, text_str(&wanted), err);
	text_release(&wanted);
	return status;
}

static enum status check_flag(const struct field *field, const struct json *value, struct err *err)
{
	int64_t number = json_int(value, -1);
	if (number == 0 || number == 1 || (field->kind == FIELD_BOOL && json_kind_of(value) == JSON_KIND_BOOL))
		return STATUS_OK;
	return complain(field, value, field->kind == FIELD_BOOL ? "true or false" : "0 or 1", err);
}

static enum status check_field(const struct field *field, const struct json *value, struct err *err)
{
	if (json_kind_of(value) == JSON_KIND_NULL)
		return field->flags & FIELD_NEEDED
			? err_set(err, STATUS_INPUT, "%s: is %s", field->name, value ? "null" : "missing")
			: STATUS_OK;
	switch (field->kind) {
	case FIELD_TEXT:
	case FIELD_NAME:
		return check_text(field, value, err);
	case FIELD_INTEGER:
	case FIELD_NUMBER:
		return check_number(field, value, err);
	case FIELD_FLAG:
	case FIELD_BOOL:
		return check_flag(field, value, err);
	case FIELD_OBJECT:
		return json_kind_of(value) == JSON_KIND_OBJECT ? STATUS_OK : complain(field, value, "an object", err);
	case FIELD_LIST:
		return json_kind_of(value) == JSON_KIND_ARRAY ? STATUS_OK : complain(field, value, "a list", err);
	case FIELD_ANY:
		break;
	}
	return STATUS_OK;
}

static bool has_rule(const char *name, const struct field *fields)
{
	while (fields->name && !text_equal(fields->name, name))
		fields++;
	return fields->name != NULL;
}

enum status fields_check(const struct json *object, const struct field *fields, bool closed, struct err *err)
{
	enum status status = STATUS_OK;
	for (size_t i = 0; fields[i].name && !status; i++)
		status = check_field(&fields[i], json_get(object, fields[i].name), err);
	for (void *it = json_first(object); it && closed && !status; it = json_next(object, it))
		if (!has_rule(json_iterator_key(it), fields))
			status = err_set(err, STATUS_INPUT, "%.60s: is no member that is known here", json_iterator_key(it));
	return status;
}
