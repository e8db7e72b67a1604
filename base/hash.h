/* Hashes: SHA-256 for identity (FIPS 180-4), a fast 64-bit one for tables and prefix blocks. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SHA256_BYTES 32
#define SHA256_HEX_BYTES 65 /* with NUL */

struct sha256 {
	uint32_t state[8];
	uint64_t total_bytes;
	uint8_t block[64];
	size_t block_used;
};

void sha256_init(struct sha256 *sha);
void sha256_update(struct sha256 *sha, const void *bytes, size_t len);
void sha256_finish(struct sha256 *sha, uint8_t out[SHA256_BYTES]);
void sha256_hex(const uint8_t digest[SHA256_BYTES], char out[SHA256_HEX_BYTES]);

/* Hash of a whole file as lower-case hex. */
enum status sha256_file(const char *path, char out[SHA256_HEX_BYTES], struct err *err);

/* Well-mixed 64-bit hash of bytes, chained by seed. Not for hostile input that must not collide. */
uint64_t hash64(const void *bytes, size_t len, uint64_t seed);

/* Bijective mixer: the finaliser of SplitMix64 (Steele, Lea and Flood 2014). */
static inline uint64_t hash64_mix(uint64_t value)
{
	value ^= value >> 30;
	value *= 0xbf58476d1ce4e5b9u;
	value ^= value >> 27;
	value *= 0x94d049bb133111ebu;
	return value ^ value >> 31;
}

#endif
