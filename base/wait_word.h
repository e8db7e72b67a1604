/* A waitable word that knows whether somebody sleeps on it, so that a change costs a system call only then. Built on
 * base/wait.h; zeroed memory is a valid word of value 0. Lives in private or shared memory. */
#ifndef BASE_WAIT_WORD_H
#define BASE_WAIT_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct wait_word {
	_Atomic uint32_t value; /* changed by wait_word_set only */
	_Atomic uint32_t sleepers; /* waiters past their spinning */
};

/* Stores value, visible with everything written before it (release), and wakes the sleepers, if any. */
void wait_word_set(struct wait_word *word, uint32_t value);

/* The value, with everything written before it was set (acquire). */
static inline uint32_t wait_word_get(const struct wait_word *word)
{
	return atomic_load_explicit(&word->value, memory_order_acquire);
}

/* As wait_while_equal of base/wait.h: true when the value is no longer old. */
bool wait_word_while_equal(
	struct wait_word *word, uint32_t old, uint32_t spins, const _Atomic uint32_t *abort_word, int64_t deadline_ns);

#endif
