/* Chain acceptance, draft pace and counters. */
#include "engine/accept.h"

#define LENGTH_FIRST 3 /* guess: a wrong first draft should not cost as much as a right one saves */
#define PAUSE_FIRST 4
#define PAUSE_MAX 64

enum status accept_chain(
	const int32_t *drafts, int32_t n_drafts, accept_sample sample, void *ctx, struct accept_result *out, struct err *err)
{
	*out = (struct accept_result){0};
	for (int32_t row = 0;; row++) {
		int32_t token = -1;
		bool last = false;
		enum status status = sample(ctx, row, &token, &last, err);
		if (status)
			return status;
		out->n_tokens++;
		bool matches = row < n_drafts && drafts[row] == token;
		out->n_accepted += matches;
		if (!matches || last)
			return STATUS_OK;
	}
}

void accept_pace_init(struct accept_pace *pace, int32_t length_max)
{
	int32_t length = length_max < LENGTH_FIRST ? length_max : LENGTH_FIRST;
	*pace = (struct accept_pace){.length_max = length_max, .length = length, .pause_next = PAUSE_FIRST};
}

int32_t accept_pace_next(struct accept_pace *pace, int32_t n_decoding)
{
	ASSERT(n_decoding > 0);
	if (pace->pause > 0) {
		pace->pause--;
		return 0;
	}
	int32_t share = ACCEPT_ROWS_MAX / n_decoding;
	return pace->length < share ? pace->length : share;
}

void accept_pace_record(struct accept_pace *pace, int32_t n_drafts, int32_t n_accepted)
{
	ASSERT(n_drafts > 0 && n_accepted >= 0 && n_accepted <= n_drafts);
	if (n_accepted == n_drafts)
		pace->length = pace->length * 2 < pace->length_max ? pace->length * 2 : pace->length_max;
	else if (n_accepted > 0)
		pace->length = n_accepted + 1;
	else
		pace->length = pace->length > 1 ? pace->length / 2 : 1;
	if (n_accepted > 0) {
		pace->misses = 0;
		pace->pause_next = PAUSE_FIRST;
	} else if (++pace->misses >= ACCEPT_MISSES_MAX) {
		pace->pause = pace->pause_next;
		pace->pause_next = pace->pause_next * 2 < PAUSE_MAX ? pace->pause_next * 2 : PAUSE_MAX;
		pace->length = 1;
	}
}

void accept_count(struct accept_counters *counters, int32_t n_drafts, int32_t n_accepted)
{
	counters->verify_steps++;
	counters->drafted += (uint64_t)n_drafts;
	counters->accepted += (uint64_t)n_accepted;
	for (int32_t i = 0; i < n_accepted && i < DRAFTER_TOKENS_MAX; i++)
		counters->accepted_at[i]++;
}
