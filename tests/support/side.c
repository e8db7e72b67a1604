/* A backend under test. */
#include "tests/support/side.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

void side_ok(enum status status, const struct err *err)
{
	if (status)
		fail_msg("%s", err->text);
}

void side_open(struct side *side, const struct kn_options *options)
{
	struct err err = {0};
	side_ok(side->kn->create(options, &side->backend, &err), &err);
}

int side_every(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "few") == 0)
		return 5;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return 1;
}

void *side_put(const struct side *side, const void *values, size_t bytes)
{
	struct err err = {0};
	void *block;
	side_ok(side->kn->alloc(side->backend, bytes, &block, &err), &err);
	if (values)
		side_ok(side->kn->to_device(side->backend, block, values, bytes, &err), &err);
	side_ok(side->kn->synchronize(side->backend, &err), &err);
	return block;
}

float *side_normals(uint64_t stream, size_t count)
{
	float *values = mem_calloc(count, sizeof *values);
	for (size_t i = 0; i < count; i++)
		values[i] = (float)random_normal(11, stream, i);
	return values;
}

double side_distance(const float *a, const float *b, size_t count)
{
	double difference = 0, norm = 0;
	for (size_t i = 0; i < count; i++) {
		if (!isfinite(a[i]))
			return INFINITY;
		difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
		norm += (double)b[i] * b[i];
	}
	return sqrt(difference / norm);
}
