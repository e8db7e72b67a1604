/* Tests of engine/tokenizer: ids against Hugging Face tokenizers, round trips, hostile texts, streams, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "engine/tokenizer.h"
#include "tests/support/real_model.h"

#define GOLDEN "tests/golden/tokenizer/"
#define SEED 20241129

static const char *const rules[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
#define N_RULES (sizeof(rules) / sizeof(rules[0]))

static struct tokenizer *open_real(const char *pre)
{
	struct source source;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};

	if (source_open(real_model_path(), &source, &err) || tokenizer_open(&source, pre, &tokenizer, &err))
		fail_msg("%s", err.text);
	source_close(&source);
	return tokenizer;
}

static struct token_list encode(const struct tokenizer *tokenizer, const char *text, size_t len, bool parse_special)
{
	struct token_list ids = {0};
	struct err err = {0};

	if (tokenizer_encode(tokenizer, text, len, parse_special, &ids, &err))
		fail_msg("%s", err.text);
	return ids;
}

static struct text decode(const struct tokenizer *tokenizer, const struct token_list *ids)
{
	struct text text = {0};

	for (size_t i = 0; i < ids->count; i++)
		assert_true(tokenizer_decode_one(tokenizer, ids->ids[i], true, &text));
	return text;
}

/* Golden files. ----------------------------------------------------------------------------------------------------- */

static bool ids_match(const struct token_list *ids, const struct json *expected)
{
	bool match = ids->count == json_count(expected);

	for (size_t i = 0; match && i < ids->count; i++)
		match = ids->ids[i] == json_int(json_at(expected, i), -1);
	return match;
}

/* Compares every line of a golden file under one rule; where a line has no ids for the rule, those of smollm count. */
static void compare_file(const char *path, const char *rule, bool parse_special, size_t lines_min)
{
	struct tokenizer *tokenizer = open_real(rule);
	struct text file = {0};
	struct err err = {0};
	size_t lines = 0, wrong = 0;

	assert_int_equal(file_read(path, (size_t)8 << 20, &file, &err), STATUS_OK);
	for (const char *line = text_str(&file); *line; lines++) {
		size_t len = strcspn(line, "\n");
		struct json *row = NULL;
		const struct json *expected;
		struct token_list ids;

		if (json_parse(line, len, path, &row, &err))
			fail_msg("line %zu: %s", lines + 1, err.text);
		expected = json_get(row, rule) ? json_get(row, rule) : json_get(row, "smollm");
		ids = encode(tokenizer, json_text(json_get(row, "text")), json_text_len(json_get(row, "text")), parse_special);
		if (!ids_match(&ids, expected) && ++wrong <= 10)
			print_error("%s: line %zu differs: %.*s\n", rule, lines + 1, (int)(len < 300 ? len : 300), line);
		token_list_release(&ids);
		json_free(row);
		line += len + (line[len] == '\n');
	}
	assert_int_equal(wrong, 0);
	assert_true(lines >= lines_min);
	text_release(&file);
	tokenizer_close(tokenizer);
}

static void smollm_ids_equal_hugging_face(void **state)
{
	compare_file(GOLDEN "strings.jsonl", "smollm", false, 3000);
}

static void gpt2_ids_equal_hugging_face(void **state)
{
	compare_file(GOLDEN "strings.jsonl", "gpt-2", false, 3000);
}

static void llama3_ids_equal_hugging_face(void **state)
{
	compare_file(GOLDEN "strings.jsonl", "llama-bpe", false, 3000);
}

static void qwen2_ids_equal_hugging_face(void **state)
{
	compare_file(GOLDEN "strings.jsonl", "qwen2", false, 3000);
}

static void special_tokens_in_text_equal_hugging_face(void **state)
{
	compare_file(GOLDEN "special.jsonl", "smollm", true, 200);
}

/* Control tokens. --------------------------------------------------------------------------------------------------- */

static void text_never_becomes_control_tokens(void **state)
{
	for (size_t r = 0; r < N_RULES; r++) {
		struct tokenizer *tokenizer = open_real(rules[r]);

		for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
			struct text piece = {0}, back;
			struct token_list ids;

			if (!tokenizer_is_control(tokenizer, id))
				continue;
			assert_true(tokenizer_decode_one(tokenizer, id, true, &piece));
			ids = encode(tokenizer, piece.data, piece.len, false);
			assert_true(ids.count > 1);
			for (size_t i = 0; i < ids.count; i++)
				assert_false(tokenizer_is_control(tokenizer, ids.ids[i]));
			back = decode(tokenizer, &ids);
			assert_string_equal(text_str(&back), text_str(&piece));
			token_list_release(&ids);
			ids = encode(tokenizer, piece.data, piece.len, true);
			assert_true(ids.count == 1 && ids.ids[0] == id);
			token_list_release(&ids);
			text_release(&piece);
			text_release(&back);
		}
		tokenizer_close(tokenizer);
	}
}

static void facts_of_the_real_vocabulary_are_known(void **state)
{
	struct tokenizer *tokenizer = open_real(NULL);
	struct text hidden = {0};

	assert_string_equal(tokenizer_pre_name(tokenizer), "smollm");
	assert_int_equal(tokenizer_vocab_size(tokenizer), 49152);
	assert_int_equal(tokenizer_bos(tokenizer), 1);
	assert_false(tokenizer_adds_bos(tokenizer));
	assert_int_equal(tokenizer_find(tokenizer, "<|im_end|>"), 2);
	assert_int_equal(tokenizer_find(tokenizer, "<|im_end"), -1);
	assert_int_equal(tokenizer_find(tokenizer, ""), -1);
	assert_true(tokenizer_is_end(tokenizer, 2));
	assert_true(tokenizer_is_end(tokenizer, 0));
	assert_false(tokenizer_is_end(tokenizer, 1));
	assert_false(tokenizer_is_end(tokenizer, 49152));
	assert_false(tokenizer_is_control(tokenizer, 17));
	assert_false(tokenizer_is_control(tokenizer, -1));
	assert_false(tokenizer_decode_one(tokenizer, -1, true, &hidden));
	assert_false(tokenizer_decode_one(tokenizer, 49152, true, &hidden));
	assert_true(tokenizer_decode_one(tokenizer, 2, false, &hidden));
	assert_int_equal(hidden.len, 0);
	text_release(&hidden);
	tokenizer_close(tokenizer);
}

/* Bytes. ------------------------------------------------------------------------------------------------------------ */

/* Drops the bytes that the vocabulary has no token for. */
static size_t keep_known_bytes(const struct tokenizer *tokenizer, char *bytes, size_t len)
{
	size_t kept = 0;

	for (size_t i = 0; i < len; i++) {
		struct token_list ids = encode(tokenizer, &bytes[i], 1, false);

		if (ids.count > 0)
			bytes[kept++] = bytes[i];
		token_list_release(&ids);
	}
	return kept;
}

/* qwen2 is the last of the rules: it normalises, so that not every text comes back as it was. */
static void random_bytes_round_trip_under_rules_that_do_not_normalise(void **state)
{
	for (size_t r = 0; r < N_RULES - 1; r++) {
		struct tokenizer *tokenizer = open_real(rules[r]);

		print_message("seed %d\n", SEED);
		for (uint64_t round = 0; round < 300; round++) {
			char bytes[64];
			size_t len = (size_t)random_below(SEED, round, 0, sizeof(bytes) + 1);
			struct token_list ids;
			struct text back;

			for (size_t i = 0; i < len; i++)
				bytes[i] = (char)random_below(SEED, round, i + 1, 256);
			len = keep_known_bytes(tokenizer, bytes, len);
			ids = encode(tokenizer, bytes, len, false);
			back = decode(tokenizer, &ids);
			assert_int_equal(back.len, len);
			assert_memory_equal(text_str(&back), bytes, len);
			token_list_release(&ids);
			text_release(&back);
		}
		tokenizer_close(tokenizer);
	}
}

static void bytes_without_a_token_leave_none(void **state)
{
	struct tokenizer *tokenizer = open_real(NULL);
	struct token_list ids = encode(tokenizer, "\x04\xc0\xff", 3, false);

	assert_int_equal(ids.count, 0);
	token_list_release(&ids);
	ids = encode(tokenizer, "Hello\x04 world", 12, false);
	assert_int_equal(ids.count, 2);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

static void nul_bytes_are_text(void **state)
{
	struct tokenizer *tokenizer = open_real(NULL);
	struct token_list ids = encode(tokenizer, "a\0b\0", 4, false);
	struct text back = decode(tokenizer, &ids);

	assert_int_equal(back.len, 4);
	assert_memory_equal(back.data, "a\0b\0", 4);
	token_list_release(&ids);
	text_release(&back);
	tokenizer_close(tokenizer);
}

/* An invalid byte must not change how the valid text around it is split. */
static void invalid_bytes_stand_alone(void **state)
{
	struct tokenizer *tokenizer = open_real(NULL);
	struct token_list whole = encode(tokenizer, "the end\x80 of it", 14, false);
	struct token_list parts = {0};
	struct err err = {0};

	assert_int_equal(tokenizer_encode(tokenizer, "the end", 7, false, &parts, &err), STATUS_OK);
	assert_int_equal(tokenizer_encode(tokenizer, "\x80", 1, false, &parts, &err), STATUS_OK);
	assert_int_equal(tokenizer_encode(tokenizer, " of it", 6, false, &parts, &err), STATUS_OK);
	assert_int_equal(whole.count, parts.count);
	assert_memory_equal(whole.ids, parts.ids, whole.count * sizeof(*whole.ids));
	token_list_release(&whole);
	token_list_release(&parts);
	tokenizer_close(tokenizer);
}

/* Long texts. ------------------------------------------------------------------------------------------------------- */

/* Under the rules other than the model's a quarter of the length, to save time. */
static void long_words_do_not_take_quadratic_time(void **state)
{
	static const char *const units[] = {"a", "ab", "Ab", " ", "\n", "\t", "7", "!", "'s", "\xc3\xa9", "\xf0\x9f\x99\x82",
		"e\xcc\x81", "\xcc\x96\xcc\x81", "\xff", "<", "<|im_", " \n", " \xe2\x80\x83", "\xe3\x81\xae", "\r\n ", "x\x80"};

	for (size_t r = 0; r < N_RULES; r++) {
		struct tokenizer *tokenizer = open_real(rules[r]);

		for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
			struct text text = {0};
			struct token_list ids;
			int64_t start, ms;

			while (text.len < (r == 0 ? (size_t)1 << 18 : (size_t)1 << 16))
				text_append_str(&text, units[u]);
			text_append_str(&text, "x");
			start = clock_monotonic_ns();
			ids = encode(tokenizer, text.data, text.len, true);
			ms = (clock_monotonic_ns() - start) / 1000000;
			assert_true(ids.count > 0 || units[u][0] == '\xff');
			if (ms > 20000) /* linear: 0.1 s, some seconds under a sanitizer on a busy machine; quadratic: minutes */
				fail_msg("%s: a long text of unit %zu took %lld ms", rules[r], u, (long long)ms);
			token_list_release(&ids);
			text_release(&text);
		}
		tokenizer_close(tokenizer);
	}
}

static void texts_beyond_the_limit_are_refused(void **state)
{
	struct tokenizer *tokenizer = open_real(NULL);
	struct token_list ids = {0};
	struct err err = {0};

	/* The text is not looked at, so it need not be there. */
	assert_int_equal(tokenizer_encode(tokenizer, "", TOKENIZER_TEXT_BYTES_MAX + 1, false, &ids, &err), STATUS_INPUT);
	assert_int_equal(ids.count, 0);
	tokenizer_close(tokenizer);
}

/* Threads. ---------------------------------------------------------------------------------------------------------- */

#define N_THREADS 4

struct thread_job {
	const struct tokenizer *tokenizer;
	const struct text *text;
	struct token_list ids;
	enum status status;
};

static void *encode_in_thread(void *argument)
{
	struct thread_job *job = argument;

	for (int round = 0; round < 20 && !job->status; round++) {
		job->ids.count = 0;
		job->status = tokenizer_encode(job->tokenizer, job->text->data, job->text->len, true, &job->ids, NULL);
	}
	return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
	struct tokenizer *tokenizer = open_real("qwen2");
	struct text text = {0};
	struct token_list expected;
	pthread_t threads[N_THREADS];
	struct thread_job jobs[N_THREADS] = {0};
	struct err err = {0};

	assert_int_equal(file_read(GOLDEN "special.jsonl", (size_t)1 << 20, &text, &err), STATUS_OK);
	expected = encode(tokenizer, text.data, text.len, true);
	for (size_t i = 0; i < N_THREADS; i++) {
		jobs[i] = (struct thread_job){.tokenizer = tokenizer, .text = &text};
		assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &jobs[i]), 0);
	}
	for (size_t i = 0; i < N_THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(jobs[i].status, STATUS_OK);
		assert_int_equal(jobs[i].ids.count, expected.count);
		assert_memory_equal(jobs[i].ids.ids, expected.ids, expected.count * sizeof(*expected.ids));
		token_list_release(&jobs[i].ids);
	}
	token_list_release(&expected);
	text_release(&text);
	tokenizer_close(tokenizer);
}

/* Streams. ---------------------------------------------------------------------------------------------------------- */

static void streams_give_whole_code_points_only(void **state)
{
	static const char text[] = "caf\xc3\xa9 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 \xe6\x97\xa5\xe6\x9c\xac \xe0\xa4\x95";
	struct tokenizer *tokenizer = open_real(NULL);
	struct token_list ids = encode(tokenizer, text, strlen(text), false);
	struct text_stream stream = {0};
	struct text out = {0};

	for (size_t i = 0; i < ids.count; i++) {
		text_stream_push(&stream, tokenizer, ids.ids[i], &out);
		assert_true(utf8_is_valid(text_str(&out), out.len));
		assert_memory_equal(text_str(&out), text, out.len);
	}
	text_stream_push(&stream, tokenizer, 2, &out); /* a control token has no text */
	text_stream_finish(&stream, &out);
	assert_string_equal(text_str(&out), text);
	text_stream_release(&stream);
	text_release(&out);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

static void streams_that_end_inside_a_character_give_one_replacement(void **state)
{
	struct tokenizer *tokenizer = open_real(NULL);
	struct token_list ids = encode(tokenizer, "ok \xf0\x9f", 5, false);
	struct text_stream stream = {0};
	struct text out = {0};

	for (size_t i = 0; i < ids.count; i++)
		text_stream_push(&stream, tokenizer, ids.ids[i], &out);
	text_stream_push(&stream, tokenizer, 1 << 30, &out);
	assert_string_equal(text_str(&out), "ok ");
	text_stream_finish(&stream, &out);
	assert_string_equal(text_str(&out), "ok \xef\xbf\xbd");
	text_stream_finish(&stream, &out);
	assert_string_equal(text_str(&out), "ok \xef\xbf\xbd");
	text_stream_release(&stream);
	text_release(&out);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

static void names_on_the_command_line_win_and_aliases_count(void **state)
{
	static const char *const names[][2] = {
		{"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"gpt2", "gpt-2"}, {"qwen2", "qwen2"}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct tokenizer *tokenizer = open_real(names[i][0]);

		assert_string_equal(tokenizer_pre_name(tokenizer), names[i][1]);
		tokenizer_close(tokenizer);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(smollm_ids_equal_hugging_face),
		cmocka_unit_test(gpt2_ids_equal_hugging_face),
		cmocka_unit_test(llama3_ids_equal_hugging_face),
		cmocka_unit_test(qwen2_ids_equal_hugging_face),
		cmocka_unit_test(special_tokens_in_text_equal_hugging_face),
		cmocka_unit_test(text_never_becomes_control_tokens),
		cmocka_unit_test(facts_of_the_real_vocabulary_are_known),
		cmocka_unit_test(random_bytes_round_trip_under_rules_that_do_not_normalise),
		cmocka_unit_test(bytes_without_a_token_leave_none),
		cmocka_unit_test(nul_bytes_are_text),
		cmocka_unit_test(invalid_bytes_stand_alone),
		cmocka_unit_test(long_words_do_not_take_quadratic_time),
		cmocka_unit_test(texts_beyond_the_limit_are_refused),
		cmocka_unit_test(threads_share_a_tokenizer),
		cmocka_unit_test(streams_give_whole_code_points_only),
		cmocka_unit_test(streams_that_end_inside_a_character_give_one_replacement),
		cmocka_unit_test(names_on_the_command_line_win_and_aliases_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
