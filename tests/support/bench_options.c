#include "tests/support/bench_options.h"

#include "base/text.h"

bool bench_options_take(int *argc, char **argv, long long rows_max, struct bench_options *out)
{
	bool good = true;
	*out = (struct bench_options){0};
	for (; *argc > 3 && argv[*argc - 2][0] == '-'; *argc -= 2) {
		const char *name = argv[*argc - 2], *value = argv[*argc - 1];
		if (text_equal(name, "--json"))
			out->json_path = value;
		else
			good = good && text_equal(name, "--rows") && text_to_i64(value, &out->rows) && out->rows > 0 &&
				out->rows <= rows_max;
	}
	return good;
}
