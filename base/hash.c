/* SHA-256 (FIPS 180-4) and a fast 64-bit hash built on 128-bit products. */
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

static const uint32_t round_constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1,
	0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
	0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354,
	0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585,
	0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee,
	0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
	uint32_t w[64];
	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
			block[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
		uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
		w[i] = w[i - 16] + s0 + w[i - 7] + s1;
	}
	uint32_t v[8];
	memcpy(v, state, sizeof v);
	for (int i = 0; i < 64; i++) {
		uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
		uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + round_constants[i] + w[i];
		uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
		uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
		memmove(v + 1, v, 7 * sizeof v[0]);
		v[4] += t1;
		v[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		state[i] += v[i];
}

void sha256_init(struct sha256 *sha)
{
	static const uint32_t start[8] = {
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	*sha = (struct sha256){0};
	memcpy(sha->state, start, sizeof start);
}

void sha256_update(struct sha256 *sha, const void *bytes, size_t len)
{
	const uint8_t *in = bytes;
	sha->total_bytes += len;
	while (len) {
		if (sha->block_used == 0 && len >= sizeof sha->block) {
			compress(sha->state, in);
			in += sizeof sha->block;
			len -= sizeof sha->block;
			continue;
		}
		size_t room = sizeof sha->block - sha->block_used;
		size_t take = len < room ? len : room;
		memcpy(sha->block + sha->block_used, in, take);
		sha->block_used += take;
		in += take;
		len -= take;
		if (sha->block_used == sizeof sha->block) {
			compress(sha->state, sha->block);
			sha->block_used = 0;
		}
	}
}

void sha256_finish(struct sha256 *sha, uint8_t out[SHA256_BYTES])
{
	uint64_t bits = sha->total_bytes * 8;
	uint8_t pad[72] = {0x80};
	size_t zeros = (sha->block_used < 56 ? 56 : 120) - sha->block_used;
	for (int i = 0; i < 8; i++)
		pad[zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
	sha256_update(sha, pad, zeros + 8);
	for (int i = 0; i < SHA256_BYTES; i++)
		out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256_hex(const uint8_t digest[SHA256_BYTES], char out[SHA256_HEX_BYTES])
{
	for (int i = 0; i < SHA256_BYTES; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

enum status sha256_file(const char *path, char out[SHA256_HEX_BYTES], struct err *err)
{
	struct file_map map;
	enum status status = file_map_open(path, &map, err);
	if (status)
		return status;
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	sha256_update(&sha, map.data, map.size);
	sha256_finish(&sha, digest);
	sha256_hex(digest, out);
	file_map_close(&map);
	return STATUS_OK;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t hash64(const void *bytes, size_t len, uint64_t seed)
{
	const uint8_t *in = bytes;
	uint64_t hash = hash64_mix(seed ^ 0x9e3779b97f4a7c15u) ^ len;
	for (; len >= 8; in += 8, len -= 8) {
		uint64_t word;
		memcpy(&word, in, 8);
		hash = fold(hash ^ word ^ 0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu);
	}
	uint64_t tail = 0;
	if (len)
		memcpy(&tail, in, len);
	return hash64_mix(fold(hash ^ tail ^ 0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u) ^ len);
}
