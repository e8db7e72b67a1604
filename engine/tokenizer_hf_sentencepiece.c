/* Reads the parts of a tokenizer.json that deal with spaces. What they do together is one struct space_rule. */
#include "engine/tokenizer_hf_sentencepiece.h"

#include <string.h>

#include "engine/tokenizer_normal.h"

#define PLACE "tokenizer.json: "
#define UNSUPPORTED(err, ...) err_set_code(err, STATUS_INPUT, "unsupported_tokenizer", PLACE __VA_ARGS__)
#define TYPE_BYTES 64 /* of a part's type in messages; guess: longer than any in use */

static const char *text_of(const struct json *part, const char *key)
{
	const char *text = json_text(json_get(part, key));

	return text ? text : "";
}

static bool is_a(const struct json *part, const char *type)
{
	return strcmp(text_of(part, "type"), type) == 0;
}

static const char *printable_type(const struct json *part, char out[TYPE_BYTES])
{
	const char *type = text_of(part, "type");

	return gguf_printable((struct gguf_string){type, strlen(type)}, out, TYPE_BYTES);
}

/* A part of a Sequence, or the only one; NULL past the end. list: the name of the member that holds them. */
static const struct json *part_at(const struct json *parts, const char *list, size_t i)
{
	if (json_kind_of(parts) == JSON_KIND_NULL)
		return NULL;
	if (is_a(parts, "Sequence"))
		return json_at(json_get(parts, list), i);
	return i == 0 ? parts : NULL;
}

static bool is_replace(const struct json *part, const char *from, const char *to)
{
	return is_a(part, "Replace") && strcmp(text_of(json_get(part, "pattern"), "String"), from) == 0 &&
		strcmp(text_of(part, "content"), to) == 0;
}

static enum status read_normalizer(const struct json *normalizer, struct tokenizer_spec *spec, bool *marks_spaces, struct err *err)
{
	const struct json *part;
	char type[TYPE_BYTES];

	for (size_t i = 0; (part = part_at(normalizer, "normalizers", i)); i++) {
		if (is_a(part, "NFC"))
			spec->rule.nfc = true;
		else if (is_replace(part, " ", SPACE_MARK))
			*marks_spaces = true;
		else if (is_a(part, "Prepend") && strcmp(text_of(part, "prepend"), SPACE_MARK) == 0)
			spec->spaces.prefix = SPACE_PREFIX_EVERY;
		else
			return UNSUPPORTED(err,
				"normalizer '%s' is not supported beside byte_fallback; known: NFC, Prepend of U+2581, Replace of "
				"' ' by "
				"U+2581",
				printable_type(part, type));
	}
	return STATUS_OK;
}

static enum status read_metaspace(const struct json *part, struct tokenizer_spec *spec, struct err *err)
{
	const struct json *scheme = json_get(part, "prepend_scheme");
	const char *name = scheme ? json_text(scheme) : "always";
	enum space_prefix prefix;

	if (strcmp(text_of(part, "replacement"), SPACE_MARK) != 0)
		return UNSUPPORTED(err, "pre_tokenizer Metaspace: a replacement other than U+2581 is not supported");
	if (name && strcmp(name, "always") == 0)
		prefix = SPACE_PREFIX_MISSING;
	else if (name && strcmp(name, "first") == 0)
		prefix = SPACE_PREFIX_FIRST;
	else if (name && strcmp(name, "never") == 0)
		prefix = SPACE_PREFIX_NONE;
	else
		return UNSUPPORTED(err, "pre_tokenizer Metaspace: prepend_scheme is none of always, first, never");
	if (prefix != SPACE_PREFIX_NONE && !json_bool(json_get(part, "add_prefix_space"), true))
		return UNSUPPORTED(err, "pre_tokenizer Metaspace: add_prefix_space is false, but prepend_scheme is not never");
	/* After a Prepend every stretch begins with a space, and this adds none. */
	if (spec->spaces.prefix == SPACE_PREFIX_NONE)
		spec->spaces.prefix = prefix;
	spec->spaces.splits = json_bool(json_get(part, "split"), true);
	return STATUS_OK;
}

static enum status read_pre_tokenizer(
	const struct json *pre_tokenizer, struct tokenizer_spec *spec, bool *marks_spaces, struct err *err)
{
	const struct json *part = part_at(pre_tokenizer, "pretokenizers", 0);
	char type[TYPE_BYTES];

	if (!part)
		return STATUS_OK;
	if (!is_a(part, "Metaspace") || part_at(pre_tokenizer, "pretokenizers", 1))
		return UNSUPPORTED(err, "pre_tokenizer '%s' is not supported beside byte_fallback; known: none, one Metaspace",
			printable_type(pre_tokenizer, type));
	*marks_spaces = true;
	return read_metaspace(part, spec, err);
}

static bool is_at_most_one(const struct json *number)
{
	double value = json_number(number, number ? -1 : 0);

	return value == 0 || value == 1;
}

/* Only this order gives back what was encoded, token by token. */
static enum status read_decoder(const struct json *decoder, struct tokenizer_spec *spec, struct err *err)
{
	const struct json *parts[5] = {0};

	for (size_t i = 0; i < 5; i++)
		parts[i] = part_at(decoder, "decoders", i);
	if (!parts[2] || !is_replace(parts[0], SPACE_MARK, " ") || !is_a(parts[1], "ByteFallback") || !is_a(parts[2], "Fuse") ||
		parts[4])
		return UNSUPPORTED(err,
			"decoder is not supported beside byte_fallback; known: Replace of U+2581 by ' ', ByteFallback, "
			"Fuse, and then Strip or nothing");
	if (!parts[3])
		return STATUS_OK;
	if (!is_a(parts[3], "Strip") || strcmp(text_of(parts[3], "content"), " ") != 0 ||
		!is_at_most_one(json_get(parts[3], "start")) || json_number(json_get(parts[3], "stop"), 0) != 0)
		return UNSUPPORTED(err, "decoder: the last part may only be a Strip of one ' ' at the start");
	spec->spaces.is_stripped = json_int(json_get(parts[3], "start"), 0) == 1;
	return STATUS_OK;
}

enum status tokenizer_hf_sentencepiece(const struct json *root, struct tokenizer_spec *spec, struct err *err)
{
	bool marks_spaces = false;
	enum status status;

	spec->form = FORM_SENTENCEPIECE;
	spec->rule = (struct pre_rule){.name = "sentencepiece"};
	status = read_normalizer(json_get(root, "normalizer"), spec, &marks_spaces, err);
	if (!status)
		status = read_pre_tokenizer(json_get(root, "pre_tokenizer"), spec, &marks_spaces, err);
	if (!status && !marks_spaces)
		status = UNSUPPORTED(err, "byte_fallback without U+2581 for spaces is not supported");
	return status ? status : read_decoder(json_get(root, "decoder"), spec, err);
}
