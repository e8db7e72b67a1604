/* Mode race: candidates that are clearly worse than the best one so far are launched no more (successive elimination; Even-Dar,
 * Mannor and Mansour, J. Mach. Learn. Res. 2006), so that launches go to those that may still be the best. Pure. */
#ifndef HARNESS_RACE_H
#define HARNESS_RACE_H

#include "harness/looks.h"

#define RACE_FIRST_LOOK 2 /* blocks; one block leaves no degrees of freedom */

struct race_place {
	int lost_after; /* blocks after which the arm left the race; 0: it is still in it */
	int leader; /* the arm it lost to: that of its last workload */
};

/* The race as of so many blocks: after 2, 3, … of them the arms were compared with the leader of each workload, the best among
 * baseline and candidates still in the race. An arm leaves when it is worse than every such leader at Pocock's level for all the
 * looks of the race, with Holm's correction over those still in it. places must hold n_arms; baseline and twin never leave. */
enum status race_run(const struct looks *looks, int blocks, struct race_place *places, struct err *err);

/* Says of undecided rows of arms that left the race why there will be no more launches of them. */
void race_explain(const struct experiment *experiment, const struct race_place *places, struct verdict_row *rows, size_t n_rows);

/* True when nothing is left to find out: at most one candidate neither left the race nor was decided without helping (stopped, see
 * looks_judge), and that one is decided. */
bool race_over(const struct experiment *experiment, const struct race_place *places, const int *stopped,
	const struct verdict_row *rows, size_t n_rows);

#endif
