/* Clocks and sleeping. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

#define NS_PER_S 1000000000LL

static int64_t read_ns(clockid_t id)
{
	struct timespec now;
	clock_gettime(id, &now);
	return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t clock_monotonic_ns(void)
{
	return read_ns(CLOCK_MONOTONIC);
}

int64_t clock_realtime_ns(void)
{
	return read_ns(CLOCK_REALTIME);
}

int64_t clock_thread_cpu_ns(void)
{
	return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

void clock_sleep_ns(int64_t ns)
{
	if (ns <= 0)
		return;
	struct timespec span = {.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
	nanosleep(&span, NULL);
}

void clock_format_utc(char out[CLOCK_UTC_BYTES], int64_t realtime_ns)
{
	int64_t seconds = realtime_ns / NS_PER_S;
	int64_t rest = realtime_ns % NS_PER_S;
	if (rest < 0) {
		rest += NS_PER_S;
		seconds--;
	}
	time_t when = (time_t)seconds;
	struct tm utc;
	gmtime_r(&when, &utc);
	char date[24];
	strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(out, CLOCK_UTC_BYTES, "%s.%03dZ", date, (int)(rest / 1000000));
}
