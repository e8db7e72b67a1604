/* Counter-based random numbers: a value depends on (seed, stream, counter) alone, never on call order. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

/* Philox4x32-10 (Salmon et al., SC 2011): four 32-bit words for a 64-bit key and 128-bit counter. */
void random_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* 64 random bits, from (seed, stream, counter). */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter);

/* Uniform in the open interval (0, 1), from (seed, stream, counter). */
double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

/* Uniform integer in [0, bound), bound > 0, without modulo bias worth noticing (64-bit multiply-shift). */
uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t bound);

/* Standard normal deviate, from (seed, stream, counter). */
double random_normal(uint64_t seed, uint64_t stream, uint64_t counter);

/* Kernel randomness for nonces and default seeds. */
uint64_t random_entropy(void);

#endif
