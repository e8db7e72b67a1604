/* Reads workloads: what is asked of the server, how often, and by which arms. */
#include "harness/experiment_internal.h"

#include <math.h>
#include <stdio.h>

#include "harness/target.h"

#define CONCURRENCY_MAX 4096 /* as many as the client can hold */
#define REQUESTS_MAX 1000000
#define RATE_MIN 0.001 /* requests/s: guess, one in a quarter of an hour is no load */
#define RATE_MAX 1e6
#define ARRIVALS_DEFAULT_S 30.0 /* of an open loop that does not say how many requests it has */
#define ARRIVALS_DEFAULT_REQUESTS_MIN 16
#define ARRIVALS_DEFAULT_REQUESTS_MAX 10000
#define LISTED_MAX 64 /* concurrencies or rates of one workload */
#define BODIES_BYTES_MAX ((double)(1 << 30))
#define BYTES_PER_ID 7 /* "123456," */
#define QUICK_REQUESTS_OPEN 8 /* twice as many come where nothing limits how many are in flight */
#define QUICK_OUTPUT_TOKENS 24 /* what --quick calls a short output */

static void read_applies(struct experiment *experiment, struct workload *workload, const struct place *place)
{
	bool *applies = arena_calloc(place->reader->arena, (size_t)experiment->n_arms, sizeof *applies);
	workload->applies = applies;
	struct place list = place_get(place, "applies_to");
	bool all = !place_is(&list, JSON_KIND_ARRAY);
	for (size_t i = 0; i < json_count(list.value) && reader_ok(place->reader); i++) {
		struct place item = place_at(&list, i);
		experiment_check_assignment(experiment, &item, "baseline");
		if (!place_is(&item, JSON_KIND_OBJECT) || !json_count(item.value))
			place_fail(&item, false, "must be an object of settings, such as {\"speculation\": \"ngram\"}");
		if (json_get(item.value, "baseline"))
			continue; /* the baseline runs every workload anyway; the key lets a file say so */
		for (int arm = 0; arm < experiment->n_arms; arm++)
			applies[arm] = applies[arm] || experiment_arm_matches(&experiment->arms[arm], item.value);
	}
	for (int arm = 0; arm < experiment->n_arms; arm++)
		applies[arm] = applies[arm] || all || experiment->arms[arm].kind != ARM_CANDIDATE;
}

/* A point of the load axes: one workload is made for each. */
struct load_point {
	int concurrency; /* 0: not said */
	struct schedule schedule;
};

int workload_slots(const struct workload *workload)
{
	if (workload->concurrency)
		return workload->concurrency;
	return workload->requests < CONCURRENCY_MAX ? workload->requests : CONCURRENCY_MAX;
}

double workload_arrival_seconds(const struct workload *workload)
{
	const struct trace *trace = &workload->trace;
	size_t requests = (size_t)workload->requests;
	if (workload->schedule.kind != SCHEDULE_TRACE)
		return schedule_seconds(&workload->schedule, requests);
	requests = requests < trace->count ? requests : trace->count;
	return requests ? (trace->items[requests - 1].at_ms - trace->items[0].at_ms) / 1e3 / workload->schedule.speed : 0;
}

bool workload_gives(const struct workload *workload, unsigned needs)
{
	bool shares = workload->dataset != DATASET_RANDOM_IDS || workload->cache == CACHE_WARM;
	return !((needs & METRIC_NEEDS_TWO_TOKENS && workload->output_len < 2) ||
		(needs & METRIC_NEEDS_CLOSED_LOOP && workload->schedule.kind != SCHEDULE_CLOSED) ||
		(needs & METRIC_NEEDS_GOODPUT && !goodput_is_stated(&workload->goodput)) ||
		(needs & METRIC_NEEDS_SHARING && !shares));
}

static long long default_requests(const struct workload *workload)
{
	const struct schedule *schedule = &workload->schedule;
	if (schedule->kind == SCHEDULE_TRACE)
		return (long long)workload->trace.count;
	if (schedule->kind == SCHEDULE_CLOSED || schedule->kind == SCHEDULE_AT_ONCE)
		return 4LL * (workload->concurrency ? workload->concurrency : ARRIVALS_DEFAULT_REQUESTS_MIN);
	double requests = ARRIVALS_DEFAULT_S * (schedule->rate + schedule->rate_end) / 2;
	return (long long)fmin(ARRIVALS_DEFAULT_REQUESTS_MAX, fmax(ARRIVALS_DEFAULT_REQUESTS_MIN, ceil(requests)));
}

/* "-c8", "-r2.5", "-rinf-c8", "-r1..10": what tells the workloads of one object apart. */
static const char *point_suffix(struct reader *reader, const struct load_point *point)
{
	const struct schedule *schedule = &point->schedule;
	char rate[80] = "", from[32], to[32];
	text_format_double(from, schedule->rate);
	text_format_double(to, schedule->rate_end);
	if (schedule->kind == SCHEDULE_AT_ONCE)
		snprintf(rate, sizeof rate, "-rinf");
	else if (schedule->kind == SCHEDULE_CONSTANT || schedule->kind == SCHEDULE_GAMMA)
		snprintf(rate, sizeof rate, "-r%s%s%s", from, schedule->rate == schedule->rate_end ? "" : "..",
			schedule->rate == schedule->rate_end ? "" : to);
	if (!point->concurrency)
		return reader_print(reader, "%s", rate);
	return reader_print(reader, "%s-c%d", rate, point->concurrency);
}

static void name_workload(struct experiment *experiment, const struct place *place, const struct load_point *point, bool listed,
	struct workload *workload)
{
	static const char *const kind_names[] = {"random", "jsonl", "chat", "prefix", "trace"};
	if (!workload->name)
		workload->name =
			reader_print(place->reader, "%s%s", kind_names[workload->dataset], point_suffix(place->reader, point));
	else if (listed)
		workload->name = reader_print(place->reader, "%s%s", workload->name, point_suffix(place->reader, point));
	for (int i = 0; i < experiment->n_workloads; i++)
		if (text_equal(experiment->workloads[i].name, workload->name))
			place_fail(place, false, "two workloads are named '%s'", workload->name);
}

/* What would only show after the first launch. */
static void check_size(const struct experiment *experiment, const struct place *place, const struct workload *workload)
{
	struct place requests = place_get(place, "requests"), rate = place_get(place, "rate");
	const struct place *where = requests.value ? &requests : rate.value ? &rate : place;
	double seconds = workload_arrival_seconds(workload), tokens = 0;
	if (workload->schedule.kind == SCHEDULE_CLOSED && workload->requests < workload->concurrency)
		place_fail(place, false, "requests (%d) must be at least the concurrency (%d)", workload->requests,
			workload->concurrency);
	if (workload->dataset == DATASET_TRACE && (size_t)workload->requests > workload->trace.count)
		place_fail(where, false, "the trace has %zu requests, not %d", workload->trace.count, workload->requests);
	if (seconds > experiment->protocol.run_timeout_s)
		place_fail(where, false, "the requests of a run arrive over %.0f s, more than protocol.run_timeout_s (%g s)",
			seconds, experiment->protocol.run_timeout_s);
	for (size_t i = 0; i < workload->trace.count && i < (size_t)workload->requests; i++)
		tokens += workload->trace.items[i].input_len;
	if (workload->dataset != DATASET_TRACE)
		tokens = (double)workload->requests * (workload->prefix_len + workload->input_len * (1 + workload->jitter));
	if (tokens * BYTES_PER_ID > BODIES_BYTES_MAX)
		place_fail(where, false, "the prompts of a run have %.0f tokens; at most %.0f can be prepared", tokens,
			BODIES_BYTES_MAX / BYTES_PER_ID);
}

static void add_workload(struct experiment *experiment, const struct place *place, struct workload workload,
	const struct load_point *point, bool listed)
{
	workload.concurrency = point->concurrency;
	workload.schedule = point->schedule;
	if (!workload.concurrency && workload.schedule.kind == SCHEDULE_CLOSED)
		workload.concurrency = 1;
	workload.requests = (int)place_integer(place, "requests", 1, REQUESTS_MAX, default_requests(&workload));
	struct load_point named = {workload.concurrency, workload.schedule};
	name_workload(experiment, place, &named, listed, &workload);
	check_size(experiment, place, &workload);
	if (experiment->n_workloads == EXPERIMENT_WORKLOADS_MAX)
		place_fail(place, false, "more than %d workloads", EXPERIMENT_WORKLOADS_MAX);
	else if (reader_ok(place->reader))
		experiment->workloads[experiment->n_workloads++] = workload;
}

/* "concurrency": a number or a list. Returns how many there are in out; 0: not said. */
static size_t read_concurrencies(const struct place *place, int out[LISTED_MAX])
{
	struct place list = place_get(place, "concurrency");
	if (json_kind_of(list.value) != JSON_KIND_ARRAY) {
		out[0] = (int)place_integer(place, "concurrency", 1, CONCURRENCY_MAX, 0);
		return list.value ? 1 : 0;
	}
	size_t count = json_count(list.value);
	if (!count)
		place_fail(&list, false, "must not be an empty list");
	if (count > LISTED_MAX)
		place_fail(&list, false, "must list at most %d numbers", LISTED_MAX);
	for (size_t i = 0; i < count && reader_ok(place->reader); i++) {
		struct place item = place_at(&list, i);
		int64_t value = json_int(item.value, 0);
		if (value < 1 || value > CONCURRENCY_MAX)
			place_fail(&item, false, "must be an integer from 1 to %d", CONCURRENCY_MAX);
		out[i] = (int)value;
	}
	return reader_ok(place->reader) ? count : 0;
}

/* One rate: a number of requests/s, "inf", or a ramp. process: see read_process. */
static struct schedule read_rate(const struct place *rate, const struct schedule *process)
{
	struct schedule schedule = *process;
	if (text_equal(json_text(rate->value), "inf")) {
		schedule.kind = SCHEDULE_AT_ONCE;
	} else if (json_kind_of(rate->value) == JSON_KIND_OBJECT) {
		place_section(rate, SECTION_RATE);
		schedule.rate = place_number(rate, "from", RATE_MIN, RATE_MAX, 0);
		schedule.rate_end = place_number(rate, "to", RATE_MIN, RATE_MAX, 0);
		if (schedule.rate <= 0 || schedule.rate_end <= 0)
			place_fail(rate, false, "a ramp needs from and to");
	} else {
		double value = json_number(rate->value, 0);
		if (!(value >= RATE_MIN && value <= RATE_MAX))
			place_fail(rate, false,
				"must be a number of requests/s from %g to %.0f, \"inf\", or a ramp with from and to", RATE_MIN,
				RATE_MAX);
		schedule.rate = schedule.rate_end = value;
	}
	return schedule;
}

/* "rate": one, or a list of them. Returns how many there are in out; 0: not said. */
static size_t read_rates(const struct place *place, const struct schedule *process, struct schedule out[LISTED_MAX])
{
	struct place list = place_get(place, "rate");
	if (!list.value)
		return 0;
	if (json_kind_of(list.value) != JSON_KIND_ARRAY) {
		out[0] = read_rate(&list, process);
		return 1;
	}
	size_t count = json_count(list.value);
	if (!count || count > LISTED_MAX)
		place_fail(&list, false, "must list from 1 to %d rates", LISTED_MAX);
	for (size_t i = 0; i < count && reader_ok(place->reader); i++) {
		struct place item = place_at(&list, i);
		out[i] = read_rate(&item, process);
	}
	return reader_ok(place->reader) ? count : 0;
}

/* "arrivals": how gaps are distributed around the rate, or how fast a trace is replayed. */
static struct schedule read_process(const struct place *place, bool trace)
{
	static const char *const processes[] = {"poisson", "constant", "gamma", NULL};
	struct place arrivals = place_get(place, "arrivals"), rate = place_get(place, "rate");
	place_section(&arrivals, SECTION_ARRIVALS);
	struct place process = place_get(&arrivals, "process"), burstiness = place_get(&arrivals, "burstiness"),
		     speed = place_get(&arrivals, "speed");
	int kind = place_choice(&arrivals, "process", processes, burstiness.value ? 2 : 0);
	struct schedule out = {.kind = kind == 1 ? SCHEDULE_CONSTANT : SCHEDULE_GAMMA,
		.burstiness = place_number(&arrivals, "burstiness", 0.01, 1000, 1),
		.speed = place_number(&arrivals, "speed", 0.001, 1000, 1)};
	if (burstiness.value && kind != 2)
		place_fail(&burstiness, true, "burstiness belongs to process gamma");
	if (kind == 2 && !burstiness.value)
		place_fail(&process, false, "process gamma needs a burstiness");
	if (speed.value && !trace)
		place_fail(&speed, true, "speed belongs to a dataset of kind trace");
	if (trace && rate.value)
		place_fail(&rate, true, "a trace says itself when each request is sent; see arrivals.speed");
	if (trace && process.value)
		place_fail(&process, true, "a trace says itself when each request is sent; see arrivals.speed");
	if (!trace && !rate.value && arrivals.value)
		place_fail(&arrivals, true, "arrivals need a rate");
	if (trace)
		out.kind = SCHEDULE_TRACE;
	return out;
}

static void read_goodput(struct workload *workload, const struct place *place)
{
	const double ms_max = 1e9;
	struct place goodput = place_get(place, "goodput");
	if (!place_section(&goodput, SECTION_GOODPUT))
		return;
	workload->goodput = (struct goodput_limits){place_number(&goodput, "ttft_ms", 0.001, ms_max, 0),
		place_number(&goodput, "tpot_ms", 0.001, ms_max, 0), place_number(&goodput, "e2e_ms", 0.001, ms_max, 0)};
	if (!goodput_is_stated(&workload->goodput))
		place_fail(&goodput, false, "must state at least one limit");
}

/* Lists of concurrencies and rates make one workload for each pair. */
static void add_workloads(struct experiment *experiment, const struct place *place, const struct workload *workload)
{
	bool trace = workload->dataset == DATASET_TRACE;
	struct schedule process = read_process(place, trace),
			rates[LISTED_MAX] = {{.kind = trace ? SCHEDULE_TRACE : SCHEDULE_CLOSED}};
	int concurrencies[LISTED_MAX] = {0};
	size_t n_concurrencies = read_concurrencies(place, concurrencies), n_rates = read_rates(place, &process, rates);
	bool listed = json_kind_of(json_get(place->value, "concurrency")) == JSON_KIND_ARRAY ||
		json_kind_of(json_get(place->value, "rate")) == JSON_KIND_ARRAY;
	if (trace)
		rates[0] = process;
	for (size_t r = 0; r < (n_rates ? n_rates : 1); r++)
		for (size_t c = 0; c < (n_concurrencies ? n_concurrencies : 1) && reader_ok(place->reader); c++) {
			struct load_point point = {concurrencies[c], rates[r]};
			add_workload(experiment, place, *workload, &point, listed);
		}
}

/* What a sample is of, which the prompts alone do not tell. */
static void note_sample(struct experiment *experiment, const struct workload *workload, struct reader *reader)
{
	string_list_add(reader->arena, &experiment->notices,
		reader_print(reader, "%s: %zu prompts, of %zu that could be taken, of %zu entries", workload->path,
			workload->prompts.count, workload->file_usable, workload->file_entries));
}

static void read_workload(struct experiment *experiment, const struct place *place)
{
	static const char *const caches[] = {"cold", "warm", NULL};
	struct workload workload = {0};
	place_section(place, SECTION_WORKLOAD);
	workload.name = place_name(place, NULL);
	/* Workloads of one object, for each point of its load, share their prompts: those of the first are as good as any. */
	experiment_read_dataset(&workload, json_at(place->reader->recorded_workloads, (size_t)experiment->n_workloads), place);
	workload.cache = (enum cache_policy)place_choice(place, "cache", caches, CACHE_COLD);
	read_goodput(&workload, place);
	read_applies(experiment, &workload, place);
	if (reader_ok(place->reader) && workload.file_entries)
		note_sample(experiment, &workload, place->reader);
	if (reader_ok(place->reader))
		add_workloads(experiment, place, &workload);
}

/* A metric that a load cannot give would only show as missing after hours. */
static void check_metric(const struct experiment *experiment, const struct place *where, const char *name)
{
	static const struct {
		unsigned need;
		const char *reason;
	} reasons[] = {
		{METRIC_NEEDS_TWO_TOKENS, "its answers have one token"},
		{METRIC_NEEDS_CLOSED_LOOP, "it is no closed loop"},
		{METRIC_NEEDS_GOODPUT, "it states no goodput limits"},
		{METRIC_NEEDS_SHARING, "its prompts share nothing"},
	};
	const struct metric_spec *spec = metric_by_name(name);
	for (int i = 0; i < experiment->n_workloads; i++)
		for (size_t k = 0; k < sizeof reasons / sizeof reasons[0]; k++)
			if (spec->needs & reasons[k].need && !workload_gives(&experiment->workloads[i], reasons[k].need))
				place_fail(where, false, "workload '%s' cannot give %s: %s", experiment->workloads[i].name, name,
					reasons[k].reason);
	for (int arm = 0; arm < experiment->n_arms; arm++) {
		const struct target_ops *target = target_of_engine(arm_engine(experiment, &experiment->arms[arm]));
		if (spec->needs & METRIC_NEEDS_STREAM && target && target->whole_answers_only)
			place_fail(where, false,
				"%s cannot be measured: this engine counts tokens in whole answers only, so none is "
				"streamed",
				name);
	}
}

static void check_metrics(const struct experiment *experiment, const struct place *root)
{
	struct place verdict = place_get(root, "verdict"), primary = place_get(&verdict, "primary"),
		     metric = place_get(&primary, "metric"), limits = place_get(&verdict, "constraints");
	if (metric.value)
		check_metric(experiment, &metric, experiment->rules.metric);
	for (int i = 0; i < experiment->rules.n_limits; i++) {
		struct place limit = place_at(&limits, (size_t)i), name = place_get(&limit, "metric");
		check_metric(experiment, &name, experiment->rules.limits[i].metric);
	}
}

static bool is_speculative(const struct arm *arm)
{
	for (size_t i = 0; i < arm->n_settings; i++)
		if (text_equal(arm->settings[i].knob, "speculation") && !text_equal(arm->settings[i].text, "off"))
			return true;
	return false;
}

/* Weights made up on the spot, as the built-in engine's models of a shape are, write no text that tokens could misstate. */
static bool has_random_weights(const struct experiment *experiment, const struct arm *arm)
{
	const char *model = arm_engine(experiment, arm)->model;
	return model && text_starts_with(model, "shape:");
}

static void check_arms_have_work(struct experiment *experiment, const struct place *place)
{
	struct reader *reader = place->reader;
	for (int arm = 0; arm < experiment->n_arms && reader_ok(reader); arm++) {
		bool works = false, random_only = true;
		for (int i = 0; i < experiment->n_workloads; i++) {
			const struct workload *workload = &experiment->workloads[i];
			works = works || workload->applies[arm];
			random_only = random_only && (!workload->applies[arm] || !workload->prompts.count);
		}
		const char *name = experiment->arms[arm].name;
		if (!works)
			place_fail(place, false, "no workload applies to %s", name);
		else if (random_only && is_speculative(&experiment->arms[arm]) && experiment->arms[arm].kind == ARM_CANDIDATE &&
			!has_random_weights(experiment, &experiment->arms[arm]))
			string_list_add(reader->arena, &experiment->notices,
				reader_print(reader,
					"%s is measured on random tokens only, which misstates speculation; add a text workload",
					name));
	}
}

void experiment_read_workloads(struct experiment *experiment, const struct place *root)
{
	struct place list = place_get(root, "workloads");
	if (!list.value) {
		struct json *empty = json_new_object();
		struct place alone = {root->reader, empty, "workloads"};
		read_workload(experiment, &alone);
		json_free(empty);
	} else if (place_is(&list, JSON_KIND_ARRAY)) {
		if (!json_count(list.value))
			place_fail(&list, false, "must not be an empty list");
		for (size_t i = 0; i < json_count(list.value) && reader_ok(root->reader); i++) {
			struct place item = place_at(&list, i);
			if (place_is(&item, JSON_KIND_OBJECT))
				read_workload(experiment, &item);
		}
	}
	if (reader_ok(root->reader))
		check_arms_have_work(experiment, &list);
	if (reader_ok(root->reader))
		check_metrics(experiment, root);
}

/* Answers of prompts and traces that say their length themselves. */
static void shorten_answers(struct workload *workload)
{
	for (size_t i = 0; i < workload->prompts.count; i++)
		if (workload->prompts.items[i].output_len > workload->output_len)
			workload->prompts.items[i].output_len = workload->output_len;
	for (size_t i = 0; i < workload->trace.count; i++)
		if (workload->trace.items[i].output_len > workload->output_len)
			workload->trace.items[i].output_len = workload->output_len;
}

void experiment_make_quick(struct experiment *experiment)
{
	struct protocol *protocol = &experiment->protocol;
	protocol->quick = true;
	protocol->blocks = protocol->max_blocks = 3;
	protocol->looks[0] = 3;
	protocol->n_looks = 1;
	protocol->runs_per_launch = 1;
	protocol->screening = false;
	/* A greedy search that confirms nothing would have no end. */
	experiment->rules.confirm_winner_blocks = experiment->search == SEARCH_GREEDY ? 3 : 0;
	for (int i = 0; i < experiment->n_workloads; i++) {
		struct workload *workload = &experiment->workloads[i];
		int requests_max = 2 * (workload->concurrency ? workload->concurrency : QUICK_REQUESTS_OPEN);
		workload->output_len = workload->output_len < QUICK_OUTPUT_TOKENS ? workload->output_len : QUICK_OUTPUT_TOKENS;
		workload->requests = workload->requests < requests_max ? workload->requests : requests_max;
		shorten_answers(workload);
	}
}
