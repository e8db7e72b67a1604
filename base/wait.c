/* Spin, then yield, then futex. */
#include "base/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

#define SPINS_PER_YIELD 64 /* 2 µs at 25 ns a pause (Zen 4): more than a peer on another CPU needs, little for one on ours */
#define YIELDS 64 /* guess: a few scheduler rounds before sleeping */
#define SLEEP_NS_MAX 20000000LL /* an abort word is looked at no later than every 20 ms */
#define SPINS_DEFAULT 2000 /* about 50 µs at that pace, longer than the usual skew within a decode step */

void wait_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

void wait_spin(uint32_t i)
{
	if (i % SPINS_PER_YIELD == SPINS_PER_YIELD - 1)
		sched_yield();
	else
		wait_pause();
}

uint32_t wait_default_spins(int parties)
{
	return file_machine_cpus() >= parties ? SPINS_DEFAULT : 0;
}

static bool aborted(const _Atomic uint32_t *abort_word)
{
	return abort_word && atomic_load_explicit(abort_word, memory_order_relaxed) != 0;
}

bool wait_while_equal(_Atomic uint32_t *word, uint32_t old, uint32_t spins, const _Atomic uint32_t *abort_word, int64_t deadline_ns)
{
	for (uint32_t i = 0; i < spins; i++) {
		if (atomic_load_explicit(word, memory_order_acquire) != old)
			return true;
		wait_spin(i);
	}
	for (int i = 0; i < YIELDS; i++) {
		if (atomic_load_explicit(word, memory_order_acquire) != old)
			return true;
		sched_yield();
	}
	while (atomic_load_explicit(word, memory_order_acquire) == old) {
		int64_t left = deadline_ns == INT64_MAX ? SLEEP_NS_MAX : deadline_ns - clock_monotonic_ns();
		if (left <= 0 || aborted(abort_word))
			return atomic_load_explicit(word, memory_order_acquire) != old;
		if (left > SLEEP_NS_MAX)
			left = SLEEP_NS_MAX;
		struct timespec span = {.tv_sec = 0, .tv_nsec = left};
		syscall(SYS_futex, word, FUTEX_WAIT, old, &span, NULL, 0);
	}
	return true;
}

void wait_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
