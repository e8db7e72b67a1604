/* Which format a file has, and what of each entry becomes a column. */
#include "harness/foreign.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "harness/foreign_check.h"

struct column {
	const char *name, *key; /* of the table, of the entry */
	double scale; /* 0: text, or a number as it stands */
};

/* One foreign format: how an entry is recognised, and where its facts are. */
struct format {
	enum foreign_format format;
	const char *tool;
	const char *marks[3]; /* keys that an entry of this format has and one of the others has not */
	const struct column *columns; /* ended by an empty one */
};

static const struct column llama_bench_columns[] = {
	{"time_utc", "test_time", 0},
	{"build", "build_commit", 0},
	{"model", "model_filename", 0},
	{"machine", "cpu_info", 0},
	{"input_len", "n_prompt", 0},
	{"output_len", "n_gen", 0},
	{"tokens_per_s", "avg_ts", 1},
	{0},
};

static const struct column vllm_columns[] = {
	{"time_utc", "date", 0},
	{"engine", "backend", 0},
	{"model", "model_id", 0},
	{"label", "label", 0},
	{"concurrency", "max_concurrency", 0},
	{"completed", "completed", 0},
	{"failed", "failed", 0},
	{"tokens_per_s", "output_throughput", 1},
	{"ttft_ms_p50", "median_ttft_ms", 1},
	{"tpot_ms_p50", "median_tpot_ms", 1},
	{0},
};

static const struct column sglang_columns[] = {
	{"engine", "backend", 0},
	{"label", "tag", 0},
	{"concurrency", "max_concurrency", 0},
	{"input_len", "random_input_len", 0},
	{"output_len", "random_output_len", 0},
	{"completed", "completed", 0},
	{"tokens_per_s", "output_throughput", 1},
	{"ttft_ms_p50", "median_ttft_ms", 1},
	{"tpot_ms_p50", "median_tpot_ms", 1},
	{0},
};

/* Times of InferenceX are seconds; its throughput is for each GPU. */
static const struct column inferencex_columns[] = {
	{"engine", "framework", 0},
	{"model", "model", 0},
	{"machine", "hw", 0},
	{"build", "image", 0},
	{"concurrency", "conc", 0},
	{"input_len", "isl", 0},
	{"output_len", "osl", 0},
	{"tokens_per_s_gpu", "tput_per_gpu", 1},
	{"ttft_ms_p50", "median_ttft", 1000},
	{"tpot_ms_p50", "median_tpot", 1000},
	{0},
};

static const struct format formats[] = {
	{FOREIGN_LLAMA_BENCH, "llama-bench", {"n_gen", "n_prompt"}, llama_bench_columns},
	{FOREIGN_INFERENCEX, "inferencex", {"hw", "conc"}, inferencex_columns},
	{FOREIGN_VLLM, "vllm-bench", {"total_output_tokens", "tokenizer_id"}, vllm_columns},
	{FOREIGN_SGLANG, "sglang-bench", {"total_output_tokens", "request_rate"}, sglang_columns},
};

static const struct format *format_of(const struct json *entry)
{
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		bool has_all = true;
		for (size_t k = 0; k < 3 && formats[i].marks[k]; k++)
			has_all = has_all && json_get(entry, formats[i].marks[k]) != NULL;
		if (has_all)
			return &formats[i];
	}
	return NULL;
}

static void copy_column(struct json *row, const struct column *column, const struct json *value)
{
	/* NULLs of Python and numbers that are none stay unknown: they are still in the document. */
	if (json_is_number(value) && column->scale > 0)
		json_set(row, column->name, json_new_number(json_number(value, NAN) * column->scale));
	else if (json_kind_of(value) == JSON_KIND_INTEGER || json_kind_of(value) == JSON_KIND_STRING)
		json_set(row, column->name, json_clone(value));
}

static void hash_entry(const char *tool, const struct json *entry, char out[SHA256_HEX_BYTES])
{
	struct text text = {0};
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	text_printf(&text, "%s\n", tool);
	json_write(entry, JSON_STYLE_CANONICAL, &text);
	sha256_init(&sha);
	sha256_update(&sha, text.data, text.len);
	sha256_finish(&sha, digest);
	sha256_hex(digest, out);
	text_release(&text);
}

static enum status add_row(struct json *rows, const struct json *entry, const char *source, struct err *err)
{
	size_t number = json_count(rows) + 1;
	const struct format *format = format_of(entry);
	if (!format)
		return err_set(err, STATUS_INPUT, "%s: entry %zu: it is no measurement of a known benchmark", source, number);
	if (foreign_check(entry, format->format, err))
		return err_add(err, "%s: entry %zu (%s)", source, number, format->tool);
	if (number > FOREIGN_ROWS_MAX)
		return err_set(err, STATUS_INPUT, "%s: more than %d entries", source, FOREIGN_ROWS_MAX);
	char hash[SHA256_HEX_BYTES];
	struct json *row = json_new_object();
	hash_entry(format->tool, entry, hash);
	json_set(row, "hash", json_new_string(hash));
	json_set(row, "tool", json_new_string(format->tool));
	for (const struct column *column = format->columns; column->name; column++)
		copy_column(row, column, json_get(entry, column->key));
	json_set(row, "document", json_clone(entry));
	json_append(rows, row);
	return STATUS_OK;
}

static enum status add_rows(struct json *rows, const struct json *document, const char *source, struct err *err)
{
	enum status status = STATUS_OK;
	if (json_kind_of(document) != JSON_KIND_ARRAY)
		return add_row(rows, document, source, err);
	for (size_t i = 0; i < json_count(document) && !status; i++)
		status = add_row(rows, json_at(document, i), source, err);
	return status;
}

/* Python's json writes numbers that are none as bare words: here they become texts, which are told by their member when they are
 * refused. True when there were some. */
static bool quote_bare_words(const char *bytes, size_t len, struct text *out)
{
	static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
	bool in_text = false, any = false;
	for (size_t at = 0; at < len;) {
		size_t taken = 1;
		for (size_t i = 0; i < sizeof words / sizeof words[0] && !in_text && taken == 1; i++)
			if (len - at >= strlen(words[i]) && memcmp(bytes + at, words[i], strlen(words[i])) == 0)
				taken = strlen(words[i]);
		if (in_text && bytes[at] == '\\' && at + 1 < len)
			taken = 2;
		else if (bytes[at] == '"')
			in_text = !in_text;
		bool word = !in_text && taken > 1;
		text_append(out, "\"", word);
		text_append(out, bytes + at, taken);
		text_append(out, "\"", word);
		any = any || word;
		at += taken;
	}
	return any;
}

/* As json_parse, with such words as texts. What cannot be read even so is told as it stood. */
static enum status parse(const char *bytes, size_t len, const char *source, struct json **out, struct err *err)
{
	struct text quoted = {0};
	struct err own = {0};
	enum status status = json_parse(bytes, len, source, out, &own);
	if (status && quote_bare_words(bytes, len, &quoted) &&
		json_parse(text_str(&quoted), quoted.len, source, out, NULL) == STATUS_OK)
		status = STATUS_OK;
	text_release(&quoted);
	return status ? err_set(err, status, "%s", own.text) : STATUS_OK;
}

/* One JSON value a line. Complaints name the line of the file. */
static enum status read_lines(const char *bytes, size_t len, const char *source, struct json *rows, struct err *err)
{
	enum status status = STATUS_OK;
	int number = 0;
	for (size_t at = 0; at < len && !status;) {
		const char *newline = memchr(bytes + at, '\n', len - at);
		size_t line_len = newline ? (size_t)(newline - bytes) - at : len - at;
		struct err own = {0};
		struct json *entry = NULL;
		number++;
		if (line_len > strspn(bytes + at, " \t\r\n")) {
			status = parse(bytes + at, line_len, "line", &entry, &own);
			if (status) /* "line:1:COL: reason" */
				err_set(err, status, "%s:%d:%s", source, number, own.text + strlen("line:1:"));
			else
				status = add_rows(rows, entry, source, err);
		}
		json_free(entry);
		at += line_len + 1;
	}
	return status;
}

/* Whether the first line is a whole object by itself, as in JSONL. */
static bool is_lines(const char *bytes, size_t len)
{
	const char *newline = memchr(bytes, '\n', len);
	struct json *first = NULL;
	size_t line_len = newline ? (size_t)(newline - bytes) : len;
	bool whole = parse(bytes, line_len, "line", &first, NULL) == STATUS_OK && json_kind_of(first) == JSON_KIND_OBJECT;
	json_free(first);
	return whole;
}

static bool is_sql(const char *bytes)
{
	bytes += strspn(bytes, " \t\r\n");
	return strncasecmp(bytes, "CREATE TABLE", 12) == 0 || strncasecmp(bytes, "INSERT INTO", 11) == 0;
}

enum status foreign_read(const char *bytes, size_t len, const char *source, struct json **out, struct err *err)
{
	struct json *rows = json_new_array(), *document = NULL;
	bool lines = is_lines(bytes, len), ours = false;
	enum status status;
	if (is_sql(bytes))
		status = foreign_read_sql(bytes, len, source, &document, err);
	else
		status = parse(bytes, lines ? strcspn(bytes, "\n") : len, source, &document, err);
	/* An object that none of these programs wrote is for the caller to know. */
	ours = !status && json_kind_of(document) == JSON_KIND_OBJECT && !format_of(document);
	if (!status && !ours)
		status = lines ? read_lines(bytes, len, source, rows, err) : add_rows(rows, document, source, err);
	json_free(document);
	if (!status && !ours && json_count(rows) == 0)
		status = err_set(err, STATUS_INPUT, "%s: it holds no measurement", source);
	if (status || ours) {
		json_free(rows);
		rows = NULL;
	}
	*out = rows;
	return status;
}
