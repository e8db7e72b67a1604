/* Waitable words with a count of sleepers. */
#include "base/wait_word.h"

#include "base/wait.h"

/* Setter: store value, then read sleepers. Waiter: add itself to sleepers, then read value. All four are sequentially
 * consistent, so at least one of the two sees the other: either the waiter finds the new value before it sleeps, or the
 * setter finds the sleeper and wakes it. */
void wait_word_set(struct wait_word *word, uint32_t value)
{
	atomic_store(&word->value, value);
	if (atomic_load(&word->sleepers) != 0)
		wait_wake_all(&word->value);
}

bool wait_word_while_equal(
	struct wait_word *word, uint32_t old, uint32_t spins, const _Atomic uint32_t *abort_word, int64_t deadline_ns)
{
	for (uint32_t spin = 0;; spin++) {
		if (wait_word_get(word) != old)
			return true;
		if (spin >= spins)
			break;
		wait_spin(spin);
	}
	atomic_fetch_add(&word->sleepers, 1);
	bool changed = atomic_load(&word->value) != old || wait_while_equal(&word->value, old, 0, abort_word, deadline_ns);
	atomic_fetch_sub(&word->sleepers, 1);
	return changed;
}
