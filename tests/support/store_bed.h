/* A fresh database in a folder of its own, an experiment of four arms, and launches of it to save. Fails the running test when
 * anything goes wrong. */
#ifndef TESTS_SUPPORT_STORE_BED_H
#define TESTS_SUPPORT_STORE_BED_H

#include "harness/store_internal.h"
#include "harness/store_schema.h"
#include "tests/support/launch_make.h"

struct store_bed {
	char folder[64], path[96];
	struct experiment *experiment;
	struct store *store;
	struct machine_facts machine;
	struct build_facts build;
	int64_t id;
	struct err err;
};

/* For cmocka_unit_test_setup_teardown. */
int store_bed_open(void **state);
int store_bed_close(void **state);
#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_bed_open, store_bed_close)

void store_bed_begin(struct store_bed *f, bool resume, bool *resumed);
void store_bed_save(struct store_bed *f, int arm, int block, double tps);
/* Three blocks of all four arms; both (arm 3) at +30 %. */
void store_bed_save_all(struct store_bed *f);
void store_bed_judge(struct store_bed *f, bool final);

/* The record of an experiment; caller frees. */
struct json *store_bed_export(struct store_bed *f, int64_t id);

/* The number that a query answers. */
int64_t store_bed_ask(struct store *store, const char *question);

#endif
