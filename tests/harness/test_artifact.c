/* Hashes of programs and models, and the file that remembers them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/artifact.h"

#define LARGE_BYTES ((size_t)3 << 20) /* above the size from which hashes are remembered */

static void write_file(const char *path, char content, size_t len)
{
	char *bytes = mem_calloc(len, 1);
	memset(bytes, content, len);
	assert_int_equal(file_write_atomic(path, bytes, len, NULL), STATUS_OK);
	mem_free(bytes);
}

static void a_hash_is_that_of_the_bytes_and_follows_them(void **state)
{
	char folder[] = "/tmp/verdict-artifact-XXXXXX", path[64], cache[64];
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/model", folder);
	snprintf(cache, sizeof(cache), "%s/cache", folder);
	char plain[65], first[65], again[65], changed[65];
	write_file(path, 'a', LARGE_BYTES);
	assert_int_equal(sha256_file(path, plain, NULL), STATUS_OK);
	assert_int_equal(artifact_hash(path, cache, first, NULL), STATUS_OK);
	assert_string_equal(first, plain);
	assert_true(file_exists(cache));
	assert_int_equal(artifact_hash(path, cache, again, NULL), STATUS_OK);
	assert_string_equal(again, plain);
	write_file(path, 'b', LARGE_BYTES); /* same path and size, later time */
	assert_int_equal(artifact_hash(path, cache, changed, NULL), STATUS_OK);
	assert_string_not_equal(changed, first);
	unlink(path);
	unlink(cache);
	rmdir(folder);
}

static void a_cache_that_is_remembered_is_used_and_a_broken_one_is_not(void **state)
{
	char folder[] = "/tmp/verdict-artifact-XXXXXX", path[64], cache[64];
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/model", folder);
	snprintf(cache, sizeof(cache), "%s/cache", folder);
	char first[65], again[65];
	write_file(path, 'a', LARGE_BYTES);
	assert_int_equal(artifact_hash(path, cache, first, NULL), STATUS_OK);
	/* A remembered hash is taken as it is: shown by changing it. */
	struct text text = {0};
	assert_int_equal(file_read(cache, 1 << 20, &text, NULL), STATUS_OK);
	char *hash = strstr(text.data, first);
	assert_non_null(hash);
	memset(hash, 'f', 64);
	assert_int_equal(file_write_atomic(cache, text.data, text.len, NULL), STATUS_OK);
	assert_int_equal(artifact_hash(path, cache, again, NULL), STATUS_OK);
	assert_int_equal(strspn(again, "f"), 64);
	static const char *const broken[] = {"", "[]", "{\"x\":", "not json", "{\"/\": 5}"};
	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		assert_int_equal(file_write_atomic(cache, broken[i], strlen(broken[i]), NULL), STATUS_OK);
		assert_int_equal(artifact_hash(path, cache, again, NULL), STATUS_OK);
		assert_string_equal(again, first);
	}
	assert_int_equal(artifact_hash(path, "/no/such/folder/cache", again, NULL), STATUS_OK);
	assert_string_equal(again, first);
	text_release(&text);
	unlink(path);
	unlink(cache);
	rmdir(folder);
}

static void a_folder_is_hashed_by_its_model_files(void **state)
{
	char folder[] = "/tmp/verdict-folder-XXXXXX", first[SHA256_HEX_BYTES], again[SHA256_HEX_BYTES];
	struct text config = {0}, weights = {0}, readme = {0};
	assert_non_null(mkdtemp(folder));
	text_printf(&config, "%s/config.json", folder);
	text_printf(&weights, "%s/model.safetensors", folder);
	text_printf(&readme, "%s/README.md", folder);
	assert_int_equal(artifact_hash(folder, NULL, first, NULL), STATUS_OK); /* empty: the name */
	write_file(text_str(&config), 'c', 10);
	assert_int_equal(artifact_hash(folder, NULL, again, NULL), STATUS_OK);
	assert_string_not_equal(first, again);
	write_file(text_str(&weights), 'w', 10);
	assert_int_equal(artifact_hash(folder, NULL, first, NULL), STATUS_OK);
	assert_string_not_equal(first, again);
	write_file(text_str(&readme), 'r', 10); /* no part of the model */
	assert_int_equal(artifact_hash(folder, NULL, again, NULL), STATUS_OK);
	assert_string_equal(first, again);
	write_file(text_str(&weights), 'v', 10);
	assert_int_equal(artifact_hash(folder, NULL, again, NULL), STATUS_OK);
	assert_string_not_equal(first, again);
	unlink(text_str(&config));
	unlink(text_str(&weights));
	unlink(text_str(&readme));
	rmdir(folder);
	text_release(&config);
	text_release(&weights);
	text_release(&readme);
}

static void what_is_no_file_is_hashed_by_its_name(void **state)
{
	char a[65], b[65], c[65];
	assert_int_equal(artifact_hash("org/model-7b", NULL, a, NULL), STATUS_OK);
	assert_int_equal(artifact_hash("org/model-7b", NULL, b, NULL), STATUS_OK);
	assert_int_equal(artifact_hash("org/model-8b", NULL, c, NULL), STATUS_OK);
	assert_string_equal(a, b);
	assert_string_not_equal(a, c);
}

static void programs_are_found_as_a_shell_would(void **state)
{
	struct text found = {0};
	assert_true(artifact_find_program("sh", "/no/such:/bin:/usr/bin", &found));
	assert_string_equal(text_str(&found), "/bin/sh");
	assert_true(artifact_find_program("/bin/sh", NULL, &found));
	assert_string_equal(text_str(&found), "/bin/sh");
	assert_false(artifact_find_program("sh", "/no/such", &found));
	assert_false(artifact_find_program("sh", NULL, &found));
	assert_false(artifact_find_program("/etc/passwd", NULL, &found)); /* not to be run */
	assert_false(artifact_find_program("/bin", NULL, &found)); /* a folder */
	text_release(&found);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_hash_is_that_of_the_bytes_and_follows_them),
		cmocka_unit_test(a_cache_that_is_remembered_is_used_and_a_broken_one_is_not),
		cmocka_unit_test(a_folder_is_hashed_by_its_model_files),
		cmocka_unit_test(what_is_no_file_is_hashed_by_its_name),
		cmocka_unit_test(programs_are_found_as_a_shell_would),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
