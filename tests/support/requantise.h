/* Makes GGUF files of the real model in other weight types, so that each type is tested on weights with a model's statistics. */
#ifndef TESTS_SUPPORT_REQUANTISE_H
#define TESTS_SUPPORT_REQUANTISE_H

#include "base/hash.h"
#include "kernels/dtype.h"

struct requantised {
	int fd; /* owns the file, which has no name and goes with its last user */
	char path[32]; /* for whoever opens it while fd is open */
	char digest[SHA256_HEX_BYTES]; /* of the first REQUANTISE_DIGEST_BYTES of each tensor, in file order */
};

#define REQUANTISE_DIGEST_BYTES 65536

/* A copy of the file at source whose matrices, the embedding included, are dtype: DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_BF16, DTYPE_F16 or
 * DTYPE_F32. Each value goes from its stored form to fp32 and then, by ggml's reference formulas, to dtype; the bytes are the same
 * on every machine. Vectors and metadata stay as they are. Fails the running test when anything fails. */
struct requantised requantise(const char *source, enum dtype dtype);
void requantised_release(struct requantised *file);

#endif
