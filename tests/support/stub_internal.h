/* Parts of the stub server: what it was told to be, and how it answers completions. For stub_*.c only. */
#ifndef TESTS_SUPPORT_STUB_INTERNAL_H
#define TESTS_SUPPORT_STUB_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/text.h"
#include "tests/support/stub_faults.h"

#define STUB_REQUEST_BYTES_MAX ((size_t)4 << 20)
#define STUB_MS ((int64_t)1000000)

struct stub {
	/* Behaviour as a server. */
	long long port, health_after_ms, completions_after_ms, status, output_tokens, cached_tokens, hang_after, die_after;
	double token_ms;
	bool wrong_text, wrong_nonce, no_usage, config_lies, no_models, tells_acceptance;
	const char *transcript, *request_log;
	const char *dialect; /* which engine's words it uses: "builtin", "vllm", "sglang", "llamacpp" */
	const char *fraud; /* a way to look better than it is: see has_fraud's callers; "none" */
	/* Settings, as an engine would have them; they change the speed. */
	const char *speculation, *allreduce, *model, *host;
	long long graph_max_bs;
	double mem_fraction;
	struct stub_faults faults;
	/* State. */
	int64_t started_ns;
	_Atomic long long completions, generated, prompted; /* tokens, as /metrics counts them */
	bool older, help;
	struct text transcript_bytes;
	struct json *replay;
};

bool stub_has_fraud(const struct stub *stub, const char *name);

bool stub_send_all(int fd, const char *bytes, size_t len);
/* A whole answer with its head. */
void stub_answer(int fd, int status, const char *type, const char *body);
void stub_answer_error(int fd, int status, const char *message);

/* Completions: as a stream of events, as one document, or as recorded bytes with their delays. */
void stub_stream_tokens(struct stub *stub, int fd, const struct json *request, bool chat);
void stub_answer_whole(const struct stub *stub, int fd, const struct json *request, bool chat);
void stub_replay_transcript(struct stub *stub, int fd);
bool stub_load_transcript(struct stub *stub);

#endif
