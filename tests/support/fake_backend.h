/* A scripted engine for tests of the API: tokens are bytes, the answer is written by the test, a thread of its own plays the
 * step thread. Ids 0..255 are the bytes; FAKE_END is a control token; ids from FAKE_PIECES on are the test's own pieces. */
#ifndef TESTS_SUPPORT_FAKE_BACKEND_H
#define TESTS_SUPPORT_FAKE_BACKEND_H

#include <pthread.h>

#include "engine/api_backend.h"

#define FAKE_END 256 /* "<|end|>" */
#define FAKE_PIECES 257
#define FAKE_PIECES_MAX 16
#define FAKE_RUNS_MAX 64

struct fake_run { /* one generation */
	uint64_t id;
	bool active, cancelled;
	struct engine_listener listener;
	struct sampling sampling;
	int32_t *prompt;
	size_t n_prompt;
	int sent;
};

struct fake_backend {
	struct api_backend backend; /* what the API gets */

	/* Set before requests are made. */
	const char *pieces[FAKE_PIECES_MAX];
	int32_t script[512]; /* what every generation answers */
	int script_count;
	int per_step; /* tokens in one callback */
	int hold_after; /* generations stop at so many tokens until cancelled or released; 0: never */
	enum finish at_end; /* when the script is over before max_tokens */
	const char *error; /* with FINISH_ERROR */
	int context, queue_max;
	bool not_ready;
	bool repeat_top; /* every alternative is the token itself */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	struct fake_run runs[FAKE_RUNS_MAX];
	int n_runs; /* submitted so far */
	int n_done, n_cancelled, n_flushed;
	bool stopping;
};

struct fake_backend *fake_backend_open(void);
void fake_backend_close(struct fake_backend *fake); /* ends what is running as cancelled */
void fake_backend_say(struct fake_backend *fake, const char *text); /* sets the script to the bytes of text */
void fake_backend_release(struct fake_backend *fake); /* ends the holding */
int fake_backend_count(struct fake_backend *fake, const int *counter); /* reads it safely */
bool fake_backend_wait(struct fake_backend *fake, const int *counter, int count);

#endif
