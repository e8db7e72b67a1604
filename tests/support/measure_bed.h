/* Measuring single launches of the stub server in tests. */
#ifndef TESTS_SUPPORT_MEASURE_BED_H
#define TESTS_SUPPORT_MEASURE_BED_H

#include "harness/measure.h"
#include "tests/support/experiments.h"

struct measure_bed {
	struct measure measure;
	struct interrupt interrupt;
	struct experiment *experiment;
};

void measure_bed_open(struct measure_bed *bed, const struct stub_experiment *options);
void measure_bed_close(struct measure_bed *bed);

/* Measures an arm and checks that nothing is left of it. */
void measure_bed_arm(const struct stub_experiment *options, int arm, struct launch_result *result);

/* Measures an arm that fails with this class, in this phase, for a reason that begins with the class and holds contains. */
void measure_bed_expect(
	const struct stub_experiment *options, int arm, enum failure failure, const char *phase, const char *contains);

#endif
