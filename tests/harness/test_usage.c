/* What every command does with arguments that make no sense: exit code 2 and one line that names the argument, before anything is
 * done. And which exit code a database gives that is missing, none or damaged (harness/README.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "tests/support/program.h"
#include "tests/support/store_bed.h"

#define WORDS_MAX 8
#define FILE_OK "experiments/quickstart.json"
#define NOWHERE "http://127.0.0.1:1" /* nobody listens there */
#define HUGE "99999999999999999999"

struct refusal {
	const char *words[WORDS_MAX]; /* "DB" stands for a database with two experiments, 1 and 5 */
	const char *names; /* what the message says */
};

static const struct refusal refusals[] = {
	{{""}, "no command ''"},
	{{"nonsense"}, "'nonsense'"},
	{{"--version", "x"}, "--version takes no argument"},
	{{"--help", "x"}, "--help takes no argument"},

	{{"bench"}, "one URL"},
	{{"bench", ""}, "names no server"},
	{{"bench", " "}, "names no server"},
	{{"bench", "http://"}, "names no server"},
	{{"bench", "http:///v1"}, "names no server"},
	{{"bench", "/v1"}, "names no server"},
	{{"bench", "://x"}, "no http or https address"},
	{{"bench", "ftp://x"}, "no http or https address"},
	{{"bench", ":1"}, "No host"},
	{{"bench", "http://127.0.0.1:0"}, "port 0"},
	{{"bench", "http://127.0.0.1:0/v1"}, "port 0"},
	{{"bench", "http://127.0.0.1:99999"}, "Port number"},
	{{"bench", "http://127.0.0.1:-1"}, "Port number"},
	{{"bench", "http://127.0.0.1:x"}, "Port number"},
	{{"bench", "http://[::1"}, "IPv6"},
	{{"bench", "http://a b"}, "Bad hostname"},
	{{"bench", "http://a\nb"}, "Bad hostname"},
	{{"bench", NOWHERE "/?x=1"}, "query"},
	{{"bench", NOWHERE "#x"}, "fragment"},
	{{"bench", NOWHERE, NOWHERE}, "one URL"},
	{{"bench", NOWHERE, "--runs", "0"}, "--runs: '0'"},
	{{"bench", NOWHERE, "--runs", "-1"}, "--runs: '-1'"},
	{{"bench", NOWHERE, "--runs", "1e3"}, "--runs: '1e3'"},
	{{"bench", NOWHERE, "--runs", ""}, "--runs: ''"},
	{{"bench", NOWHERE, "--runs", HUGE}, "--runs: '" HUGE "'"},
	{{"bench", NOWHERE, "--runs"}, "--runs needs a value"},
	{{"bench", NOWHERE, "--warmup", "-1"}, "--warmup"},
	{{"bench", NOWHERE, "--requests", "0"}, "--requests"},
	{{"bench", NOWHERE, "--concurrency", "0"}, "--concurrency"},
	{{"bench", NOWHERE, "--concurrency", "1000000000"}, "--concurrency"},
	{{"bench", NOWHERE, "--prompt-tokens", "0"}, "--prompt-tokens"},
	{{"bench", NOWHERE, "--output-tokens", "-5"}, "--output-tokens"},
	{{"bench", NOWHERE, "--temperature", "nan"}, "--temperature: 'nan'"},
	{{"bench", NOWHERE, "--temperature", "inf"}, "--temperature: 'inf'"},
	{{"bench", NOWHERE, "--temperature", "-0.1"}, "--temperature"},
	{{"bench", NOWHERE, "--temperature", "1e999"}, "--temperature"},
	{{"bench", NOWHERE, "--temperature", "0,5"}, "--temperature"},
	{{"bench", NOWHERE, "--seed", "-1"}, "--seed"},
	{{"bench", NOWHERE, "--seed", "1.5"}, "--seed"},
	{{"bench", NOWHERE, "--protocol", ""}, "--protocol: must not be empty"},
	{{"bench", NOWHERE, "--protocol", "grpc"}, "not 'grpc'"},
	{{"bench", NOWHERE, "--prompt", ""}, "--prompt: must not be empty"},
	{{"bench", NOWHERE, "--model", ""}, "--model: must not be empty"},
	{{"bench", NOWHERE, "--api-key", ""}, "--api-key: must not be empty"},
	{{"bench", NOWHERE, "--api-key", "a\r\nX: y"}, "control characters"},
	{{"bench", NOWHERE, "--json=1"}, "--json takes no value"},
	{{"bench", NOWHERE, "--nonsense"}, "--nonsense"},
	{{"bench", NOWHERE, "-x"}, "'-x'"},

	{{"check"}, "one experiment file"},
	{{"check", ""}, "cannot open ''"},
	{{"check", "."}, "directory"},
	{{"check", "missing.json"}, "missing.json"},
	{{"check", FILE_OK, FILE_OK}, "one experiment file"},
	{{"check", FILE_OK, "--only", ""}, "--only: must not be empty"},
	{{"check", FILE_OK, "--only", "nobody"}, "nobody"},
	{{"check", FILE_OK, "--model", ""}, "--model: must not be empty"},
	{{"check", FILE_OK, "--set", ""}, "--set"},
	{{"check", FILE_OK, "--set", "="}, "--set ="},
	{{"check", FILE_OK, "--set", "protocol"}, "--set protocol"},
	{{"check", FILE_OK, "--set", "nobody=1"}, "nobody: unknown key"},
	{{"check", FILE_OK, "--set", "protocol.blocks="}, "protocol.blocks"},
	{{"check", FILE_OK, "--set", "protocol.blocks=0"}, "protocol.blocks"},
	{{"check", FILE_OK, "--set", "protocol.blocks=-1"}, "protocol.blocks"},
	{{"check", FILE_OK, "--set", "protocol.blocks=1e9"}, "protocol.blocks"},
	{{"check", FILE_OK, "--set", "protocol.blocks=" HUGE}, "protocol.blocks"},
	{{"check", FILE_OK, "--set", "protocol.blocks=NaN"}, "protocol.blocks"},
	{{"plan"}, "one experiment file"},
	{{"plan", ""}, "cannot open ''"},
	{{"plan", FILE_OK, "--db", ""}, "--db: must not be empty"},
	{{"plan", FILE_OK, "--db", "."}, "a folder, not a database"},
	{{"run"}, "one experiment file"},
	{{"run", ""}, "cannot open ''"},
	{{"run", FILE_OK, FILE_OK}, "one experiment file"},
	{{"run", FILE_OK, "--db", ""}, "--db: must not be empty"},
	{{"run", FILE_OK, "--resume=yes"}, "--resume takes no value"},

	{{"history", "--db", ""}, "--db: must not be empty"},
	{{"history", "--db", "missing.db"}, "no database 'missing.db'"},
	{{"history", "--db", "."}, "a folder, not a database"},
	{{"history", "--db", FILE_OK}, "no database"},
	{{"history", "word", "--db", "DB"}, "'word'"},
	{{"history", "--db", "DB", "--experiment", ""}, "--experiment"},
	{{"history", "--db", "DB", "--knob", ""}, "--knob"},
	{{"history", "--db", "DB", "--model", ""}, "--model"},
	{{"history", "--db", "DB", "--machine", ""}, "--machine"},
	{{"history", "--db", "DB", "--verdict", ""}, "--verdict"},
	{{"history", "--db", "DB", "--verdict", "great"}, "no verdict 'great'"},
	{{"history", "--db", "DB", "--verdict", "Helped"}, "no verdict 'Helped'"},
	{{"history", "--db", "DB", "--limit", "-1"}, "--limit"},
	{{"history", "--db", "DB", "--limit", "all"}, "--limit"},
	{{"history", "--db", "DB", "--limit", HUGE}, "--limit"},
	{{"history", "--db", "DB", "--db", "missing.db"}, "missing.db"}, /* the last counts */

	{{"show", "--db", "DB"}, "one number"},
	{{"show", "", "--db", "DB"}, "one number"},
	{{"show", "x", "--db", "DB"}, "one number"},
	{{"show", "1.0", "--db", "DB"}, "one number"},
	{{"show", "0x1", "--db", "DB"}, "one number"},
	{{"show", HUGE, "--db", "DB"}, "one number"},
	{{"show", "1", "5", "--db", "DB"}, "one number"},
	{{"show", "-1", "--db", "DB"}, "'-1'"},
	{{"show", "--db", "DB", "--", "-1"}, "verdict -1"},
	{{"show", "0", "--db", "DB"}, "verdict 0"},
	{{"show", "4711", "--db", "DB"}, "verdict 4711"},
	{{"show", "1", "--db", "missing.db"}, "missing.db"},
	{{"export", "--db", "DB"}, "number of one experiment"},
	{{"export", "", "--db", "DB"}, "number of one experiment"},
	{{"export", HUGE, "--db", "DB"}, "number of one experiment"},
	{{"export", "4711", "--db", "DB"}, "experiment 4711"},
	{{"export", "0", "--db", "DB"}, "experiment 0"},
	{{"export", "2", "--db", "DB"}, "experiment 2"}, /* a verdict's */
	{{"export", "1", "--format", "", "--db", "DB"}, "--format"},
	{{"export", "1", "--format", "xml", "--db", "DB"}, "no format 'xml'"},
	{{"compare", "--db", "DB"}, "two experiments"},
	{{"compare", "1", "--db", "DB"}, "two experiments"},
	{{"compare", "", "", "--db", "DB"}, "two experiments"},
	{{"compare", "1", "x", "--db", "DB"}, "two experiments"},
	{{"compare", "1", HUGE, "--db", "DB"}, "two experiments"},
	{{"compare", "1", "5", "5", "--db", "DB"}, "two experiments"},
	{{"compare", "1", "1", "--db", "DB"}, "on both sides"},
	{{"compare", "1", "2", "--db", "DB"}, "on both sides"}, /* a verdict of 1 */
	{{"compare", "1", "4711", "--db", "DB"}, "4711"},
	{{"compare", "4711", "1", "--db", "DB"}, "4711"},
	{{"more", "--db", "DB", "--blocks", "1"}, "number of one experiment"},
	{{"more", "", "--db", "DB", "--blocks", "1"}, "number of one experiment"},
	{{"more", "x", "--db", "DB", "--blocks", "1"}, "number of one experiment"},
	{{"more", "1", "--db", "DB"}, "--blocks"},
	{{"more", "1", "--db", "DB", "--blocks", "0"}, "--blocks: '0'"},
	{{"more", "1", "--db", "DB", "--blocks", "-1"}, "--blocks: '-1'"},
	{{"more", "1", "--db", "DB", "--blocks", "1000"}, "--blocks: '1000'"},
	{{"more", "1", "--db", "DB", "--blocks", HUGE}, "--blocks"},
	{{"more", "1", "--db", "DB", "--blocks", "1", "--resume"}, "--resume"},
	{{"more", "4711", "--db", "DB", "--blocks", "1"}, "4711"},
	{{"more", "1", "--db", "missing.db", "--blocks", "1"}, "missing.db"},

	{{"trend", "word", "--db", "DB"}, "'word'"},
	{{"trend", "--db", "DB", "--drift", "nan"}, "--drift"},
	{{"trend", "--db", "DB", "--drift", "0"}, "--drift"},
	{{"trend", "--db", "DB", "--drift", "1e400"}, "--drift"},
	{{"trend", "--db", "DB", "--min-effect", "-2"}, "--min-effect"},
	{{"trend", "--db", "DB", "--min-effect", ""}, "--min-effect"},
	{{"trend", "--db", "DB", "--experiment", ""}, "--experiment"},

	{{"import"}, "file or folder"},
	{{"import", "", "--db", "DB"}, "''"},
	{{"import", "missing.json", "--db", "DB"}, "missing.json"},
	{{"import", FILE_OK, "--db", "DB"}, "quickstart.json"},
	{{"import", FILE_OK, "--db", ""}, "--db"},
	{{"import", "experiments/reference", "--db", "no/such/folder/r.db"}, "no such folder"},

	{{"init"}, "a command line"},
	{{"init", "--"}, "a command line"},
	{{"init", "--output", "-", "--", ""}, "no engine is recognised"},
	{{"init", "--output", "-", "--", "nonsense"}, "no engine is recognised"},
	{{"init", "--output", "", "--", "vllm", "serve", "m"}, "--output"},
	{{"init", "--output", ".", "--", "vllm", "serve", "m"}, "'.'"},
	{{"init", "--output", "no/such/folder/x.json", "--", "vllm", "serve", "m"}, "no/such/folder"},
	{{"init", "--output=-", "--name", "", "--", "vllm", "serve", "m"}, "--name"},
	{{"init", "--output=-", "--sweep", "", "--", "vllm", "serve", "m"}, "--sweep"},
	{{"init", "--output=-", "--sweep", "missing", "--", "vllm", "serve"}, "missing"},
	{{"init", "--output", "-", "--", "vllm", "serve", ""}, "must not be empty"},
};

/* Runs verdict with the words, db in the place of "DB". */
static void run(const char *db, const char *const words[WORDS_MAX], struct program_result *result)
{
	const char *real[WORDS_MAX + 1] = {NULL};
	for (size_t i = 0; i < WORDS_MAX && words[i]; i++)
		real[i] = text_equal(words[i], "DB") ? db : words[i];
	program_run("verdict", real, result);
}

static void append_words(struct text *out, const char *const words[WORDS_MAX])
{
	for (size_t i = 0; i < WORDS_MAX && words[i]; i++)
		text_printf(out, " '%s'", words[i]);
}

static void senseless_arguments_are_refused_by_name_with_exit_code_two(void **state)
{
	struct store_bed *f = *state;
	struct text wrong = {0};
	bool resumed;
	for (int i = 0; i < 2; i++) {
		store_bed_begin(f, false, &resumed);
		store_bed_save_all(f);
		store_bed_judge(f, true);
	}
	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		struct program_result result = {0};
		run(f->path, refusals[i].words, &result);
		bool named = strstr(text_str(&result.err), refusals[i].names) != NULL;
		if (result.exit_code != 2 || !named || result.out.len) {
			append_words(&wrong, refusals[i].words);
			text_printf(&wrong, ": exit code %d, \"%s\"\n", result.exit_code, text_str(&result.err));
		}
		program_result_release(&result);
	}
	if (wrong.len)
		fail_msg("%s", text_str(&wrong));
	text_release(&wrong);
}

/* --- databases ------------------------------------------------------------------------------------------------------ */

static void assert_exit(struct store_bed *f, const char *db, int code, const char *says)
{
	static const char *const commands[][2] = {{"history", NULL}, {"show", "1"}, {"trend", NULL}, {"export", "1"}};
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		struct program_result result = {0};
		run(db, (const char *const[WORDS_MAX]){commands[i][0], "--db", "DB", commands[i][1]}, &result);
		if (result.exit_code != code || !strstr(text_str(&result.err), says))
			fail_msg("%s --db %s: exit code %d, \"%s\"", commands[i][0], db, result.exit_code, text_str(&result.err));
		program_result_release(&result);
	}
}

/* Writes other.db: the first keep bytes of the database, and from `from` on nothing but 0xA5. */
static void damage(struct store_bed *f, char path[96], size_t keep, size_t from)
{
	struct text bytes = {0};
	assert_int_equal(file_read(f->path, 1 << 26, &bytes, NULL), STATUS_OK);
	keep = keep < bytes.len ? keep : bytes.len;
	for (size_t i = from; i < keep; i++)
		bytes.data[i] = (char)0xA5;
	snprintf(path, 96, "%.80s/other.db", f->folder);
	assert_int_equal(file_write_atomic(path, bytes.data, keep, NULL), STATUS_OK);
	text_release(&bytes);
}

static void a_database_that_is_missing_none_or_damaged_has_its_exit_code(void **state)
{
	struct store_bed *f = *state;
	char path[96];
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	store_close(f->store);
	f->store = NULL;
	snprintf(path, sizeof path, "%.80s/other.db", f->folder);
	assert_exit(f, path, 2, "there is no database");
	assert_int_equal(file_write_atomic(path, "not a database, but as long as the head of one would have to be; more", 69, NULL),
		STATUS_OK);
	assert_exit(f, path, 2, "the file is no database");
	for (size_t len = 0; len < 2; len++) { /* what SQLite itself takes for a new database stays as it is */
		struct text text = {0};
		assert_int_equal(file_write_atomic(path, "x", len, NULL), STATUS_OK);
		assert_exit(f, path, 2, "the file is no database");
		assert_int_equal(file_read(path, 100, &text, NULL), STATUS_OK);
		assert_int_equal(text.len, len);
		text_release(&text);
	}
	damage(f, path, SIZE_MAX, 0); /* its head is gone, so nobody can tell what it was */
	assert_exit(f, path, 2, "the file is no database");
	damage(f, path, SIZE_MAX, 4096);
	assert_exit(f, path, 3, "the database is damaged");
	damage(f, path, 8192, SIZE_MAX);
	assert_exit(f, path, 3, "the database is damaged");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(senseless_arguments_are_refused_by_name_with_exit_code_two),
		STORE_TEST(a_database_that_is_missing_none_or_damaged_has_its_exit_code),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
