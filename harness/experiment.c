/* Reads an experiment file: strict JSON in, a checked and expanded struct experiment out. Only experiment_load and a workload's
 * prompt file touch the disk. */
#include "harness/experiment.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "harness/experiment_internal.h"
#include "harness/target.h"

#define EXPERIMENT_BYTES_MAX ((size_t)1 << 20)
#define SECONDS_MAX (30.0 * 86400)
#define BLOCKS_MAX 100
#define RACE_BLOCKS 8 /* of a race that does not say: with looks after 3 and 5 */
#define SEARCH_CONFIRM_BLOCKS 3 /* of a search that does not say: its winner is the best of many */

static const struct metric_spec *read_metric(const struct place *object, const struct metric_spec *fallback)
{
	struct place place = place_get(object, "metric");
	const char *name = place_text(object, "metric", NULL);
	const struct metric_spec *found = metric_by_name(name);
	if (!name || (found && found->decides))
		return name ? found : fallback;
	struct text known = {0};
	for (size_t i = 0; i < metric_specs_count; i++)
		if (metric_specs[i].decides)
			text_printf(&known, "%s%s", known.len ? ", " : "", metric_specs[i].name);
	place_fail(&place, false, "%s '%s'; there are %s", found ? "nothing can be judged by" : "unknown metric", name,
		text_str(&known));
	text_release(&known);
	return fallback;
}

/* Asked before the matrix is read, because defaults depend on it. */
static bool is_mode(const struct place *root, const char *mode)
{
	return text_equal(json_text(json_get(json_get(root->value, "matrix"), "mode")), mode);
}

/* The first look comes after "blocks"; with room for more, one look half-way and one at the end follow. */
static void plan_looks(struct protocol *protocol)
{
	int middle = (protocol->blocks + protocol->max_blocks) / 2;
	protocol->looks[protocol->n_looks++] = protocol->blocks;
	if (middle > protocol->blocks && middle < protocol->max_blocks)
		protocol->looks[protocol->n_looks++] = middle;
	if (protocol->max_blocks > protocol->blocks)
		protocol->looks[protocol->n_looks++] = protocol->max_blocks;
}

static void read_looks(struct protocol *protocol, const struct place *place, bool race)
{
	struct place looks = place_get(place, "looks"), blocks = place_get(place, "blocks"),
		     max_blocks = place_get(place, "max_blocks");
	size_t count = json_count(looks.value);
	size_t looks_max = sizeof protocol->looks / sizeof protocol->looks[0];
	if (place_is(&looks, JSON_KIND_ARRAY) && (!count || count > looks_max))
		place_fail(&looks, false, "must list from 1 to %zu block numbers", looks_max);
	if (!reader_ok(place->reader))
		return;
	for (size_t i = 0; i < count; i++) {
		struct place item = place_at(&looks, i);
		int64_t look = json_int(item.value, 0);
		if (look < 1 || look > BLOCKS_MAX || (i && look <= protocol->looks[i - 1]))
			place_fail(&item, false, "looks must be rising integers from 1 to %d", BLOCKS_MAX);
		protocol->looks[protocol->n_looks++] = (int)look;
	}
	int first = count ? protocol->looks[0] : 3, last = count ? protocol->looks[count - 1] : 0;
	protocol->blocks = (int)place_integer(place, "blocks", 1, BLOCKS_MAX, first);
	if (!last)
		last = race && protocol->blocks < RACE_BLOCKS ? RACE_BLOCKS : protocol->blocks;
	protocol->max_blocks = (int)place_integer(place, "max_blocks", 1, BLOCKS_MAX, last);
	if (protocol->max_blocks < protocol->blocks)
		place_fail(max_blocks.value ? &max_blocks : &blocks, false, "max_blocks (%d) is less than blocks (%d)",
			protocol->max_blocks, protocol->blocks);
	else if (count && (protocol->blocks != first || protocol->max_blocks != last))
		place_fail(&looks, false, "the first look must come after blocks (%d), the last after max_blocks (%d)",
			protocol->blocks, protocol->max_blocks);
	if (!count)
		plan_looks(protocol);
}

static void read_protocol(struct protocol *protocol, const struct place *root)
{
	static const char *const orders[] = {"random_in_block", NULL};
	struct place place = place_get(root, "protocol");
	place_section(&place, SECTION_PROTOCOL);
	read_looks(protocol, &place, is_mode(root, "race"));
	place_choice(&place, "order", orders, 0);
	protocol->order_seed = (uint64_t)place_integer(&place, "order_seed", 0, INT64_MAX, 1);
	protocol->runs_per_launch = (int)place_integer(&place, "runs_per_launch", 1, 100, 2);
	protocol->cooldown_s = place_number(&place, "cooldown_s", 0, SECONDS_MAX, 0);
	protocol->run_timeout_s = place_number(&place, "run_timeout_s", 0.1, SECONDS_MAX, 600);
	protocol->stall_s = place_number(&place, "stall_s", 0.1, SECONDS_MAX, 30);
	protocol->budget_s = place_number(&place, "budget_s", 0, SECONDS_MAX, 0);
	protocol->budget_launches = (int)place_integer(&place, "budget_launches", 0, 1000000, 0);
	protocol->screening = place_bool(&place, "screening", protocol->max_blocks > 3);
	struct place warmup = place_get(&place, "warmup"), retries = place_get(&place, "retries");
	place_section(&warmup, SECTION_WARMUP);
	place_section(&retries, SECTION_RETRIES);
	protocol->warmup_requests = (int)place_integer(&warmup, "requests_per_slot", 0, 1000, 2);
	protocol->warmup_stable_pct = place_number(&warmup, "until_stable_pct", 0, 100, 0);
	protocol->warmup_max_s = place_number(&warmup, "max_s", 0.1, SECONDS_MAX, 60);
	struct place max_s = place_get(&warmup, "max_s"), stable = place_get(&warmup, "until_stable_pct");
	if (max_s.value && protocol->warmup_stable_pct <= 0)
		place_fail(&max_s, true, "max_s limits until_stable_pct");
	if (protocol->warmup_stable_pct > 0 && !protocol->warmup_requests)
		place_fail(&stable, true, "until_stable_pct needs requests_per_slot");
	protocol->retry_client_error = (int)place_integer(&retries, "client_error", 0, 10, 1);
	protocol->retry_crash = (int)place_integer(&retries, "crash", 0, 10, 1);
	protocol->retry_oom_load = (int)place_integer(&retries, "oom_load", 0, 10, 0);
}

static const char *read_cpus(const struct place *pin, const char *key, struct cpu_list *out)
{
	struct place place = place_get(pin, key);
	struct err inner = {0};
	const char *text = place_text(pin, key, NULL);
	if (text && cpu_list_parse(text, out, &inner) != STATUS_OK)
		place_fail(&place, false, "%s", inner.text);
	return text;
}

static void read_pin(struct experiment *experiment, const struct place *root)
{
	struct pin *pin = &experiment->pin;
	struct place place = place_get(root, "pin");
	if (!place_section(&place, SECTION_PIN))
		return;
	pin->client_text = read_cpus(&place, "client", &pin->client);
	pin->engine_text = read_cpus(&place, "engine", &pin->engine);
	int shared = cpu_list_shared(&pin->client, &pin->engine);
	if (shared >= 0)
		place_fail(&place, false, "client and engine must be apart, and both have CPU %d", shared);
	if (!pin->client_text && !pin->engine_text)
		place_fail(&place, false, "must name CPUs of the client, the engine or both");
	for (int i = 0; i <= (int)experiment->n_engines && pin->engine_text; i++) {
		const struct engine_spec *engine = i ? &experiment->engines[i - 1] : &experiment->engine;
		if (text_equal(engine->adapter, "attach"))
			place_fail(&place, false, "a running server (adapter attach) cannot be pinned");
	}
}

static void read_guards(struct guards *guards, const struct place *root)
{
	static const char *const foreigns[] = {"void", "record", NULL};
	struct place place = place_get(root, "guards");
	place_section(&place, SECTION_GUARDS);
	guards->completed_frac = place_number(&place, "completed_frac", 0, 1, 1);
	guards->output_len_exact = place_bool(&place, "output_len_exact", true);
	guards->token_count_mismatch_pct = place_number(&place, "token_count_mismatch_pct", 0, 100, 1);
	guards->cached_prompt_frac_max = place_number(&place, "cached_prompt_frac_max", 0, 1, -1);
	guards->foreign_process_voids = place_choice(&place, "foreign_process", foreigns, 0) == 0;
	guards->foreign_cpu_frac_max = place_number(&place, "foreign_cpu_frac_max", 0, 1, 1);
	guards->throttle_frac_max = place_number(&place, "throttle_frac_max", 0, 1, 0.2);
	guards->client_cpu_frac_max = place_number(&place, "client_cpu_frac_max", 0, 1, 0.8);
	guards->client_late_ms_max = place_number(&place, "client_late_ms_max", 0.1, 1e6, 50);
	struct place fingerprint = place_get(&place, "greedy_fingerprint");
	place_section(&fingerprint, SECTION_FINGERPRINT);
	guards->fingerprint_prompts = (int)place_integer(&fingerprint, "prompts", 0, 64, 4);
	guards->fingerprint_tokens = (int)place_integer(&fingerprint, "tokens", 1, 100000, 0);
	guards->fingerprint_min_match_frac = place_number(&fingerprint, "min_match_frac", 0, 1, 0.98);
}

static void read_rules(struct verdict_rules *rules, const struct place *root)
{
	static const char *const betters[] = {"higher", "lower", NULL}, *const corrections[] = {"holm", NULL},
				 *const variances[] = {"pooled", NULL};
	struct place place = place_get(root, "verdict");
	place_section(&place, SECTION_VERDICT);
	struct place primary = place_get(&place, "primary"), limits = place_get(&place, "constraints");
	place_section(&primary, SECTION_PRIMARY);
	const struct metric_spec *metric = read_metric(&primary, &metric_specs[0]);
	rules->metric = metric->name;
	rules->higher_is_better = place_choice(&primary, "better", betters, metric->higher_is_better ? 0 : 1) == 0;
	rules->min_effect_pct = place_number(&primary, "min_effect_pct", 0.01, 50, 2);
	rules->alpha = place_number(&place, "alpha", 1e-6, 0.5, 0.05);
	rules->equivalence = place_bool(&place, "equivalence", true);
	struct place confirm = place_get(&place, "confirm_winner_blocks");
	rules->confirm_winner_blocks = (int)place_integer(&place, "confirm_winner_blocks", 0, 20,
		is_mode(root, "race") || is_mode(root, "greedy") ? SEARCH_CONFIRM_BLOCKS : 0);
	if (rules->confirm_winner_blocks == 1 || rules->confirm_winner_blocks == 2)
		place_fail(&confirm, false, "must be 0, or at least 3: fewer blocks confirm nothing");
	place_choice(&place, "correction", corrections, 0);
	place_choice(&place, "variance", variances, 0);
	place_is(&limits, JSON_KIND_ARRAY);
	if (json_count(limits.value) > EXPERIMENT_LIMITS_MAX)
		place_fail(&limits, false, "more than %d constraints", EXPERIMENT_LIMITS_MAX);
	for (size_t i = 0; i < json_count(limits.value) && reader_ok(place.reader); i++) {
		struct place item = place_at(&limits, i);
		if (!place_section(&item, SECTION_LIMIT) || !json_get(item.value, "metric") ||
			!json_get(item.value, "max_regress_pct"))
			place_fail(&item, false, "must be an object with metric and max_regress_pct");
		metric = read_metric(&item, &metric_specs[0]);
		rules->limits[rules->n_limits++] = (struct metric_limit){
			metric->name, metric->higher_is_better, place_number(&item, "max_regress_pct", 0, 1000, 10)};
	}
}

static void read_header(struct experiment *experiment, const struct place *root)
{
	static const char *const schemas[] = {"experiment/1", NULL};
	place_section(root, SECTION_ROOT);
	place_choice(root, "schema", schemas, 0);
	experiment->name = place_name(root, NULL);
	if (!experiment->name)
		place_fail(root, false, "a name is needed");
	struct place hypothesis = place_get(root, "hypothesis");
	if (json_kind_of(hypothesis.value) == JSON_KIND_OBJECT) {
		struct name_value *pairs = NULL;
		size_t count = 0;
		place_pairs(root, "hypothesis", &pairs, &count);
		experiment->hypothesis = reader_json_text(root->reader, hypothesis.value);
	} else {
		experiment->hypothesis = place_text(root, "hypothesis", NULL);
	}
	place_strings(root, "tags", false, &experiment->tags);
}

static void hash_protocol(struct experiment *experiment)
{
	const struct protocol *protocol = &experiment->protocol;
	struct json *document = json_new_object(), *looks = json_new_array();
	for (int i = 0; i < protocol->n_looks; i++)
		json_append(looks, json_new_integer(protocol->looks[i]));
	json_set(document, "looks", looks);
	json_set(document, "runs_per_launch", json_new_integer(protocol->runs_per_launch));
	json_set(document, "warmup_requests", json_new_integer(protocol->warmup_requests));
	if (protocol->warmup_stable_pct > 0) { /* absent where it is off, so that older hashes hold */
		json_set(document, "warmup_stable_pct", json_new_number(protocol->warmup_stable_pct));
		json_set(document, "warmup_max_s", json_new_number(protocol->warmup_max_s));
	}
	json_set(document, "cooldown_s", json_new_number(protocol->cooldown_s));
	json_set(document, "order_seed", json_new_integer((int64_t)protocol->order_seed));
	json_set(document, "screening", json_new_bool(protocol->screening));
	json_set(document, "quick", json_new_bool(protocol->quick));
	if (experiment->pin.client_text) /* absent where nothing is pinned, so that older hashes hold */
		json_set(document, "pin_client", json_new_string(experiment->pin.client_text));
	if (experiment->pin.engine_text)
		json_set(document, "pin_engine", json_new_string(experiment->pin.engine_text));
	experiment_hash_json(document, experiment->protocol.hash);
	json_free(document);
}

/* Two runs with this hash in common ask the same question, so one may go on where the other stopped. */
static void hash_experiment(struct experiment *experiment, const char *only)
{
	experiment_hash_workloads(experiment);
	hash_protocol(experiment);
	struct json *whole = json_new_object(), *workloads = json_new_array();
	for (int i = 0; i < experiment->n_workloads; i++)
		json_append(workloads, json_new_string(experiment->workloads[i].hash));
	json_set(whole, "document", json_clone(experiment->document));
	json_set(whole, "workloads", workloads);
	json_set(whole, "protocol", json_new_string(experiment->protocol.hash));
	/* Under the name that the arm has, whichever of its names was given. */
	json_set(whole, "only", json_new_string(only ? experiment->arms[experiment->n_arms - 1].name : NULL));
	experiment_hash_json(whole, experiment->hash);
	json_free(whole);
}

static void read_all(struct experiment *experiment, struct reader *reader, const struct experiment_overrides *overrides)
{
	struct place root = {reader, experiment->document, ""};
	read_header(experiment, &root);
	experiment_read_engines(experiment, &root);
	read_protocol(&experiment->protocol, &root);
	read_guards(&experiment->guards, &root);
	read_pin(experiment, &root);
	read_rules(&experiment->rules, &root);
	if (reader_ok(reader))
		experiment_read_arms(experiment, &root);
	if (reader_ok(reader) && overrides->only)
		experiment_keep_only(experiment, reader, overrides->only);
	if (reader_ok(reader))
		experiment_read_workloads(experiment, &root);
	if (reader_ok(reader) && overrides->quick)
		experiment_make_quick(experiment);
	if (reader_ok(reader))
		hash_experiment(experiment, overrides->only);
	experiment->protocol.level_looks = experiment->protocol.n_looks;
}

static enum status apply_settings(struct json **document, const struct experiment_overrides *overrides, struct err *err)
{
	if (json_kind_of(*document) != JSON_KIND_OBJECT)
		return STATUS_OK; /* refused with its place by read_header */
	for (size_t i = 0; i < overrides->n_set; i++) {
		enum status status = experiment_set(document, overrides->set[i], err);
		if (status)
			return status;
	}
	if (!overrides->model)
		return STATUS_OK;
	if (!json_get(*document, "engine"))
		json_set(*document, "engine", json_new_object());
	struct json *engine = json_get(*document, "engine");
	if (json_kind_of(engine) == JSON_KIND_OBJECT)
		json_set(engine, "model", json_new_string(overrides->model));
	return STATUS_OK;
}

enum status experiment_parse(const char *bytes, size_t len, const char *source, const struct experiment_overrides *overrides,
	struct experiment **out, struct err *err)
{
	static const struct experiment_overrides none;
	struct err own = {0};
	err = err ? err : &own;
	overrides = overrides ? overrides : &none;
	struct experiment *experiment = mem_calloc(1, sizeof *experiment);
	experiment->range_values = json_new_array();
	struct reader reader = {bytes, len, source, &experiment->arena, err, overrides->recorded_workloads};
	enum status status = json_parse(bytes, len, source, &experiment->document, err);
	if (!status)
		status = apply_settings(&experiment->document, overrides, err);
	if (!status) {
		experiment->source = reader_print(&reader, "%s", source);
		read_all(experiment, &reader, overrides);
		status = err->status;
	}
	if (status) {
		experiment_release(experiment);
		return status;
	}
	*out = experiment;
	return STATUS_OK;
}

enum status experiment_load(
	const char *path, const struct experiment_overrides *overrides, struct experiment **out, struct err *err)
{
	struct text text = {0};
	enum status status = file_read(path, EXPERIMENT_BYTES_MAX, &text, err);
	if (!status)
		status = experiment_parse(text_str(&text), text.len, text_equal(path, "-") ? "<stdin>" : path, overrides, out, err);
	text_release(&text);
	return status;
}

enum status experiment_extend(struct experiment *experiment, int from_blocks, int to_blocks, struct err *err)
{
	struct protocol *protocol = &experiment->protocol;
	int taken = 0;
	while (taken < protocol->n_looks && protocol->looks[taken] <= from_blocks)
		taken++;
	/* A run that ended for want of time was judged where it ended. */
	bool unplanned = taken == 0 || protocol->looks[taken - 1] < from_blocks;
	if (taken + unplanned + 1 > EXPERIMENT_LOOKS_MAX)
		return err_set(err, STATUS_INPUT, "%s was looked at %d times; more looks than %d prove nothing: start it anew",
			experiment->name, taken + unplanned, EXPERIMENT_LOOKS_MAX);
	if (unplanned)
		protocol->looks[taken++] = from_blocks;
	protocol->looks[taken++] = to_blocks;
	protocol->n_looks = taken;
	protocol->level_looks = taken > protocol->level_looks ? taken : protocol->level_looks;
	protocol->extended_from = from_blocks;
	protocol->blocks = protocol->max_blocks = to_blocks;
	return STATUS_OK;
}

void experiment_release(struct experiment *experiment)
{
	if (!experiment)
		return;
	arena_release(&experiment->arena);
	json_free(experiment->document);
	json_free(experiment->range_values);
	mem_free(experiment);
}
