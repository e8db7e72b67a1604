/* The grid of prepared row counts. */
#include "engine/plan_sizes.h"

static int grid_next(int size)
{
	if (size < 2)
		return size + 1;
	if (size < 8)
		return 2 * size;
	if (size < 16)
		return size + 4;
	return size + (size < 64 ? 8 : 16);
}

int plan_sizes_next(int size, int cap, bool exact)
{
	if (size >= cap)
		return 0;
	int next = exact ? size + 1 : grid_next(size);
	return next < cap ? next : cap;
}
