/* How large the inputs of slow tests are. Code under a sanitizer runs 5 to 20 times slower and is looked at for the same mistakes
 * however long the input, so its builds leave the longest inputs to the build without one: SANITIZED comes from the Makefile. */
#ifndef TESTS_SUPPORT_SIZES_H
#define TESTS_SUPPORT_SIZES_H

#include <limits.h>

/* REAL_TOKENS_MAX: tokens of a text that the real model is given whole; tests leave longer texts out. 40 keeps seven of the ten
 * golden prompts. REAL_TYPES: weight types that the real model is rewritten in. LONG_ANSWER: tokens of a tiny model's answer
 * during which a test does something else, in quotes. */
#ifdef SANITIZED
#define SIZE_LONG_ANSWER "800"
#define SIZE_REAL_TOKENS_MAX 40
#define SIZE_REAL_TYPES 1
#else
#define SIZE_LONG_ANSWER "3000"
#define SIZE_REAL_TOKENS_MAX INT_MAX
#define SIZE_REAL_TYPES 4
#endif

#endif
