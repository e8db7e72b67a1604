/* llama-bench's switches, read word by word. See init_llama_bench.h. */
#include "harness/init_llama_bench.h"

#include <string.h>

#include "base/mem.h"

#define VALUES_MAX 4096

enum role {
	ROLE_KNOB,
	ROLE_ON_OFF,
	ROLE_TEXT_KNOB,
	ROLE_PROMPT,
	ROLE_GENERATE,
	ROLE_DEPTH,
	ROLE_PAIR,
	ROLE_MODEL,
	ROLE_RUNS,
	ROLE_DELAY,
	ROLE_DROPPED
};

static const struct bench_switch {
	const char *names[2];
	enum role role;
	const char *knob, *flag; /* flag: where the adapter's own table has none */
} switches[] = {
	{{"-t", "--threads"}, ROLE_KNOB, "threads", NULL},
	{{"-b", "--batch-size"}, ROLE_KNOB, "batch_size", NULL},
	{{"-ub", "--ubatch-size"}, ROLE_KNOB, "ubatch_size", NULL},
	{{"-ngl", "--n-gpu-layers"}, ROLE_KNOB, "n_gpu_layers", NULL},
	{{"-fa", "--flash-attn"}, ROLE_ON_OFF, "flash_attn", NULL},
	{{"-ctk", "--cache-type-k"}, ROLE_TEXT_KNOB, "cache_type_k", "--cache-type-k"},
	{{"-ctv", "--cache-type-v"}, ROLE_TEXT_KNOB, "cache_type_v", "--cache-type-v"},
	{{"-sm", "--split-mode"}, ROLE_TEXT_KNOB, "split_mode", "--split-mode"},
	{{"-p", "--n-prompt"}, ROLE_PROMPT, NULL, NULL},
	{{"-n", "--n-gen"}, ROLE_GENERATE, NULL, NULL},
	{{"-d", "--n-depth"}, ROLE_DEPTH, NULL, NULL},
	{{"-pg", NULL}, ROLE_PAIR, NULL, NULL},
	{{"-m", "--model"}, ROLE_MODEL, NULL, NULL},
	{{"-r", "--repetitions"}, ROLE_RUNS, NULL, NULL},
	{{NULL, "--delay"}, ROLE_DELAY, NULL, NULL},
	{{"-o", "--output"}, ROLE_DROPPED, NULL, NULL},
	{{"-oe", "--output-err"}, ROLE_DROPPED, NULL, NULL},
};
#define N_SWITCHES (sizeof switches / sizeof switches[0])

struct bench {
	struct json *values[N_SWITCHES]; /* array of what each switch was given; pairs as [p, n] */
	struct text *notes;
	struct err *err;
};

static const char *base_name(const char *word)
{
	const char *slash = strrchr(word, '/');
	return slash ? slash + 1 : word;
}

bool init_is_llama_bench(const struct init_request *request)
{
	return request->n_words > 0 && text_equal(base_name(request->words[0]), "llama-bench");
}

static struct json **values_of(struct bench *bench, enum role role)
{
	for (size_t i = 0; i < N_SWITCHES; i++)
		if (switches[i].role == role)
			return &bench->values[i];
	return NULL;
}

/* Takes digits from *at; false when there are none or too many. */
static bool take_number(const char **at, long long *out)
{
	size_t len = strspn(*at, "0123456789");
	char *digits = mem_strndup(*at, len);
	bool fine = len > 0 && text_to_i64(digits, out) && *out <= 1000000000;
	mem_free(digits);
	*at += len;
	return fine;
}

/* "N", "FIRST-LAST", "FIRST-LAST+STEP" or "FIRST-LAST*FACTOR". */
static bool add_range(struct json *values, const char *item)
{
	long long first = 0, last = 0, step = 1;
	const char *at = item;
	if (text_to_i64(item, &first)) { /* also "-1", all layers */
		json_append(values, json_new_integer(first));
		return true;
	}
	if (!take_number(&at, &first) || *at++ != '-' || !take_number(&at, &last))
		return false;
	char sign = *at;
	if (sign)
		at++;
	if ((sign && sign != '+' && sign != '*') || (sign && !take_number(&at, &step)) || *at || step < 1 || last < first ||
		(sign == '*' && (step < 2 || first < 1)))
		return false;
	for (long long value = first; value <= last; value = sign == '*' ? value * step : value + step) {
		if (json_count(values) == VALUES_MAX)
			return false;
		json_append(values, json_new_integer(value));
	}
	return true;
}

static bool add_item(struct json *values, enum role role, const char *item)
{
	long long number = 0;
	if (role == ROLE_TEXT_KNOB || role == ROLE_MODEL || role == ROLE_DROPPED) {
		json_append(values, json_new_string(item));
		return *item != '\0';
	}
	if (role == ROLE_ON_OFF) {
		bool known = text_equal(item, "0") || text_equal(item, "1") || text_equal(item, "on") || text_equal(item, "off") ||
			text_equal(item, "auto");
		json_append(values, json_new_string(text_equal(item, "1") ? "on" : text_equal(item, "0") ? "off" : item));
		return known;
	}
	if (role == ROLE_RUNS || role == ROLE_DELAY) {
		json_append(values, json_new_integer(text_to_i64(item, &number) ? number : 0));
		return number >= (role == ROLE_RUNS ? 1 : 0) && number <= 100;
	}
	return add_range(values, item);
}

/* The value of a switch: items parted by commas, or for -pg one pair. */
static bool add_values(struct json *values, enum role role, const char *value)
{
	struct json *into = role == ROLE_PAIR ? json_new_array() : values;
	bool fine = *value != '\0';
	while (*value && fine) {
		size_t len = strcspn(value, ",");
		char *item = mem_strndup(value, len);
		fine = json_count(into) < VALUES_MAX && add_item(into, role, item);
		mem_free(item);
		value += len + (value[len] == ',');
	}
	if (role == ROLE_PAIR) {
		fine = fine && json_count(into) == 2;
		json_append(values, into);
	}
	return fine;
}

static enum status read_words(struct bench *bench, const struct init_request *request)
{
	for (size_t w = 1; w < request->n_words; w += 2) {
		const char *word = request->words[w], *value = w + 1 < request->n_words ? request->words[w + 1] : NULL;
		size_t i = 0;
		while (i < N_SWITCHES && !text_equal(switches[i].names[0], word) && !text_equal(switches[i].names[1], word))
			i++;
		if (i == N_SWITCHES)
			return err_set(bench->err, STATUS_INPUT, "llama-bench: '%s' has no counterpart here", word);
		if (!value)
			return err_set(bench->err, STATUS_INPUT, "llama-bench: %s lacks its value", word);
		if (!bench->values[i])
			bench->values[i] = json_new_array();
		if (!add_values(bench->values[i], switches[i].role, value))
			return err_set(bench->err, STATUS_INPUT, "llama-bench: %s %s is no value or range of values", word, value);
		if (switches[i].role == ROLE_DROPPED)
			text_printf(bench->notes, "note: %s %s is left out\n", word, value);
	}
	return STATUS_OK;
}

static void add_workload(struct json *workloads, long long prompt, long long generate, long long depth)
{
	struct text name = {0};
	struct json *workload = json_new_object(), *dataset = json_new_object();
	if (prompt)
		text_printf(&name, "pp%lld", prompt);
	if (generate)
		text_printf(&name, "%stg%lld", prompt ? "+" : "", generate);
	if (depth)
		text_printf(&name, "@d%lld", depth);
	json_set(dataset, "kind", json_new_string("random_ids"));
	json_set(dataset, "input_len", json_new_integer(prompt + depth > 0 ? prompt + depth : 1));
	json_set(dataset, "output_len", json_new_integer(generate ? generate : 1));
	json_set(workload, "name", json_new_string(text_str(&name)));
	json_set(workload, "endpoint", json_new_string("/v1/completions"));
	json_set(workload, "concurrency", json_new_integer(1));
	json_set(workload, "requests", json_new_integer(1));
	json_set(workload, "dataset", dataset);
	json_append(workloads, workload);
	text_release(&name);
}

/* Defaults are llama-bench's: 512 and 128, unless pairs are asked for alone. */
static struct json *make_workloads(struct bench *bench)
{
	struct json *prompts = *values_of(bench, ROLE_PROMPT), *generated = *values_of(bench, ROLE_GENERATE),
		    *pairs = *values_of(bench, ROLE_PAIR), *depths = *values_of(bench, ROLE_DEPTH), *list = json_new_array();
	for (size_t d = 0; d < (depths ? json_count(depths) : 1); d++) {
		long long depth = json_int(json_at(depths, d), 0);
		for (size_t i = 0; i < (prompts ? json_count(prompts) : 1); i++)
			if (json_int(json_at(prompts, i), 512) > 0)
				add_workload(list, json_int(json_at(prompts, i), 512), 0, depth);
		for (size_t i = 0; i < (generated ? json_count(generated) : 1); i++)
			if (json_int(json_at(generated, i), 128) > 0)
				add_workload(list, 0, json_int(json_at(generated, i), 128), depth);
		for (size_t i = 0; i < json_count(pairs); i++)
			add_workload(list, json_int(json_at(json_at(pairs, i), 0), 0), json_int(json_at(json_at(pairs, i), 1), 0),
				depth);
	}
	return list;
}

static struct json *make_engine(const struct init_request *request, struct bench *bench)
{
	struct json *engine = json_new_object(), *command = json_new_array(), *flags = json_new_object();
	struct text program = {0};
	const char *path = request->words[0];
	text_append(&program, path, (size_t)(base_name(path) - path));
	text_append_str(&program, "llama-server");
	json_append(command, json_new_string(text_str(&program)));
	json_append(command, json_new_string("--model"));
	json_append(command, json_new_string("${MODEL}"));
	for (size_t i = 0; i < N_SWITCHES; i++)
		if (bench->values[i] && switches[i].flag)
			json_set(flags, switches[i].knob, json_new_string(switches[i].flag));
	json_set(engine, "adapter", json_new_string("llamacpp"));
	json_set(engine, "command", command);
	json_set(engine, "model", json_clone(json_at(*values_of(bench, ROLE_MODEL), 0)));
	if (json_count(flags))
		json_set(engine, "flags", flags);
	else
		json_free(flags);
	text_release(&program);
	return engine;
}

static struct json *make_document(
	const struct init_request *request, struct bench *bench, struct json *factors, struct json *params)
{
	struct json *document = json_new_object(), *baseline = json_new_object(), *matrix = json_new_object(),
		    *protocol = json_new_object();
	json_set(document, "schema", json_new_string("experiment/1"));
	json_set(document, "name", json_new_string(request->name ? request->name : "llama-bench"));
	json_set(document, "engine", make_engine(request, bench));
	json_set(baseline, "params", params);
	json_set(document, "baseline", baseline);
	json_set(matrix, "mode", json_new_string("grid"));
	json_set(matrix, "factors", factors);
	json_set(document, "matrix", matrix);
	json_set(document, "workloads", make_workloads(bench));
	json_set(protocol, "runs_per_launch", json_new_integer(json_int(json_at(*values_of(bench, ROLE_RUNS), 0), 5)));
	json_set(protocol, "cooldown_s", json_new_number((double)json_int(json_at(*values_of(bench, ROLE_DELAY), 0), 0)));
	json_set(document, "protocol", protocol);
	return document;
}

enum status init_llama_bench(const struct init_request *request, struct json **out, struct text *notes, struct err *err)
{
	struct bench bench = {.notes = notes, .err = err};
	struct json *factors = json_new_object(), *params = json_new_object();
	*out = NULL;
	enum status status = read_words(&bench, request);
	for (size_t i = 0; i < N_SWITCHES && !status; i++) {
		if (!bench.values[i] || !switches[i].knob)
			continue;
		json_set(params, switches[i].knob, json_clone(json_at(bench.values[i], 0)));
		if (json_count(bench.values[i]) > 1)
			json_set(factors, switches[i].knob, json_clone(bench.values[i]));
	}
	if (!status && json_count(*values_of(&bench, ROLE_MODEL)) != 1)
		status = err_set(err, STATUS_INPUT, "llama-bench: -m must name one model; several are engines to compare");
	if (!status && !json_count(factors))
		status = err_set(err, STATUS_INPUT, "llama-bench: every switch has one value, so there is nothing to compare");
	if (!status) {
		*out = make_document(request, &bench, factors, params);
	} else {
		json_free(factors);
		json_free(params);
	}
	for (size_t i = 0; i < N_SWITCHES; i++)
		json_free(bench.values[i]);
	return status;
}
