/* The only module that reads clocks or sleeps. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_monotonic_ns(void); /* for durations */
int64_t clock_realtime_ns(void); /* UTC, since 1970-01-01, for records */
int64_t clock_thread_cpu_ns(void); /* CPU time of the calling thread */
void clock_sleep_ns(int64_t ns); /* returns early on a signal */

#define CLOCK_UTC_BYTES 32
/* "2026-11-29T22:30:05.123Z" for a time from clock_realtime_ns. */
void clock_format_utc(char out[CLOCK_UTC_BYTES], int64_t realtime_ns);

#endif
