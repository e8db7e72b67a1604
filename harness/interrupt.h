/* SIGINT and SIGTERM as a readable descriptor, so that every wait of the harness ends at once and in order, and no code runs inside
 * a signal handler. */
#ifndef HARNESS_INTERRUPT_H
#define HARNESS_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct interrupt {
	int fd; /* readable when a signal has come; -1 when closed */
	bool pending; /* one has been taken */
};

/* Blocks both signals for the process and its later threads. Release with interrupt_close, which lets them act again. */
enum status interrupt_open(struct interrupt *out, struct err *err);
void interrupt_close(struct interrupt *interrupt);

/* Whether a signal has come, now or before. Does not wait. */
bool interrupt_check(struct interrupt *interrupt);

/* Sleeps for seconds, or until a signal comes. Returns interrupt_check. */
bool interrupt_sleep(struct interrupt *interrupt, double seconds);

#endif
