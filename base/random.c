/* Philox4x32-10 and the deviates drawn from it. */
#include "base/random.h"

#include <math.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

#define PHILOX_M0 0xD2511F53u /* multipliers and Weyl increments of the paper, table 2 */
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10

void random_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int round = 0; round < PHILOX_ROUNDS; round++) {
		uint64_t product0 = (uint64_t)PHILOX_M0 * c0, product1 = (uint64_t)PHILOX_M1 * c2;
		uint32_t n0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)product1;
		c3 = (uint32_t)product0;
		c0 = n0;
		c2 = n2;
		k0 += PHILOX_W0;
		k1 += PHILOX_W1;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

static void draw(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4])
{
	uint32_t words[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
	random_philox(seed, words, out);
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter)
{
	uint32_t words[4];
	draw(seed, stream, counter, words);
	return (uint64_t)words[0] << 32 | words[1];
}

/* 52 random bits plus a half: never 0, never 1. */
static double open_unit(uint32_t high, uint32_t low)
{
	uint64_t bits = ((uint64_t)high << 32 | low) >> 12;
	return ((double)bits + 0.5) * 0x1p-52;
}

double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter)
{
	uint32_t words[4];
	draw(seed, stream, counter, words);
	return open_unit(words[0], words[1]);
}

uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)random_bits(seed, stream, counter) * bound) >> 64);
}

double random_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
	uint32_t words[4];
	draw(seed, stream, counter, words);
	double radius = sqrt(-2.0 * log(open_unit(words[0], words[1]))); /* Box and Muller 1958 */
	return radius * cos(6.283185307179586 * open_unit(words[2], words[3]));
}

uint64_t random_entropy(void)
{
	uint64_t value;
	if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
		value = hash64_mix((uint64_t)clock_monotonic_ns() ^ (uint64_t)getpid() << 32);
	return value;
}
