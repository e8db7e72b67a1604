/* Lists of CPUs as bits. See cpu_list.h. */
#include "harness/cpu_list.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static bool holds(const struct cpu_list *list, int cpu)
{
	return list->bits[cpu / 64] >> (cpu % 64) & 1;
}

static void add(struct cpu_list *list, int cpu)
{
	list->bits[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

/* A decimal number at *at, which moves behind it; -1: there is none, or it is too large. */
static int take_number(const char **at)
{
	int number = -1;
	while (**at >= '0' && **at <= '9' && number < CPU_LIST_CPUS_MAX)
		number = (number < 0 ? 0 : number) * 10 + (*(*at)++ - '0');
	return number < CPU_LIST_CPUS_MAX ? number : -1;
}

enum status cpu_list_parse(const char *text, struct cpu_list *out, struct err *err)
{
	const char *at = text;
	*out = (struct cpu_list){0};
	for (;;) {
		int first = take_number(&at), last = first;
		if (first >= 0 && *at == '-') {
			at++;
			last = take_number(&at);
		}
		if (first < 0 || last < first || (*at && *at != ','))
			return err_set(
				err, STATUS_INPUT, "'%s' is no list of CPUs below %d, such as \"0,2-5\"", text, CPU_LIST_CPUS_MAX);
		for (int cpu = first; cpu <= last; cpu++)
			add(out, cpu);
		if (!*at++)
			return STATUS_OK;
	}
}

void cpu_list_text(const struct cpu_list *list, struct text *out)
{
	const char *comma = "";
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX; cpu++) {
		int first = cpu;
		if (!holds(list, cpu))
			continue;
		while (cpu + 1 < CPU_LIST_CPUS_MAX && holds(list, cpu + 1))
			cpu++;
		text_printf(out, cpu > first ? "%s%d-%d" : "%s%d", comma, first, cpu);
		comma = ",";
	}
}

int cpu_list_count(const struct cpu_list *list)
{
	int count = 0;
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX; cpu++)
		count += holds(list, cpu);
	return count;
}

int cpu_list_shared(const struct cpu_list *a, const struct cpu_list *b)
{
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX; cpu++)
		if (holds(a, cpu) && holds(b, cpu))
			return cpu;
	return -1;
}

int cpu_list_missing(const struct cpu_list *a, const struct cpu_list *b)
{
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX; cpu++)
		if (holds(a, cpu) && !holds(b, cpu))
			return cpu;
	return -1;
}

enum status cpu_list_allowed(pid_t thread, struct cpu_list *out, struct err *err)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	*out = (struct cpu_list){0};
	if (sched_getaffinity(thread, sizeof set, &set) != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "asking which CPUs may be used");
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX; cpu++)
		if (CPU_ISSET(cpu, &set))
			add(out, cpu);
	return STATUS_OK;
}

int cpu_list_apply(const struct cpu_list *list)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX; cpu++)
		if (holds(list, cpu))
			CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : errno;
}
