/* The little SQL that llama-bench writes: a table and one INSERT for each test. Quotes inside its texts are doubled by some
 * versions and left alone by others; the latter cannot be read and are refused with their place. */
#include <stdio.h>
#include <string.h>

#include "harness/foreign.h"
#include "harness/foreign_check.h"

#define COLUMNS_MAX 128

struct scan {
	const char *bytes;
	size_t len, at;
	const char *source;
	struct err *err;
};

static enum status fail(const struct scan *scan, const char *reason)
{
	int line = 1, column = 1;
	for (size_t i = 0; i < scan->at && i < scan->len; i++) {
		column = scan->bytes[i] == '\n' ? 1 : column + 1;
		line += scan->bytes[i] == '\n';
	}
	return err_set(scan->err, STATUS_INPUT, "%s:%d:%d: %s", scan->source, line, column, reason);
}

static void skip_space(struct scan *scan)
{
	while (scan->at < scan->len && strchr(" \t\r\n", scan->bytes[scan->at]) && scan->bytes[scan->at])
		scan->at++;
}

/* Takes a word or sign, case ignored. */
static bool take(struct scan *scan, const char *word)
{
	skip_space(scan);
	size_t word_len = strlen(word);
	if (scan->len - scan->at < word_len || strncasecmp(scan->bytes + scan->at, word, word_len) != 0)
		return false;
	scan->at += word_len;
	return true;
}

static bool is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static size_t name_len(const struct scan *scan)
{
	size_t len = 0;
	while (scan->at + len < scan->len && is_name_char(scan->bytes[scan->at + len]))
		len++;
	return len;
}

/* "(a, b, c)" */
static enum status read_columns(struct scan *scan, char names[COLUMNS_MAX][64], size_t *count)
{
	*count = 0;
	if (!take(scan, "("))
		return fail(scan, "expected (");
	do {
		skip_space(scan);
		size_t len = name_len(scan);
		if (!len || len > 63)
			return fail(scan, "expected the name of a column");
		if (*count == COLUMNS_MAX)
			return fail(scan, "too many columns");
		for (size_t i = 0; i < *count; i++)
			if (strlen(names[i]) == len && memcmp(names[i], scan->bytes + scan->at, len) == 0)
				return fail(scan, "this column is there twice");
		snprintf(names[(*count)++], 64, "%.*s", (int)len, scan->bytes + scan->at);
		scan->at += len;
	} while (take(scan, ","));
	return take(scan, ")") ? STATUS_OK : fail(scan, "expected , or )");
}

/* A text in quotes. */
static enum status read_quoted(struct scan *scan, struct json **out)
{
	struct text text = {0};
	scan->at++;
	for (;; scan->at++) {
		if (scan->at >= scan->len) {
			text_release(&text);
			return fail(scan, "a text has no end");
		}
		if (scan->bytes[scan->at] == '\'' && !(scan->at + 1 < scan->len && scan->bytes[scan->at + 1] == '\''))
			break;
		scan->at += scan->bytes[scan->at] == '\'';
		text_append_char(&text, scan->bytes[scan->at]);
	}
	scan->at++;
	*out = json_new_string_len(text_str(&text), text.len);
	text_release(&text);
	return STATUS_OK;
}

static enum status read_value(struct scan *scan, struct json **out)
{
	skip_space(scan);
	if (scan->at < scan->len && scan->bytes[scan->at] == '\'')
		return read_quoted(scan, out);
	if (take(scan, "NULL")) {
		*out = json_new_null();
		return STATUS_OK;
	}
	char word[64];
	size_t len = 0;
	while (scan->at + len < scan->len && len < sizeof word - 1 && strchr("+-.0123456789eE", scan->bytes[scan->at + len]) &&
		scan->bytes[scan->at + len])
		len++;
	snprintf(word, sizeof word, "%.*s", (int)len, scan->bytes + scan->at);
	long long whole;
	double real;
	if (text_to_i64(word, &whole))
		*out = json_new_integer(whole);
	else if (text_to_double(word, &real))
		*out = json_new_number(real);
	else
		return fail(scan, "expected a number, NULL or a text in quotes");
	scan->at += len;
	return STATUS_OK;
}

static enum status read_insert(struct scan *scan, struct json *rows)
{
	char names[COLUMNS_MAX][64];
	size_t count = 0;
	if (!take(scan, "llama_bench"))
		return fail(scan, "expected the table llama_bench");
	enum status status = read_columns(scan, names, &count);
	if (!status && (!take(scan, "VALUES") || !take(scan, "(")))
		status = fail(scan, "expected VALUES (");
	struct json *row = json_new_object();
	for (size_t i = 0; i < count && !status; i++) {
		struct json *value = NULL;
		if (i && !take(scan, ","))
			status = fail(scan, "expected , and another value");
		if (!status)
			status = read_value(scan, &value);
		if (!status)
			json_set(row, names[i], value);
	}
	if (!status && (!take(scan, ")") || !take(scan, ";")))
		status = fail(scan, "expected ); after as many values as columns");
	if (status) {
		json_free(row);
	} else {
		foreign_read_numbers(row);
		json_append(rows, row);
	}
	return status;
}

enum status foreign_read_sql(const char *bytes, size_t len, const char *source, struct json **out, struct err *err)
{
	struct scan scan = {bytes, len, 0, source, err};
	struct json *rows = json_new_array();
	enum status status = STATUS_OK;
	for (skip_space(&scan); scan.at < len && !status; skip_space(&scan)) {
		if (take(&scan, "CREATE TABLE")) {
			const char *end = memchr(bytes + scan.at, ';', len - scan.at);
			scan.at = end ? (size_t)(end - bytes) + 1 : len;
		} else if (take(&scan, "INSERT INTO")) {
			status = read_insert(&scan, rows);
		} else {
			status = fail(&scan, "expected CREATE TABLE or INSERT INTO");
		}
	}
	if (status) {
		json_free(rows);
		rows = NULL;
	}
	*out = rows;
	return status;
}
