/* Strings of templates: stripping, splitting, replacing, cutting. */
#include "engine/jinja_text.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/normalise.h"

#define INDENT_MAX 256 /* spaces; guess: files have 2 to 8 */

/* White space as Python's str.strip sees it. */
static bool is_white(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* True when the character at at goes: white space, or one of set. An invalid byte stays. *bytes is its length. */
static bool is_stripped(const char *at, const char *end, struct value set, int *bytes)
{
	uint32_t c = 0;

	*bytes = utf8_decode(at, (size_t)(end - at), &c);
	if (*bytes <= 0) {
		*bytes = 1;
		return false;
	}
	return set.kind == VALUE_STRING ? memmem(set.bytes, set.len, at, (size_t)*bytes) != NULL : is_white(c);
}

struct value jinja_strip(struct value string, struct value set, bool left, bool right)
{
	const char *begin = string.bytes, *end = begin + string.len, *last;
	int bytes;

	while (left && begin < end && is_stripped(begin, end, set, &bytes))
		begin += bytes;
	/* One pass forward: what follows the last character that stays goes. */
	last = begin;
	for (const char *at = begin; right && at < end; at += bytes)
		if (!is_stripped(at, end, set, &bytes))
			last = at + bytes;
	return value_string(begin, (size_t)((right ? last : end) - begin));
}

static enum status split_at_white(struct rendering *r, struct value string, int64_t most, struct value *out)
{
	const struct value white = {0};
	struct value list = *out = value_list(&r->arena), rest = jinja_strip(string, white, true, false);
	const char *end = string.bytes + string.len;
	int bytes;

	while (rest.len > 0) {
		const char *at = rest.bytes;

		if (jinja_spend(r, 0) != STATUS_OK)
			return STATUS_INPUT;
		if (most >= 0 && (int64_t)list.list->count == most) {
			value_append(&r->arena, list, jinja_strip(rest, white, false, true));
			break;
		}
		while (at < end && !is_stripped(at, end, white, &bytes))
			at += bytes;
		value_append(&r->arena, list, value_string(rest.bytes, (size_t)(at - rest.bytes)));
		rest = jinja_strip(value_string(at, (size_t)(end - at)), white, true, false);
	}
	return STATUS_OK;
}

enum status jinja_split(struct rendering *r, struct value string, struct value separator, int64_t most, struct value *out)
{
	struct arena *arena = &r->arena;
	struct value list = *out = value_list(arena);
	const char *at = string.bytes, *end = at + string.len;

	if (separator.kind != VALUE_STRING)
		return split_at_white(r, string, most, out);
	if (separator.len == 0)
		return err_set(r->err, STATUS_INPUT, "empty separator");
	while (most < 0 || (int64_t)list.list->count < most) {
		const char *next = memmem(at, (size_t)(end - at), separator.bytes, separator.len);

		if (!next)
			break;
		if (jinja_spend(r, 0) != STATUS_OK)
			return STATUS_INPUT;
		value_append(arena, list, value_string(at, (size_t)(next - at)));
		at = next + separator.len;
	}
	value_append(arena, list, value_string(at, (size_t)(end - at)));
	return STATUS_OK;
}

static size_t character_bytes(struct value string, size_t at)
{
	uint32_t c;
	int bytes = utf8_decode(string.bytes + at, string.len - at, &c);

	return bytes > 0 ? (size_t)bytes : 1;
}

enum status jinja_replace(
	struct rendering *r, struct value string, struct value from, struct value to, int64_t most, struct value *out)
{
	struct text text = {0};
	size_t at = 0;
	enum status status = STATUS_OK;

	for (int64_t n = 0; status == STATUS_OK && n != most; n++) {
		const char *next = memmem(string.bytes + at, string.len - at, from.bytes, from.len);
		size_t found = next ? (size_t)(next - string.bytes) : 0;

		if (!next)
			break;
		text_append(&text, string.bytes + at, found - at);
		text_append(&text, to.bytes, to.len);
		at = found + from.len;
		status = jinja_spend(r, to.len);
		if (from.len > 0)
			continue;
		if (at == string.len)
			break;
		text_append(&text, string.bytes + at, character_bytes(string, at));
		at += character_bytes(string, at);
	}
	text_append(&text, string.bytes + at, string.len - at);
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

/* The character at at; an invalid byte is none, and has no case. */
static bool is_cased_at(struct value string, size_t at)
{
	uint32_t c;

	return at < string.len && utf8_decode(string.bytes + at, string.len - at, &c) > 0 && normalise_is_cased(c);
}

#define SIGMA 0x3a3 /* small at the end of a word it has a form of its own */
#define SIGMA_FINAL "\xcf\x82"

struct value jinja_change_case(struct arena *arena, struct value string, enum jinja_case to)
{
	bool begins = true, after_cased = false; /* a word, for CASE_CAPITALIZE the whole */
	struct text text = {0};
	struct value out;

	for (size_t at = 0, next; at < string.len; at = next) {
		uint32_t c = 0;
		bool is_valid = utf8_decode(string.bytes + at, string.len - at, &c) > 0;
		enum normalise_case one = to == CASE_UPPER || (to == CASE_WORDS && begins) ? NORMALISE_UPPER
			: to == CASE_LOWER || !begins                                      ? NORMALISE_LOWER
											   : NORMALISE_TITLE;

		next = at + character_bytes(string, at);
		if (!is_valid)
			text_append_char(&text, string.bytes[at]);
		else if (one == NORMALISE_LOWER && c == SIGMA && after_cased && !is_cased_at(string, next))
			text_append_str(&text, SIGMA_FINAL);
		else
			normalise_append_case(c, one, &text);
		/* The filter title changes the rest of a word by itself: its first letter is not before a sigma. */
		after_cased = is_valid && normalise_is_cased(c) && !(to == CASE_WORDS && begins);
		begins = (to == CASE_TITLE && !after_cased) ||
			(to == CASE_WORDS && is_valid && (is_white(c) || (c < 0x80 && c > 0 && strchr("-({[<", (int)c))));
	}
	out = value_copy(arena, &text);
	text_release(&text);
	return out;
}

/* Bytes of the line end at at, as Python's str.splitlines sees them; 0: there is none. */
static size_t line_end_bytes(const char *at, const char *end)
{
	size_t left = (size_t)(end - at);

	if (left > 0 && ((*at >= '\n' && *at <= '\r') || (*at >= 0x1c && *at <= 0x1e)))
		return left > 1 && at[0] == '\r' && at[1] == '\n' ? 2 : 1;
	if (left > 1 && memcmp(at, "\xc2\x85", 2) == 0)
		return 2;
	return left > 2 && (memcmp(at, "\xe2\x80\xa8", 3) == 0 || memcmp(at, "\xe2\x80\xa9", 3) == 0) ? 3 : 0;
}

/* The end of the line that begins at at: where its line end begins, or end. */
static const char *line_end(const char *at, const char *end)
{
	while (at < end && line_end_bytes(at, end) == 0)
		at++;
	return at;
}

enum status jinja_split_lines(struct rendering *r, struct value string, bool with_ends, struct value *out)
{
	const char *at = string.bytes, *end = at + string.len;

	*out = value_list(&r->arena);
	while (at < end) {
		const char *stop = line_end(at, end), *next = stop + line_end_bytes(stop, end);

		value_append(&r->arena, *out, value_string(at, (size_t)((with_ends ? next : stop) - at)));
		at = next;
		if (jinja_spend(r, 0) != STATUS_OK)
			return STATUS_INPUT;
	}
	return STATUS_OK;
}

enum status jinja_indent(struct rendering *r, struct value string, int64_t width, bool first, bool blank, struct value *out)
{
	struct text text = {0};
	const char *at = string.bytes, *end = at + string.len;
	enum status status = STATUS_OK;

	if (width < 0 || width > INDENT_MAX)
		return err_set(r->err, STATUS_INPUT, "indent is supported by 0 to %d spaces", INDENT_MAX);
	for (bool indents = first; status == STATUS_OK; indents = true) {
		const char *stop = line_end(at, end);

		if (indents && (stop > at || blank || (at == string.bytes && first)))
			text_printf(&text, "%*s", (int)width, "");
		text_append(&text, at, (size_t)(stop - at));
		if (stop == end)
			break;
		text_append_char(&text, '\n');
		at = stop + line_end_bytes(stop, end);
		status = jinja_spend(r, (size_t)width);
	}
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

enum status jinja_join(struct rendering *r, struct value list, struct value separator, struct value *out)
{
	struct text text = {0};
	enum status status = STATUS_OK;

	if (separator.kind >= VALUE_LIST)
		return err_set(r->err, STATUS_INPUT, "join needs a string between the items");
	for (size_t i = 0; status == STATUS_OK && i < list.list->count; i++) {
		struct value item = list.list->items[i];

		if (i > 0)
			value_print(separator, &text);
		value_print(item, &text);
		status = item.kind < VALUE_LIST
			? jinja_spend(r, separator.len + item.len)
			: err_set(r->err, STATUS_INPUT, "join meets a list or a dict, which are not printed as they are");
	}
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

struct value jinja_plain_number(struct arena *arena, struct value string)
{
	struct text text = {0};
	struct value out;

	for (size_t at = 0; at < string.len; at += character_bytes(string, at)) {
		uint32_t c = 0;
		bool is_ascii = (unsigned char)string.bytes[at] < 0x80;
		bool is_valid = !is_ascii && utf8_decode(string.bytes + at, string.len - at, &c) > 0;
		int digit = is_valid ? normalise_digit(c) : -1;

		if (digit >= 0)
			text_append_char(&text, (char)('0' + digit));
		else if (is_valid && is_white(c))
			text_append_char(&text, ' ');
		else
			text_append(&text, string.bytes + at, character_bytes(string, at));
	}
	out = value_copy(arena, &text);
	text_release(&text);
	return out;
}

int64_t jinja_characters(struct value string)
{
	int64_t count = 0;

	for (size_t at = 0; at < string.len; at += character_bytes(string, at))
		count++;
	return count;
}

/* Where character number index begins; string.len past the last. */
static size_t find_character(struct value string, int64_t index)
{
	size_t at = 0;

	for (; index > 0 && at < string.len; index--)
		at += character_bytes(string, at);
	return at;
}

struct value jinja_pick(struct arena *arena, struct value string, int64_t begin, int64_t end, int64_t step)
{
	size_t *places, count = 0;
	struct text text = {0};
	struct value out;

	if (step == 1) {
		size_t from = find_character(string, begin), to = end > begin ? find_character(string, end) : from;

		return value_string(string.bytes + from, to - from);
	}
	places = mem_calloc(string.len + 1, sizeof(*places));
	for (size_t at = 0; at < string.len; at += character_bytes(string, at))
		places[count++] = at;
	for (int64_t i = begin; step < 0 ? i > end : i < end; i += step)
		text_append(&text, string.bytes + places[i], character_bytes(string, places[i]));
	out = value_copy(arena, &text);
	mem_free(places);
	text_release(&text);
	return out;
}
