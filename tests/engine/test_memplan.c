/* Memory plans: what fits, what does not, and whether the advice given really works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "engine/memplan.h"
#include "kernels/kn.h"

#define MIB ((uint64_t)1 << 20)

static struct memplan_request request_of(uint64_t total)
{
	return (struct memplan_request){
		.total_bytes = total,
		.total_source = "--mem-budget",
		.fraction = 0.5,
		.weights_bytes = 110 * MIB,
		.workspace_bytes = 20 * MIB,
		.plans_bytes = 2 * MIB,
		.collectives_bytes = 3 * MIB,
		.logits_bytes = 6 * MIB,
		.block_bytes = 368640, /* 16 tokens, 30 layers, 3 heads of 64, keys and values in F16 */
		.max_model_len = 8192,
		.max_num_seqs = 16,
	};
}

static void the_budget_minus_everything_else_becomes_blocks(void **state)
{
	struct memplan_request request = request_of(2048 * MIB);
	struct memplan plan;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_int_equal(plan.budget_bytes, 1024 * MIB);
	assert_int_equal(plan.fixed_bytes, 141 * MIB);
	assert_int_equal(plan.n_blocks, (1024 - 141) * MIB / 368640);
	assert_int_equal(plan.kv_bytes, (uint64_t)plan.n_blocks * 368640);
	assert_true(plan.fixed_bytes + plan.kv_bytes <= plan.budget_bytes);
	assert_string_equal(plan.warning, "");
}

static void blocks_nobody_could_use_are_not_made(void **state)
{
	struct memplan_request request = request_of(2048 * MIB);
	struct memplan plan;
	request.max_num_seqs = 2;
	request.max_model_len = 100; /* 7 blocks */
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_int_equal(plan.n_blocks, 2 * 7 + 1);
	assert_non_null(strstr(plan.blocks_why, "2 sequences of 100 tokens fill the pool"));
}

static void auto_leaves_a_stated_reserve(void **state)
{
	static const struct {
		uint64_t total, reserve;
		double fraction;
	} cases[] = {
		{1024 * MIB, 256 * MIB, 0.75}, /* a quarter at most */
		{4096 * MIB, 512 * MIB, 0.875}, /* at least so much */
		{65536 * MIB, 65536 * MIB / 10, 0.9}, /* a tenth */
		{65536 * MIB + 12345, (65536 * MIB + 12345) / 10, 0.9}, /* which is told without the bytes it was rounded by */
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct memplan_request request = request_of(cases[i].total);
		struct memplan plan;
		request.automatic = true;
		assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
		assert_int_equal(plan.reserve_bytes, cases[i].reserve);
		assert_int_equal(plan.budget_bytes, cases[i].total - cases[i].reserve);
		assert_true(plan.fraction == cases[i].fraction);
		assert_non_null(strstr(plan.fraction_why, "reserve"));
		assert_string_equal(plan.warning, "");
	}
}

static double member(const struct err *err, const char *key)
{
	struct text text = {0};
	struct json *root = NULL;
	text_printf(&text, "{%s}", err->details);
	assert_int_equal(json_parse(text_str(&text), text.len, "details", &root, NULL), STATUS_OK);
	const struct json *value = json_get(root, key);
	assert_non_null(value);
	double number = json_is_number(value) ? json_number(value, 0) : -1;
	json_free(root);
	text_release(&text);
	return number;
}

static void too_little_names_the_smallest_fraction_and_it_works(void **state)
{
	print_message("seed 41\n");
	for (uint64_t i = 0; i < 3000; i++) {
		struct memplan_request request = request_of(300 * MIB + random_below(41, 0, i, (uint64_t)64 << 30));
		struct memplan plan;
		struct err err = {0};
		request.weights_bytes += random_below(41, 1, i, 4096 * MIB);
		request.max_model_len = 1 + (int64_t)random_below(41, 2, i, 32768);
		request.block_bytes = 1000 + random_below(41, 3, i, 4 * MIB);
		request.fraction = 0.01;
		enum status status = memplan_compute(&request, &plan, &err);
		if (status == STATUS_OK)
			continue;
		assert_int_equal(status, STATUS_NO_MEMORY);
		assert_string_equal(err.code, "not_enough_memory");
		double smallest = member(&err, "min_mem_fraction"), need = member(&err, "need_bytes");
		assert_true(need > (double)plan.budget_bytes);
		if (smallest < 0) { /* none works: not even everything */
			request.fraction = 1;
			assert_true(need > (double)request.total_bytes);
			assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_NO_MEMORY);
			continue;
		}
		/* The fraction as a user would type it after reading the message. */
		char typed[32];
		text_format_double(typed, smallest);
		assert_true(strlen(typed) <= 4 && text_to_double(typed, &request.fraction));
		assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
		assert_true((int64_t)(plan.n_blocks - 1) * KN_KV_BLOCK_TOKENS >= request.max_model_len);
		request.fraction -= 0.01;
		if (request.fraction > 0)
			assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_NO_MEMORY);
	}
}

static void the_message_explains_both_directions_and_the_way_out(void **state)
{
	struct memplan_request request = request_of(1024 * MIB);
	struct memplan plan;
	struct err err = {0};
	request.fraction = 0.2;
	assert_int_equal(memplan_compute(&request, &plan, &err), STATUS_NO_MEMORY);
	assert_non_null(
		strstr(err.text, "raise --mem-fraction to 0.32 or more (at most 1; above 0.75 less than the reserve of 256 MiB"));
	assert_non_null(strstr(err.text, "lower --max-model-len to "));
	assert_non_null(strstr(err.text, "weights 110.0"));

	/* The shorter length that is offered does fit. */
	long long len = 0;
	char digits[16] = {0};
	const char *at = strstr(err.text, "--max-model-len to ") + strlen("--max-model-len to ");
	memcpy(digits, at, strspn(at, "0123456789"));
	assert_true(text_to_i64(digits, &len));
	request.max_model_len = len;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	request.max_model_len = len + 1;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_NO_MEMORY);

	err_clear(&err);
	request = request_of(200 * MIB);
	assert_int_equal(memplan_compute(&request, &plan, &err), STATUS_NO_MEMORY);
	assert_non_null(strstr(err.text, "no fraction suffices: raise --mem-budget to 322 MiB with --mem-fraction 1"));
	assert_true(member(&err, "min_mem_fraction") < 0);
	request.total_bytes = request.available_bytes = 322 * MIB; /* and with both it fits */
	request.fraction = 1;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
}

static void too_much_is_warned_about(void **state)
{
	struct memplan_request request = request_of(1024 * MIB);
	struct memplan plan;
	request.fraction = 1;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_non_null(strstr(plan.warning, "less than the reserve of 256 MiB"));
	/* A large fraction of which little is used harms nobody. */
	request.max_num_seqs = 1;
	request.max_model_len = 512;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_string_equal(plan.warning, "");
}

/* A device of which others hold a part, as a GPU with a neighbour. */
static struct memplan_request shared_request(uint64_t total, uint64_t available)
{
	struct memplan_request request = request_of(total);
	request.total_source = "GPU memory";
	request.available_bytes = available;
	request.others = "pid 7 (python3) 512 MiB";
	request.apart = true;
	return request;
}

static void auto_plans_with_what_others_left(void **state)
{
	struct memplan_request request = shared_request(8192 * MIB, 6144 * MIB);
	struct memplan plan;
	request.automatic = true;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_int_equal(plan.reserve_bytes, 512 * MIB);
	assert_int_equal(plan.budget_bytes, (6144 - 512) * MIB);
	assert_non_null(strstr(plan.fraction_why, "2048 MiB held by pid 7 (python3)"));
	assert_true(plan.fraction < 0.69 && plan.fraction > 0.68);
	request = shared_request(65536 * MIB, 65536 * MIB);
	request.automatic = true;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_int_equal(plan.reserve_bytes, 2048 * MIB);
}

static void more_than_is_free_names_who_has_it_and_the_largest_fraction_that_works(void **state)
{
	struct memplan_request request = shared_request(8192 * MIB, 6144 * MIB);
	struct memplan plan;
	struct err err = {0};
	request.max_num_seqs = 1000;
	request.fraction = 0.9;
	assert_int_equal(memplan_compute(&request, &plan, &err), STATUS_NO_MEMORY);
	assert_string_equal(err.code, "not_enough_memory");
	assert_non_null(strstr(err.text, "only 6144 MiB are free, the rest is held by pid 7 (python3) 512 MiB"));
	assert_non_null(strstr(err.text, "lower --mem-fraction to 0.74 or less"));
	assert_true(member(&err, "max_mem_fraction") == 0.74);
	request.fraction = 0.74;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	request.fraction = 0.75; /* all that is free, but the driver takes some of it later */
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_NO_MEMORY);
	/* A large fraction of which only a free part is used is granted. */
	request.max_num_seqs = 1;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	assert_int_equal(plan.warning[0], '\0');
}

static void too_low_a_fraction_of_a_shared_device_says_raise_and_how_far(void **state)
{
	struct memplan_request request = shared_request(8192 * MIB, 6144 * MIB);
	struct memplan plan;
	struct err err = {0};
	request.fraction = 0.03;
	assert_int_equal(memplan_compute(&request, &plan, &err), STATUS_NO_MEMORY);
	assert_non_null(strstr(err.text, "raise --mem-fraction to 0.04 or more (at most 0.74;"));
	assert_true(member(&err, "min_mem_fraction") == 0.04 && member(&err, "max_mem_fraction") == 0.74);
	request.available_bytes = 200 * MIB;
	err_clear(&err);
	assert_int_equal(memplan_compute(&request, &plan, &err), STATUS_NO_MEMORY);
	assert_non_null(strstr(err.text, "no fraction works: 0.04 would be needed and 0.01 can be had"));
	assert_true(member(&err, "min_mem_fraction") < 0);
}

static void the_plan_as_json_has_every_term(void **state)
{
	struct memplan_request request = request_of(2048 * MIB);
	struct memplan plan;
	assert_int_equal(memplan_compute(&request, &plan, NULL), STATUS_OK);
	struct json *json = memplan_json(&plan);
	assert_int_equal(plan.fixed_bytes + plan.kv_bytes + plan.left_bytes, 2048 * MIB);
	static const char *const keys[] = {"total_bytes", "budget_bytes", "reserve_bytes", "left_bytes", "weights_bytes",
		"workspace_bytes", "plans_bytes", "collectives_bytes", "logits_bytes", "kv_bytes", "kv_block_bytes", "kv_blocks",
		"mem_fraction", "min_mem_fraction"};
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
		assert_true(json_is_number(json_get(json, keys[i])));
	json_free(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_budget_minus_everything_else_becomes_blocks),
		cmocka_unit_test(blocks_nobody_could_use_are_not_made),
		cmocka_unit_test(auto_leaves_a_stated_reserve),
		cmocka_unit_test(too_little_names_the_smallest_fraction_and_it_works),
		cmocka_unit_test(the_message_explains_both_directions_and_the_way_out),
		cmocka_unit_test(too_much_is_warned_about),
		cmocka_unit_test(auto_plans_with_what_others_left),
		cmocka_unit_test(more_than_is_free_names_who_has_it_and_the_largest_fraction_that_works),
		cmocka_unit_test(too_low_a_fraction_of_a_shared_device_says_raise_and_how_far),
		cmocka_unit_test(the_plan_as_json_has_every_term),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
