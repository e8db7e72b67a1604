/* The rules that a program can check: which layer includes which, which library has which one home, which calls are banned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fts.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

#define SOURCE_BYTES_MAX ((size_t)1 << 20)

/* Who may include whom. A folder may always include itself; "kernels" covers its subfolders. */
static const struct {
	const char *layer, *may_include[3];
} layers[] = {
	{"base/", {NULL}},
	{"kernels/", {"base/", NULL}},
	{"engine/", {"base/", "kernels/", NULL}},
	{"harness/", {"base/", NULL}},
};

/* Headers that exactly one module of each program may include. */
static const struct {
	const char *header, *homes[3];
} libraries[] = {
	{"<jansson.h>", {"base/json.c", NULL}},
	{"<microhttpd.h>", {"base/http.c", NULL}},
	{"<pcre2.h>", {"engine/regex.c", NULL}},
	{"<utf8proc.h>", {"engine/normalise.c", NULL}},
	{"<curl/curl.h>", {"harness/transfer.c", NULL}},
	{"<sqlite3.h>", {"harness/sql.c", NULL}},
};

static const char *const banned_everywhere[] = {
	"strcpy",
	"strcat",
	"sprintf",
	"vsprintf",
	"gets",
	"strtok",
	"atoi",
	"atol",
	"atof",
	"sscanf",
	"system",
	"popen",
	"rand",
	"srand",
	"alloca",
};

/* Calls with a home: allowed only in the files listed. */
static const struct {
	const char *call, *homes[8];
} homed[] = {
	{"malloc", {"base/mem.c", NULL}},
	{"calloc", {"base/mem.c", NULL}},
	{"realloc", {"base/mem.c", NULL}},
	{"free", {"base/mem.c", NULL}},
	{"posix_memalign", {"base/mem.c", NULL}},
	{"getenv", {"engine/options.c", "engine/main.c", "harness/main.c", "harness/options.c", NULL}},
	{"exit", {"engine/main.c", "harness/main.c", NULL}},
	{"clock_gettime", {"base/clock.c", NULL}},
	{"gettimeofday", {"base/clock.c", NULL}},
	{"time", {"base/clock.c", NULL}},
	{"nanosleep", {"base/clock.c", NULL}},
	{"usleep", {"base/clock.c", NULL}},
	{"sleep", {"base/clock.c", NULL}},
	{"printf", {"harness/report.c", "engine/main.c", "harness/main.c", NULL}},
	{"puts", {"harness/report.c", "engine/main.c", "harness/main.c", NULL}},
};

typedef void (*source_visitor)(const char *path, const struct text *code, struct text *complaints);

/* Replaces comments, strings and character constants by spaces, keeping newlines, so that prose cannot offend. Include lines keep
 * theirs. */
static void strip(const struct text *source, struct text *out)
{
	const char *s = text_str(source);
	for (size_t i = 0; i < source->len;) {
		bool at_line_start = i == 0 || s[i - 1] == '\n';
		if (at_line_start && text_starts_with(s + i, "#include")) {
			size_t len = strcspn(s + i, "\n");
			text_append(out, s + i, len);
			i += len;
		} else if (text_starts_with(s + i, "//")) {
			i += strcspn(s + i, "\n");
		} else if (text_starts_with(s + i, "/*")) {
			const char *end = strstr(s + i + 2, "*/");
			size_t stop = end ? (size_t)(end - s) + 2 : source->len;
			for (; i < stop; i++)
				text_append_char(out, s[i] == '\n' ? '\n' : ' ');
		} else if (s[i] == '"' || s[i] == '\'') {
			char quote = s[i++];
			while (i < source->len && s[i] != quote && s[i] != '\n')
				i += s[i] == '\\' ? 2 : 1;
			i++;
			text_append_char(out, ' ');
		} else {
			text_append_char(out, s[i++]);
		}
	}
}

static int line_of(const char *start, const char *at)
{
	int line = 1;
	for (const char *p = start; p < at; p++)
		line += *p == '\n';
	return line;
}

static bool listed(const char *const *items, const char *path)
{
	for (; *items; items++)
		if (strcmp(*items, path) == 0)
			return true;
	return false;
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Complains about each place where name is called: the bare word followed by an opening parenthesis. */
static void find_calls(const char *path, const struct text *code, const char *name, struct text *complaints)
{
	const char *start = text_str(code);
	for (const char *at = strstr(start, name); at; at = strstr(at + 1, name)) {
		const char *after = at + strlen(name);
		if (at > start && (is_word(at[-1]) || at[-1] == '.' || (at[-1] == '>' && at - 1 > start && at[-2] == '-')))
			continue; /* part of a longer word, or a function pointer in a struct */
		while (*after == ' ')
			after++;
		if (*after == '(')
			text_printf(complaints, "%s:%d: %s is not called here\n", path, line_of(start, at), name);
	}
}

static void check_calls(const char *path, const struct text *code, struct text *complaints)
{
	for (size_t i = 0; i < sizeof banned_everywhere / sizeof banned_everywhere[0]; i++)
		find_calls(path, code, banned_everywhere[i], complaints);
	for (size_t i = 0; i < sizeof homed / sizeof homed[0]; i++)
		if (!listed(homed[i].homes, path))
			find_calls(path, code, homed[i].call, complaints);
}

static bool allowed_include(const char *path, const char *target)
{
	for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
		if (!text_starts_with(path, layers[i].layer))
			continue;
		if (text_starts_with(target, layers[i].layer))
			return true;
		for (const char *const *other = layers[i].may_include; *other; other++)
			if (text_starts_with(target, *other))
				return true;
		return false;
	}
	return true;
}

static void check_includes(const char *path, const struct text *code, struct text *complaints)
{
	const char *start = text_str(code);
	for (const char *at = strstr(start, "#include"); at; at = strstr(at + 1, "#include")) {
		const char *name = at + strlen("#include");
		name += strspn(name, " ");
		char target[256];
		size_t len = strcspn(name, "\n");
		snprintf(target, sizeof target, "%.*s", (int)len, name);
		for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
			if (text_equal(target, libraries[i].header) && !listed(libraries[i].homes, path))
				text_printf(complaints, "%s:%d: %s belongs to %s alone\n", path, line_of(start, at), target,
					libraries[i].homes[0]);
		if (target[0] == '"' && !allowed_include(path, target + 1))
			text_printf(complaints, "%s:%d: this layer must not include %s\n", path, line_of(start, at), target);
		if (target[0] == '"' && strstr(target, ".c\""))
			text_printf(complaints, "%s:%d: sources are not included\n", path, line_of(start, at));
	}
}

/* Runs visit over every C and CUDA source of the product's layers. Returns the number of files seen. */
static int visit_sources(source_visitor visit, struct text *complaints)
{
	char base[] = "base", kernels[] = "kernels", engine[] = "engine", harness[] = "harness";
	char *roots[] = {base, kernels, engine, harness, NULL};
	int seen = 0;
	FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	assert_non_null(walk);
	for (FTSENT *entry = fts_read(walk); entry; entry = fts_read(walk)) {
		const char *dot = strrchr(entry->fts_name, '.');
		if (entry->fts_info != FTS_F || !dot ||
			(strcmp(dot, ".c") && strcmp(dot, ".h") && strcmp(dot, ".cu") && strcmp(dot, ".cuh")))
			continue;
		struct text source = {0}, code = {0};
		struct err err = {0};
		assert_int_equal(file_read(entry->fts_path, SOURCE_BYTES_MAX, &source, &err), STATUS_OK);
		strip(&source, &code);
		visit(entry->fts_path, &code, complaints);
		text_release(&source);
		text_release(&code);
		seen++;
	}
	fts_close(walk);
	return seen;
}

static void expect_no_complaints(source_visitor visit)
{
	struct text complaints = {0};
	assert_true(visit_sources(visit, &complaints) > 20);
	if (complaints.len)
		fail_msg("\n%s", text_str(&complaints));
	text_release(&complaints);
}

static void layers_include_only_what_lies_below(void **state)
{
	expect_no_complaints(check_includes);
}

static void banned_calls_are_not_made(void **state)
{
	expect_no_complaints(check_calls);
}

static void the_checker_sees_offences_and_ignores_prose(void **state)
{
	struct text source = {0}, code = {0}, complaints = {0};
	text_append_str(&source,
		"#include \"engine/gguf.h\"\n/* strcpy(a, b) */\nconst char *s = \"atoi(x)\";\nx.free(y); "
		"p->exit(1);\nmem_free(z);\n");
	strip(&source, &code);
	check_calls("harness/x.c", &code, &complaints);
	assert_string_equal(text_str(&complaints), "");
	check_includes("harness/x.c", &code, &complaints);
	assert_non_null(strstr(text_str(&complaints), "harness/x.c:1: this layer must not include"));
	text_clear(&complaints);
	text_append_str(&code, "strcpy (a, b);\nfree(q);\n");
	check_calls("harness/x.c", &code, &complaints);
	assert_non_null(strstr(text_str(&complaints), "harness/x.c:6: strcpy"));
	assert_non_null(strstr(text_str(&complaints), "harness/x.c:7: free"));
	text_release(&source);
	text_release(&code);
	text_release(&complaints);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_checker_sees_offences_and_ignores_prose),
		cmocka_unit_test(layers_include_only_what_lies_below),
		cmocka_unit_test(banned_calls_are_not_made),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
