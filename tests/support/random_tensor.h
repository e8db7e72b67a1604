/* Seeded random stored tensors and activations for kernel tests. */
#ifndef TESTS_SUPPORT_RANDOM_TENSOR_H
#define TESTS_SUPPORT_RANDOM_TENSOR_H

#include <stdint.h>

#include "kernels/dtype.h"

/* n_elements (a multiple of the block) in stored form: random quants under scales that give values of about unit size.
 * Caller frees with mem_free. */
void *random_tensor(enum dtype dtype, int64_t n_elements, uint64_t seed);

/* Normal deviates; every 97th is 30 times larger, as real activations have outliers. */
void random_activations(float *out, int64_t n, uint64_t seed);

#endif
