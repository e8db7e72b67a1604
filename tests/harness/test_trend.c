/* `verdict trend` and `verdict compare` on databases of many nights: order by UTC alone, one alarm for one change, and no
 * comparison of something with itself or without a baseline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "harness/commands.h"
#include "tests/support/capture.h"
#include "tests/support/store_bed.h"

#define DAY_NS ((int64_t)86400 * 1000000000)
#define WORDS_MAX 12

/* A record of three blocks; nights are copies of it with other times and figures. */
static struct json *one_night(struct store_bed *f)
{
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	return store_bed_export(f, f->id);
}

/* Adds a night in which the baseline ran at tps, factor times the figures of the record. */
static void add_night(struct store_bed *f, const struct json *record, int64_t day, double tps)
{
	struct json *copy = json_clone(record), *verdicts = json_get(copy, "verdicts");
	bool added = false;
	json_set(json_get(copy, "experiment"), "started_utc_ns", json_new_integer(day * DAY_NS));
	for (size_t i = 0; i < json_count(verdicts); i++) {
		struct json *verdict = json_at(verdicts, i);
		json_set(verdict, "time_utc_ns", json_new_integer(day * DAY_NS));
		json_set(verdict, "baseline_metric", json_new_number(tps));
		json_set(verdict, "arm_metric", json_new_number(tps * 1.3));
	}
	if (store_import(f->store, copy, &added, &f->err))
		fail_msg("%s", f->err.text);
	assert_true(added);
	json_free(copy);
}

static enum status run(
	struct store_bed *f, enum status (*command)(int, char **, struct err *), const char *const *words, struct json **out)
{
	const char *argv[WORDS_MAX] = {"verdict", "command", "--db", f->path, "--json"};
	struct text text = {0};
	for (size_t n = 5; *words; words++)
		argv[n++] = *words;
	err_clear(&f->err);
	enum status status = capture_command(command, argv, NULL, 0, &text, &f->err);
	*out = NULL;
	if (text.len)
		json_parse(text_str(&text), text.len, "output", out, NULL);
	text_release(&text);
	return status;
}

#define RUN(f, command, out, ...) run(f, command, (const char *const[]){__VA_ARGS__, NULL}, out)

static const struct json *series_of(const struct json *all, const char *setting)
{
	for (size_t i = 0; i < json_count(all); i++)
		if (text_equal(json_text(json_get(json_at(all, i), "setting")), setting))
			return json_at(all, i);
	fail_msg("there is no series of %s", setting);
	return NULL;
}

static struct json *read_field(const char *file)
{
	struct text text = {0}, path = {0};
	struct json *document = NULL;
	text_printf(&path, "tests/golden/field/%s", file);
	assert_int_equal(file_read(text_str(&path), 1 << 20, &text, NULL), STATUS_OK);
	assert_int_equal(json_parse(text_str(&text), text.len, file, &document, NULL), STATUS_OK);
	text_release(&path);
	text_release(&text);
	return document;
}

/* Nights with the recorded values, on the days of `days` or one after the other, saved in the order given by step. */
static void add_nights(struct store_bed *f, const struct json *record, const struct json *values, const struct json *days, size_t n)
{
	for (size_t k = 0; k < n; k++) {
		size_t i =
			(k * 7 + 3) % n; /* the order in which they are saved must not matter; 7 shares no divisor with 20 or 30 */
		int64_t day = days ? json_int(json_at(days, i), 0) : (int64_t)i + 1;
		add_night(f, record, day, json_number(json_at(values, i), NAN));
	}
}

static void a_step_raises_one_alarm_and_then_none(void **state)
{
	struct store_bed *f = *state;
	struct json *document = read_field("r08_nightly.json"), *record = one_night(f), *out = NULL;
	const struct json *values = json_get(document, "step");
	assert_int_equal(sql_exec(f->store->sql, "DELETE FROM verdict", &f->err), STATUS_OK); /* of tonight */
	int alarms = 0;
	for (size_t night = 0; night < json_count(values); night++) {
		add_night(f, record, (int64_t)night + 1, json_number(json_at(values, night), NAN));
		enum status status = RUN(f, cmd_trend, &out, "--experiment", "demo");
		assert_true(status == STATUS_OK || status == STATUS_ANSWER_BAD);
		alarms += status == STATUS_ANSWER_BAD;
		if (night < 21)
			assert_int_equal(alarms, 0);
		if (night == 22) /* the third night */
			assert_int_equal(alarms, 1);
		if (night + 1 < json_count(values))
			json_free(out);
	}
	assert_int_equal(alarms, 1);
	const struct json *findings = json_get(series_of(out, "baseline"), "findings");
	assert_int_equal(json_count(findings), 1);
	assert_string_equal(json_text(json_get(json_at(findings, 0), "kind")), "step");
	assert_true(json_bool(json_get(json_at(findings, 0), "worse"), false));
	assert_int_equal(strncmp(json_text(json_get(json_at(findings, 0), "since_utc")), "1970-01-22", 10), 0);
	json_free(out);
	json_free(record);
	json_free(document);
}

static void creeping_losses_are_told_when_their_sum_passes_the_limit(void **state)
{
	struct store_bed *f = *state;
	struct json *document = read_field("r10_creeping.json"), *record = one_night(f), *out = NULL;
	const struct json *values = json_get(document, "tok_s");
	assert_int_equal(sql_exec(f->store->sql, "DELETE FROM verdict", &f->err), STATUS_OK);
	for (size_t i = 0; i < json_count(values); i++)
		add_night(f, record, (int64_t)i + 1, json_number(json_at(values, i), NAN));
	assert_int_equal(RUN(f, cmd_trend, &out, "--drift", "5"), STATUS_OK); /* raised a night ago, and not again */
	const struct json *finding = json_at(json_get(series_of(out, "baseline"), "findings"), 0);
	assert_string_equal(json_text(json_get(finding, "kind")), "drift");
	assert_int_equal(strncmp(json_text(json_get(finding, "since_utc")), "1970-01-04", 10), 0);
	json_free(out);
	assert_int_equal(RUN(f, cmd_trend, &out, "--drift", "20"), STATUS_OK);
	assert_int_equal(json_count(json_get(series_of(out, "baseline"), "findings")), 0);
	json_free(out);
	json_free(record);
	json_free(document);
}

static void dates_and_the_order_of_saving_change_nothing(void **state)
{
	struct store_bed *f = *state;
	struct json *document = read_field("r15_same_series_two_x.json"), *record = one_night(f), *out[2];
	static const char *const days[] = {"x1", "x2"};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(sql_exec(f->store->sql, "DELETE FROM verdict", &f->err), STATUS_OK);
		add_nights(f, record, json_get(document, "y"), json_get(document, days[i]), 20);
		assert_int_equal(RUN(f, cmd_trend, &out[i], NULL), STATUS_OK);
		/* The next series is another database as far as the query goes: its experiments are new ones. */
		json_set(json_get(record, "experiment"), "hash", json_new_string("other"));
	}
	for (int i = 0; i < 2; i++) {
		const struct json *findings = json_get(series_of(out[i], "baseline"), "findings");
		assert_int_equal(json_count(findings), 1);
		assert_true(fabs(json_number(json_get(json_at(findings, 0), "effect_pct"), 0) + 10) < 1e-9);
		char since[11];
		snprintf(since, sizeof since, "%s", json_text(json_get(json_at(findings, 0), "since_utc")));
		assert_string_equal(since, i ? "1997-05-19" : "1970-01-12"); /* days 10000 and 11 */
		json_free(out[i]);
	}
	json_free(record);
	json_free(document);
}

static void an_experiment_is_never_compared_with_itself(void **state)
{
	struct store_bed *f = *state;
	struct json *record = one_night(f), *out = NULL;
	char id[24], verdict[24];
	snprintf(id, sizeof id, "%lld", (long long)f->id);
	snprintf(verdict, sizeof verdict, "%lld", (long long)store_bed_ask(f->store, "SELECT max(verdict_id) FROM verdict"));
	assert_int_equal(RUN(f, cmd_compare, &out, id, id), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "is on both sides"));
	assert_int_equal(RUN(f, cmd_compare, &out, id, verdict), STATUS_INPUT); /* a verdict of the same experiment */
	assert_non_null(strstr(f->err.text, "is on both sides"));
	assert_int_equal(RUN(f, cmd_compare, &out, id), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_compare, &out, NULL), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_compare, &out, "", ""), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_compare, &out, id, "999"), STATUS_NOT_FOUND);
	json_free(record);
}

/* Another experiment like the first, whose launches ran at so many times the speed. */
static int64_t measure_again(struct store_bed *f, double factor)
{
	bool resumed;
	store_bed_begin(f, false, &resumed);
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 4; arm++)
			store_bed_save(f, arm, block, factor * ((arm == 3 ? 130 : 100) + 0.1 * (arm * 3 + block * 5 % 7)));
	store_bed_judge(f, true);
	return f->id;
}

static void the_same_settings_are_compared_with_an_interval(void **state)
{
	struct store_bed *f = *state;
	struct json *out = NULL;
	char old[24], new[24];
	snprintf(old, sizeof old, "%lld", (long long)measure_again(f, 1));
	snprintf(new, sizeof new, "%lld", (long long)measure_again(f, 0.9));
	assert_int_equal(RUN(f, cmd_compare, &out, old, new), STATUS_OK);
	assert_int_equal(json_count(out), 3); /* the twin's launches are the baseline's */
	for (size_t i = 0; i < 3; i++) {
		const struct json *row = json_at(out, i);
		assert_true(fabs(json_number(json_get(row, "effect_pct"), 0) + 10) < 1e-6);
		assert_true(json_number(json_get(row, "ci_high_pct"), 0) < 0);
		assert_int_equal(json_int(json_get(row, "old_launches"), 0), i ? 3 : 6);
	}
	json_free(out);
}

static void set_goodput(struct store_bed *f, int64_t id, int arm, double value)
{
	char text[200];
	snprintf(text, sizeof text,
		"UPDATE run SET goodput_rps = %g WHERE launch_id IN (SELECT launch_id FROM launch WHERE experiment_id = %lld AND "
		"arm = %d)",
		value, (long long)id, arm);
	assert_int_equal(sql_exec(f->store->sql, text, NULL), STATUS_OK);
}

/* Zero before and after is no effect; of a zero before nothing is a percentage; a zero after is the loss of everything. */
static void zeros_are_compared_as_what_they_are(void **state)
{
	struct store_bed *f = *state;
	struct json *out = NULL;
	char old[24], new[24];
	int64_t before = measure_again(f, 1), after = measure_again(f, 0.9);
	for (int arm = 0; arm < 4; arm++) {
		set_goodput(f, before, arm, arm == 3 ? 2.5 : 0);
		set_goodput(f, after, arm, arm == 2 ? 1.5 : 0);
	}
	assert_int_equal(sql_exec(f->store->sql, "UPDATE experiment SET metric = 'goodput_rps'", NULL), STATUS_OK);
	snprintf(old, sizeof old, "%lld", (long long)before);
	snprintf(new, sizeof new, "%lld", (long long)after);
	assert_int_equal(RUN(f, cmd_compare, &out, old, new), STATUS_OK);
	assert_int_equal(json_count(out), 3);
	const struct json *same = json_at(out, 0), *gained = json_at(out, 1), *lost = json_at(out, 2);
	assert_true(json_number(json_get(same, "effect_pct"), NAN) == 0 && json_number(json_get(same, "p"), NAN) == 1);
	assert_true(json_number(json_get(same, "ci_low_pct"), NAN) == 0 && json_number(json_get(same, "old"), NAN) == 0);
	assert_int_equal(json_kind_of(json_get(gained, "effect_pct")), JSON_KIND_NULL);
	assert_true(json_number(json_get(gained, "old"), NAN) == 0 && fabs(json_number(json_get(gained, "new"), NAN) - 1.5) < 1e-9);
	assert_true(json_number(json_get(lost, "effect_pct"), NAN) == -100 && json_number(json_get(lost, "new"), NAN) == 0);
	json_free(out);
}

static void another_machine_is_no_baseline(void **state)
{
	struct store_bed *f = *state;
	struct json *out = NULL;
	char old[24], new[24];
	snprintf(old, sizeof old, "%lld", (long long)measure_again(f, 1));
	snprintf(f->machine.hash, sizeof f->machine.hash, "%064d", 7);
	snprintf(new, sizeof new, "%lld", (long long)measure_again(f, 0.79));
	assert_int_equal(RUN(f, cmd_compare, &out, old, new), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "no baseline: "));
	assert_int_equal(RUN(f, cmd_trend, &out, NULL), STATUS_OK);
	assert_int_equal(json_count(out), 0); /* nor a series */
	json_free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(a_step_raises_one_alarm_and_then_none),
		STORE_TEST(creeping_losses_are_told_when_their_sum_passes_the_limit),
		STORE_TEST(dates_and_the_order_of_saving_change_nothing),
		STORE_TEST(an_experiment_is_never_compared_with_itself),
		STORE_TEST(the_same_settings_are_compared_with_an_interval),
		STORE_TEST(zeros_are_compared_as_what_they_are),
		STORE_TEST(another_machine_is_no_baseline),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
