/* Tests of base/hash and base/random against published vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"

static void hash_of(const char *text, size_t repeat, char hex[SHA256_HEX_BYTES])
{
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	for (size_t i = 0; i < repeat; i++)
		sha256_update(&sha, text, strlen(text));
	sha256_finish(&sha, digest);
	sha256_hex(digest, hex);
}

static void sha256_gives_the_standards_vectors(void **state)
{
	/* NIST FIPS 180-4 example values. */
	char hex[SHA256_HEX_BYTES];
	hash_of("abc", 1, hex);
	assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	hash_of("", 1, hex);
	assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, hex);
	assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
	hash_of("a", 1000000, hex);
	assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void philox_gives_the_published_vectors(void **state)
{
	/* Random123 known-answer file, philox4x32 with 10 rounds. */
	uint32_t out[4];
	random_philox(0, (uint32_t[4]){0, 0, 0, 0}, out);
	assert_memory_equal(out, ((uint32_t[4]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), sizeof out);
	random_philox(UINT64_MAX, (uint32_t[4]){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, out);
	assert_memory_equal(out, ((uint32_t[4]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), sizeof out);
	random_philox(0x299f31d0a4093822u, (uint32_t[4]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, out);
	assert_memory_equal(out, ((uint32_t[4]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), sizeof out);
}

static void deviates_have_their_moments_and_stay_in_range(void **state)
{
	double sum = 0, squares = 0, uniform = 0;
	const int n = 100000;
	uint64_t counts[7] = {0};
	for (int i = 0; i < n; i++) {
		double z = random_normal(5, 1, (uint64_t)i), u = random_uniform(5, 2, (uint64_t)i);
		assert_true(u > 0 && u < 1);
		sum += z;
		squares += z * z;
		uniform += u;
		counts[random_below(5, 3, (uint64_t)i, 7)]++;
	}
	assert_true(fabs(sum / n) < 0.015 && fabs(squares / n - 1) < 0.02 && fabs(uniform / n - 0.5) < 0.005);
	for (int k = 0; k < 7; k++)
		assert_true(fabs((double)counts[k] / n - 1.0 / 7) < 0.006);
	assert_true(random_uniform(1, 2, 3) == random_uniform(1, 2, 3));
	assert_true(random_uniform(1, 2, 3) != random_uniform(2, 2, 3));
}

static void hash64_depends_on_every_byte_the_length_and_the_seed(void **state)
{
	uint8_t bytes[40] = {0};
	for (size_t len = 0; len < sizeof bytes; len++) {
		uint64_t before = hash64(bytes, len, 1);
		assert_true(hash64(bytes, len, 2) != before);
		assert_true(hash64(bytes, len + 1, 1) != before);
		for (size_t i = 0; i < len; i++) {
			bytes[i] ^= 1;
			assert_true(hash64(bytes, len, 1) != before);
			bytes[i] ^= 1;
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sha256_gives_the_standards_vectors),
		cmocka_unit_test(philox_gives_the_published_vectors),
		cmocka_unit_test(deviates_have_their_moments_and_stay_in_range),
		cmocka_unit_test(hash64_depends_on_every_byte_the_length_and_the_seed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
