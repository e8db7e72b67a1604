/* Choice of the instruction set at run time. */
#include "kernels/cpu/micro.h"

#include <string.h>

struct candidate {
	const struct micro *micro;
	bool (*is_supported)(void);
};

static bool always(void)
{
	return true;
}

enum status micro_choose(const char *isa, const struct micro **out, struct err *err)
{
	/* Best first. */
	static const struct candidate candidates[] = {{&micro_scalar, always}};

	for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
		bool is_named = isa && strcmp(isa, candidates[i].micro->name) == 0;

		if (is_named && !candidates[i].is_supported())
			return err_set(err, STATUS_UNAVAILABLE, "this machine does not have the instructions that '%s' needs", isa);
		if (is_named || ((!isa || strcmp(isa, "auto") == 0) && candidates[i].is_supported())) {
			*out = candidates[i].micro;
			return STATUS_OK;
		}
	}
	return err_set(err, STATUS_INPUT, "unknown instruction set '%s', expected auto, scalar, avx2 or avx512", isa);
}
