/* A backend with memory of its own that computes on the CPU, as late as it may: operations run when somebody asks how they went. A
 * host that overwrites what a step under way still reads, or reads what it has not written, gets other tokens. A test program that
 * has this backend as its "cuda" defines engine/device.h's functions itself. */
#ifndef TESTS_SUPPORT_DEVICE_TWIN_H
#define TESTS_SUPPORT_DEVICE_TWIN_H

#include "kernels/kn.h"

extern const struct kn_ops device_twin_ops;

/* Plans from the given number on (counted from 1 over the process) find no memory; 0: all do. */
void device_twin_fail_plan(int number);

#endif
