/* Due times against the clock. See pacer.h. */
#include "harness/pacer.h"

int64_t pacer_due_ns(const struct pacer *pacer, size_t request)
{
	return pacer->due_ns ? pacer->begin_ns + pacer->due_ns[request] : 0;
}

int64_t pacer_wait_ns(const struct pacer *pacer, size_t request, int64_t now_ns)
{
	int64_t due_ns = pacer_due_ns(pacer, request);
	return due_ns > now_ns ? due_ns - now_ns : 0;
}

void pacer_note_free(struct pacer *pacer, int64_t now_ns)
{
	pacer->full_until_ns = now_ns;
}

int64_t pacer_late_ns(const struct pacer *pacer, size_t request, int64_t now_ns)
{
	if (!pacer->due_ns)
		return 0;
	int64_t due_ns = pacer_due_ns(pacer, request);
	int64_t could_ns = due_ns > pacer->full_until_ns ? due_ns : pacer->full_until_ns;
	return now_ns > could_ns ? now_ns - could_ns : 0;
}
