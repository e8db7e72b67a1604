/* harness/result: names of failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "harness/result.h"

static void every_failure_has_a_name_and_is_found_by_it(void **state)
{
	for (int failure = FAILURE_NONE; failure <= FAILURE_GUARD; failure++) {
		enum failure found = FAILURE_NONE;
		assert_true(failure_from_name(failure_name((enum failure)failure), &found));
		assert_int_equal(found, failure);
	}
	enum failure found;
	assert_false(failure_from_name("sunspots", &found));
	assert_false(failure_from_name(NULL, &found));
	for (int bit = 0; bit < REQUEST_FLAGS_COUNT; bit++)
		assert_string_not_equal(request_flag_name(1u << bit), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_failure_has_a_name_and_is_found_by_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
