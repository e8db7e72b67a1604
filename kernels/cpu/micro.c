/* Choice of the instruction set at run time. */
#include "kernels/cpu/micro.h"

#include <cpuid.h>
#include <stdbool.h>
#include <string.h>

/* The compiler's built-ins read CPUID and check that the operating system saves the wide registers. Not every compiler's
 * list of names has F16C, so that bit is read here. */
static bool has_avx2(void)
{
	unsigned int eax, ebx, ecx = 0, edx;

	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
		(ecx & bit_F16C) != 0;
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

static bool is_supported(const struct micro *micro)
{
	return micro == &micro_scalar || (micro == &micro_avx2 ? has_avx2() : has_avx512());
}

enum status micro_choose(const char *isa, const struct micro **out, struct err *err)
{
	static const struct micro *const best_first[] = {&micro_avx512, &micro_avx2, &micro_scalar};
	bool is_auto = !isa || strcmp(isa, "auto") == 0;

	for (size_t i = 0; i < sizeof best_first / sizeof best_first[0]; i++) {
		if (!is_auto && strcmp(isa, best_first[i]->name) != 0)
			continue;
		if (is_supported(best_first[i])) {
			*out = best_first[i];
			return STATUS_OK;
		}
		if (!is_auto)
			return err_set(err, STATUS_UNAVAILABLE, "this machine does not have the instructions that '%s' needs", isa);
	}
	return err_set(err, STATUS_INPUT, "unknown instruction set '%s', expected auto, scalar, avx2 or avx512", isa);
}
