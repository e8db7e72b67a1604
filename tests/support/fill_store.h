/* Made-up launches of a whole experiment in a database, as if they had been measured on this machine: no clock of a busy machine
 * decides the tests that need them. */
#ifndef TESTS_SUPPORT_FILL_STORE_H
#define TESTS_SUPPORT_FILL_STORE_H

#include "harness/experiment.h"

/* blocks launches of every arm; tps gives the tok/s of each. The experiment stays the caller's. */
void fill_store(
	const char *db, struct experiment *experiment, int blocks, double (*tps)(const struct arm *arm, int index, int block));

#endif
