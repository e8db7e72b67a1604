/* Attention's choice of tiles, the same for every vector width. micro_avx2.c and micro_avx512.c include it after they define
 *   SCORE_QUERIES                        the most queries whose scores fit the registers, a multiple of 6
 *   score_tile(args, first, type, n)     scores of queries first .. first + n - 1
 *   accumulate_tile(args, first, type, n) */

SPECIALIZED void score_all(const struct score_args *args, int n_queries, const enum kn_kv_type type)
{
	for (int q = 0; q < n_queries;) {
		int left = n_queries - q;

		if (left >= SCORE_QUERIES) {
			score_tile(args, q, type, SCORE_QUERIES);
			q += SCORE_QUERIES;
		} else if (left >= 6) {
			score_tile(args, q, type, 6);
			q += 6;
		} else if (left >= 3) {
			score_tile(args, q, type, 3);
			q += 3;
		} else if (left >= 2) {
			score_tile(args, q, type, 2);
			q += 2;
		} else {
			score_tile(args, q, type, 1);
			q += 1;
		}
	}
}

/* Works on a copy of args, which the compiler keeps in registers because nobody else can change it. */
static void scores(const struct score_args *args, int n_queries, enum kn_kv_type type)
{
	struct score_args own = *args;

	if (type == KN_KV_F16)
		score_all(&own, n_queries, KN_KV_F16);
	else
		score_all(&own, n_queries, KN_KV_F32);
}

SPECIALIZED void accumulate_all(const struct accumulate_args *args, int n_queries, const enum kn_kv_type type)
{
	for (int q = 0; q < n_queries;) {
		int left = n_queries - q;

		if (left >= 12) {
			accumulate_tile(args, q, type, 12);
			q += 12;
		} else if (left >= 6) {
			accumulate_tile(args, q, type, 6);
			q += 6;
		} else if (left >= 3) {
			accumulate_tile(args, q, type, 3);
			q += 3;
		} else if (left >= 2) {
			accumulate_tile(args, q, type, 2);
			q += 2;
		} else {
			accumulate_tile(args, q, type, 1);
			q += 1;
		}
	}
}

static void accumulate(const struct accumulate_args *args, int n_queries, enum kn_kv_type type)
{
	struct accumulate_args own = *args; /* as above */

	if (type == KN_KV_F16)
		accumulate_all(&own, n_queries, KN_KV_F16);
	else
		accumulate_all(&own, n_queries, KN_KV_F32);
}
