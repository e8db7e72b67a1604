/* For which row counts steps are prepared ahead. Pure. */
#ifndef ENGINE_PLAN_SIZES_H
#define ENGINE_PLAN_SIZES_H

#include <stdbool.h>

/* The size after the given one (0: the first), up to cap, which is always one of them; 0 past the last. exact: every count. Else 1,
 * 2, 4, 8, 12, 16, then by 8 to 64 and by 16 beyond: close enough that filling up costs little (and never takes more rows than a
 * cache block has positions), few enough to be made in a second. */
int plan_sizes_next(int size, int cap, bool exact);

#endif
