/* Prose stands on its own: documents and comments name no tickets, no paths of one machine, and not how the work was shared out.
 * Such references mean nothing to whoever has only this tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <ctype.h>
#include <fts.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/text.h"

#define FILE_BYTES_MAX ((size_t)1 << 22) /* far above any source or document; recorded data is not looked at */

/* Folders of what others wrote, of data, and of what was built: by name, wherever they lie. */
static const char *const skipped_folders[] = {".git", "corpus", "models", "notebooks", "reference", "patterns"};

/* Words that a document has no use for; in sources they may name things of the program. */
static const char *const document_words[] = {
	"issue", "issues", "ticket", "tickets", "session", "sessions", "helper", "helpers", "worktree", "worktrees", "workplace"};

/* Nowhere, whatever the file: a word that a number follows, and the beginning of a path. */
static const char *const numbered_words[] = {"issue", "ticket", "tickets", "session", "sessions", "helper", "helpers"};
static const char *const machine_paths[] = {"/home/", "/root/", "/work/"};

enum kind { KIND_NONE, KIND_SOURCE, KIND_DOCUMENT };

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static int line_of(const char *start, const char *at)
{
	int line = 1;
	for (const char *p = start; p < at; p++)
		line += *p == '\n';
	return line;
}

/* The next place at or after `from` where word stands alone, in small letters or capitals; NULL where there is none. */
static const char *find_word(const char *start, const char *from, const char *word)
{
	size_t len = strlen(word);
	for (const char *at = strcasestr(from, word); at; at = strcasestr(at + 1, word))
		if ((at == start || !is_word(at[-1])) && !is_word(at[len]))
			return at;
	return NULL;
}

static void complain(const char *path, const char *start, const char *at, const char *what, struct text *complaints)
{
	text_printf(complaints, "%s:%d: %s\n", path, line_of(start, at), what);
}

static void check_numbered(const char *path, const char *content, const char *word, struct text *complaints)
{
	for (const char *at = find_word(content, content, word); at; at = find_word(content, at + 1, word)) {
		const char *after = at + strlen(word);
		after += strspn(after, " #");
		if (isdigit((unsigned char)*after))
			complain(path, content, at, "a number that only its tracker can explain", complaints);
	}
}

static void check_prose(const char *path, enum kind kind, const char *content, struct text *complaints)
{
	for (size_t i = 0; i < sizeof numbered_words / sizeof numbered_words[0]; i++)
		check_numbered(path, content, numbered_words[i], complaints);
	for (size_t i = 0; i < sizeof machine_paths / sizeof machine_paths[0]; i++)
		for (const char *at = strstr(content, machine_paths[i]); at; at = strstr(at + 1, machine_paths[i]))
			if (at == content || (!is_word(at[-1]) && at[-1] != '.'))
				complain(path, content, at, "a path of one machine", complaints);
	for (size_t i = 0; kind == KIND_DOCUMENT && i < sizeof document_words / sizeof document_words[0]; i++)
		for (const char *at = find_word(content, content, document_words[i]); at;
			at = find_word(content, at + 1, document_words[i]))
			complain(path, content, at, document_words[i], complaints);
}

static enum kind kind_of(const char *name)
{
	static const char *const source_ends[] = {".c", ".h", ".cu", ".cuh", ".mk", ".sh", ".py"};
	const char *dot = strrchr(name, '.');
	if (dot && strcmp(dot, ".md") == 0)
		return KIND_DOCUMENT;
	for (size_t i = 0; dot && i < sizeof source_ends / sizeof source_ends[0]; i++)
		if (strcmp(dot, source_ends[i]) == 0)
			return KIND_SOURCE;
	return strcmp(name, "Makefile") == 0 || strcmp(name, "run") == 0 ? KIND_SOURCE : KIND_NONE;
}

static bool is_skipped(const char *name)
{
	for (size_t i = 0; i < sizeof skipped_folders / sizeof skipped_folders[0]; i++)
		if (strcmp(name, skipped_folders[i]) == 0)
			return true;
	return text_starts_with(name, "build");
}

static void the_tree_speaks_of_itself_alone(void **state)
{
	char root[] = ".";
	char *roots[] = {root, NULL};
	struct text complaints = {0};
	int seen = 0;
	FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	assert_non_null(walk);
	for (FTSENT *entry = fts_read(walk); entry; entry = fts_read(walk)) {
		if (entry->fts_info == FTS_D && is_skipped(entry->fts_name)) {
			fts_set(walk, entry, FTS_SKIP);
			continue;
		}
		enum kind kind = entry->fts_info == FTS_F ? kind_of(entry->fts_name) : KIND_NONE;
		if (kind == KIND_NONE || strstr(entry->fts_path, "/test_prose.c")) /* this file quotes what it looks for */
			continue;
		struct text content = {0};
		assert_int_equal(file_read(entry->fts_path, FILE_BYTES_MAX, &content, NULL), STATUS_OK);
		check_prose(entry->fts_path, kind, text_str(&content), &complaints);
		text_release(&content);
		seen++;
	}
	fts_close(walk);
	assert_true(seen > 200); /* the walk began at the top of the tree */
	if (complaints.len)
		fail_msg("\n%s", text_str(&complaints));
	text_release(&complaints);
}

static void offences_are_seen_with_their_line(void **state)
{
	static const struct {
		enum kind kind;
		const char *content, *complaint;
	} cases[] = {
		{KIND_SOURCE, "\n/* As Issue 12 asks. */", "f:2: a number that only its tracker can explain\n"},
		{KIND_SOURCE, "see tickets #7", "f:1: a number that only its tracker can explain\n"},
		{KIND_SOURCE, "open(\"/home/me/x\")", "f:1: a path of one machine\n"},
		{KIND_DOCUMENT, "one\ntwo by a Helper", "f:2: helper\n"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text complaints = {0};
		check_prose("f", cases[i].kind, cases[i].content, &complaints);
		assert_string_equal(text_str(&complaints), cases[i].complaint);
		text_release(&complaints);
	}
}

static void words_of_the_program_are_no_offences(void **state)
{
	struct text complaints = {0};
	check_prose("f", KIND_SOURCE, "struct session *session; /* issues 1 step */ tissue 3; \"a/home/b\" ../work/x sessions[3]",
		&complaints);
	check_prose("f", KIND_DOCUMENT, "It reissues nothing; obsessions.", &complaints);
	assert_string_equal(text_str(&complaints), "");
	text_release(&complaints);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(offences_are_seen_with_their_line),
		cmocka_unit_test(words_of_the_program_are_no_offences),
		cmocka_unit_test(the_tree_speaks_of_itself_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
