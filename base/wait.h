/* Waiting between threads and processes on a shared 32-bit word: spins briefly, then yields, then sleeps on a futex,
 * so more waiters than cores is slow, never stuck. Words may live in shared memory. */
#ifndef BASE_WAIT_H
#define BASE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Waits until *word != old, or deadline_ns (clock_monotonic_ns time; INT64_MAX for none) passes, or *abort_word becomes
 * non-zero (abort_word may be NULL). spins: iterations before the first yield. Returns true when the word changed. */
bool wait_while_equal(
	_Atomic uint32_t *word, uint32_t old, uint32_t spins, const _Atomic uint32_t *abort_word, int64_t deadline_ns);

/* Wakes every waiter of word. Call after the store that changed it. Cheap when nobody sleeps is NOT guaranteed. */
void wait_wake_all(_Atomic uint32_t *word);

/* Spin count that suits this machine: 0 when the process has fewer than parties CPUs. */
uint32_t wait_default_spins(int parties);

/* One pause instruction. */
void wait_pause(void);

/* Turn number i of a spin loop: a pause, and now and then a yield, because whom we wait for may be waiting for this very CPU. */
void wait_spin(uint32_t i);

#endif
