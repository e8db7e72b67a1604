/* Regular expressions by PCRE2: compiled with UTF, Unicode properties and the JIT where the machine has one. */
#include "engine/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

#include "base/mem.h"

/* Unlimited but for the machine: the patterns used here are linear, and a limit met in the middle of a long word would turn a
 * legal text into an error. */
#define MATCH_LIMIT UINT32_MAX
/* Of patterns from files, in steps of the matcher: published ones need some for each character of a match, and a long match is a
 * run of spaces or a word; guess. */
#define FOREIGN_MATCH_LIMIT 10000000u
#define PATTERN_BYTES_MAX 65536 /* of patterns from files; guess: published ones have hundreds */
#define HEAP_LIMIT_KIB (1u << 20) /* for the interpreter, where there is no JIT: 1 GiB, guess */

struct regex {
	pcre2_code *code;
	bool is_foreign;
};

struct regex_scan {
	const struct regex *regex;
	pcre2_match_data *match;
	pcre2_match_context *context;
};

static enum status library_error(int code, enum status status, const char *what, struct err *err)
{
	PCRE2_UCHAR reason[256];

	if (pcre2_get_error_message(code, reason, sizeof(reason)) < 0)
		reason[0] = '\0';
	return err_set(err, status, "%s: %s (PCRE2 %d)", what, (const char *)reason, code);
}

enum status regex_compile(const char *pattern, bool is_foreign, struct regex **out, struct err *err)
{
	int code = 0;
	PCRE2_SIZE offset = 0;
	uint32_t matches_empty = 0;
	pcre2_code *compiled;

	*out = NULL;
	if (is_foreign && strlen(pattern) > PATTERN_BYTES_MAX)
		return err_set(err, STATUS_INPUT, "the splitting pattern is longer than %d bytes", PATTERN_BYTES_MAX);
	/* \C would match a part of a character. */
	compiled = pcre2_compile(
		(PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
	if (!compiled)
		return is_foreign ? library_error(code, STATUS_INPUT, "the splitting pattern does not compile", err)
				  : library_error(code, STATUS_INTERNAL, "a built-in pattern does not compile", err);
	if (pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_empty) == 0 && matches_empty) {
		pcre2_code_free(compiled);
		return err_set(err, is_foreign ? STATUS_INPUT : STATUS_INTERNAL, "the splitting pattern matches the empty text");
	}
	/* Without a JIT (an unusual CPU, or memory that may not be executable) matching is slower and gives the same. */
	(void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
	*out = mem_calloc(1, sizeof(**out));
	(*out)->code = compiled;
	(*out)->is_foreign = is_foreign;
	return STATUS_OK;
}

void regex_free(struct regex *regex)
{
	if (!regex)
		return;
	pcre2_code_free(regex->code);
	mem_free(regex);
}

enum status regex_scan_create(const struct regex *regex, struct regex_scan **out, struct err *err)
{
	struct regex_scan *scan = mem_calloc(1, sizeof(*scan));

	*out = NULL;
	scan->regex = regex;
	scan->match = pcre2_match_data_create(1, NULL);
	scan->context = pcre2_match_context_create(NULL);
	if (!scan->match || !scan->context) {
		regex_scan_free(scan);
		return err_set(err, STATUS_NO_MEMORY, "no memory for a search");
	}
	pcre2_set_match_limit(scan->context, regex->is_foreign ? FOREIGN_MATCH_LIMIT : MATCH_LIMIT);
	pcre2_set_depth_limit(scan->context, regex->is_foreign ? FOREIGN_MATCH_LIMIT : MATCH_LIMIT);
	pcre2_set_heap_limit(scan->context, HEAP_LIMIT_KIB);
	*out = scan;
	return STATUS_OK;
}

void regex_scan_free(struct regex_scan *scan)
{
	if (!scan)
		return;
	pcre2_match_data_free(scan->match);
	pcre2_match_context_free(scan->context);
	mem_free(scan);
}

enum status regex_find(
	struct regex_scan *scan, const char *text, size_t len, size_t from, size_t *begin, size_t *end, struct err *err)
{
	/* The caller has checked the text: a check per call would make a long text quadratic. */
	uint32_t options = PCRE2_NO_UTF_CHECK;
	int code = pcre2_match(scan->regex->code, (PCRE2_SPTR)text, len, from, options, scan->match, scan->context);
	const PCRE2_SIZE *offsets;

	/* The JIT's stack is 32 KiB of the thread's; the interpreter keeps what it needs on the heap. */
	if (code == PCRE2_ERROR_JIT_STACKLIMIT)
		code = pcre2_match(
			scan->regex->code, (PCRE2_SPTR)text, len, from, options | PCRE2_NO_JIT, scan->match, scan->context);
	if (code == PCRE2_ERROR_NOMATCH) {
		*begin = *end = len;
		return STATUS_OK;
	}
	if (code < 0)
		return library_error(
			code, scan->regex->is_foreign ? STATUS_INPUT : STATUS_INTERNAL, "the text cannot be split", err);
	offsets = pcre2_get_ovector_pointer(scan->match);
	*begin = offsets[0];
	*end = offsets[1];
	return STATUS_OK;
}
