/* Sets of CPUs as people and the kernel write them, "0,2-5", and pinning threads to them. */
#ifndef HARNESS_CPU_LIST_H
#define HARNESS_CPU_LIST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/text.h"

#define CPU_LIST_CPUS_MAX 1024 /* what a cpu_set_t holds */

/* Zero-initialised it is empty. */
struct cpu_list {
	uint64_t bits[CPU_LIST_CPUS_MAX / 64];
};

/* STATUS_INPUT with the reason when the text is no such list, names no CPU, or one above the limit. */
enum status cpu_list_parse(const char *text, struct cpu_list *out, struct err *err);
void cpu_list_text(const struct cpu_list *list, struct text *out); /* appends the shortest form */

int cpu_list_count(const struct cpu_list *list);
/* The lowest CPU that both hold, or that a holds and b does not; -1: none. */
int cpu_list_shared(const struct cpu_list *a, const struct cpu_list *b);
int cpu_list_missing(const struct cpu_list *a, const struct cpu_list *b);

/* CPUs that a thread (0: the calling one) may run on. */
enum status cpu_list_allowed(pid_t thread, struct cpu_list *out, struct err *err);

/* Lets the calling thread, and those that it starts from then on, run on these CPUs only. 0, or an errno. Safe after fork. */
int cpu_list_apply(const struct cpu_list *list);

#endif
