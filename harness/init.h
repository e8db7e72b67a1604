/* A first experiment from a command line that people already run: what its flags set becomes the baseline, and each knob that
 * usually matters gets candidates. Pure. */
#ifndef HARNESS_INIT_H
#define HARNESS_INIT_H

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

#define INIT_WORDS_MAX 400

struct init_request {
	const char *const *words; /* the command line, without a shell; NAME=value words may come first */
	size_t n_words;
	const char *name; /* of the experiment; NULL: made from engine and model */
	int cpus; /* of this machine: candidates for numbers of threads */
};

/* Recognises `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, `python -m sglang.launch_server`, `sglang serve`,
 * `llama-server` and `verdict-engine serve`, also behind a wrapper such as numactl. Host, port and API key are left out, because
 * every launch gets its own port on loopback and no key; notes ("note: …" lines) say what was left out. What is no knob stays in
 * the command word for word. STATUS_INPUT: no engine is recognised, or a switch lacks its value. Caller frees *out. */
enum status init_document(const struct init_request *request, struct json **out, struct text *notes, struct err *err);

#endif
