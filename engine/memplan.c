/* From a memory budget to KV blocks, and the one message that says what would work when it does not. */
#include "engine/memplan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "kernels/kn.h"

#define MIB (1024.0 * 1024.0)

/* What auto leaves: a tenth, but at least 512 MiB for the system, the server's own heap and the page cache of the model file;
 * never more than a quarter, so small machines still serve. (Guess, to be replaced by what launches report.) */
#define RESERVE_SHARE 10
#define RESERVE_BYTES_MIN (512ull << 20)
#define RESERVE_SHARE_MAX 4
#define RESERVE_SHARE_APART 32 /* of a device's own memory: what drivers and libraries take later. 4.4 GiB of an H200 (guess) */
/* Of that, what a GPU's driver takes for certain, for code when it is first launched: an engine's 14 MiB over its plan (H200,
 * driver 580, 2026-11-30), and room for more of it. */
#define DRIVER_BYTES_APART (64ull << 20)

int64_t memplan_blocks(int64_t tokens)
{
	return (tokens + KN_KV_BLOCK_TOKENS - 1) / KN_KV_BLOCK_TOKENS;
}

/* What this process may plan with, whatever the fraction. */
static uint64_t available_of(const struct memplan_request *request)
{
	bool shared = request->available_bytes > 0 && request->available_bytes < request->total_bytes;
	return shared ? request->available_bytes : request->total_bytes;
}

/* The most that a plan may take, as asked: without a reserve, which is a matter of care. */
static uint64_t takeable_of(const struct memplan_request *request)
{
	uint64_t available = available_of(request);
	if (!request->apart || available == request->total_bytes)
		return available;
	return available > DRIVER_BYTES_APART ? available - DRIVER_BYTES_APART : 0;
}

static uint64_t reserve_of(const struct memplan_request *request)
{
	uint64_t total = available_of(request);
	uint64_t reserve = total / (request->apart ? RESERVE_SHARE_APART : RESERVE_SHARE);
	if (reserve < RESERVE_BYTES_MIN)
		reserve = RESERVE_BYTES_MIN;
	return reserve < total / RESERVE_SHARE_MAX ? reserve : total / RESERVE_SHARE_MAX;
}

static uint64_t budget_of(uint64_t total, double fraction)
{
	/* Totals stay below 2^53 bytes, so the product is exact enough to be monotone in fraction. */
	return (uint64_t)(fraction * (double)total);
}

static uint64_t fixed_of(const struct memplan_request *request)
{
	return request->weights_bytes + request->workspace_bytes + request->plans_bytes + request->collectives_bytes +
		request->logits_bytes;
}

/* Everything but KV, one full sequence and the dummy block. */
static uint64_t need_of(const struct memplan_request *request)
{
	return fixed_of(request) + (uint64_t)(memplan_blocks(request->max_model_len) + 1) * request->block_bytes;
}

/* Smallest number of hundredths whose budget holds need; above 1 when none does. */
static double min_fraction_of(const struct memplan_request *request)
{
	uint64_t need = need_of(request);
	for (int hundredths = 1; hundredths <= 100; hundredths++)
		if (budget_of(request->total_bytes, hundredths / 100.0) >= need)
			return hundredths / 100.0;
	return 2.0;
}

/* Largest number of hundredths whose budget can be had. */
static double max_fraction_of(const struct memplan_request *request)
{
	int hundredths = 100;
	while (hundredths > 0 && budget_of(request->total_bytes, hundredths / 100.0) > takeable_of(request))
		hundredths--;
	return hundredths / 100.0;
}

/* Longest max_model_len that a budget holds, 0 when not even one block fits. */
static int64_t fitting_len(const struct memplan_request *request, uint64_t budget)
{
	uint64_t fixed = fixed_of(request);
	if (budget < fixed + 2 * request->block_bytes)
		return 0;
	return (int64_t)((budget - fixed) / request->block_bytes - 1) * KN_KV_BLOCK_TOKENS;
}

/* Who has the memory that is not free: ", the rest is held by …"; empty when all is free. */
static void describe_others(const struct memplan_request *request, char *out, size_t out_bytes)
{
	out[0] = '\0';
	if (available_of(request) == request->total_bytes)
		return;
	snprintf(out, out_bytes, "; of %.0f MiB only %.0f MiB are free, the rest is held by %s", (double)request->total_bytes / MIB,
		(double)available_of(request) / MIB,
		request->others && request->others[0] ? request->others : "other processes or the driver");
}

static enum status set_refusal(const struct memplan *plan, uint64_t need, const char *text, struct err *err)
{
	char smallest[32] = "null", largest[32] = "null", details[sizeof err->details];
	if (plan->min_fraction <= plan->max_fraction) {
		text_format_double(smallest, plan->min_fraction);
		text_format_double(largest, plan->max_fraction);
	}
	snprintf(details, sizeof details, "\"need_bytes\":%llu,\"have_bytes\":%llu,\"min_mem_fraction\":%s,\"max_mem_fraction\":%s",
		(unsigned long long)need, (unsigned long long)plan->budget_bytes, smallest, largest);
	enum status status = err_set_code(err, STATUS_NO_MEMORY, "not_enough_memory", "not enough memory: %s", text);
	if (err && err->details[0] == '\0' && status == STATUS_NO_MEMORY)
		memcpy(err->details, details, sizeof details);
	return status;
}

/* What would help a plan that is too small: the smallest fraction that works, or more memory. */
static void advise(const struct memplan *plan, uint64_t need, char *out, size_t out_bytes)
{
	const struct memplan_request *request = &plan->request;
	char fraction[32], most[32];
	text_format_double(fraction, plan->min_fraction);
	text_format_double(most, plan->max_fraction);
	if (plan->min_fraction <= plan->max_fraction)
		snprintf(out, out_bytes,
			"raise --mem-fraction to %s or more (at most %s; above %.2f less than the reserve of %.0f MiB is left for "
			"everything else)",
			fraction, most, (double)(available_of(request) - plan->reserve_bytes) / (double)request->total_bytes,
			(double)plan->reserve_bytes / MIB);
	else if (plan->min_fraction <= 1)
		snprintf(out, out_bytes, "no fraction works: %s would be needed and %s can be had", fraction, most);
	else
		snprintf(out, out_bytes, "no fraction suffices: raise --mem-budget to %.0f MiB%s", ceil((double)need / MIB),
			plan->fraction < 1 ? " with --mem-fraction 1" : "");
}

static enum status refuse(const struct memplan *plan, struct err *err)
{
	const struct memplan_request *request = &plan->request;
	uint64_t need = need_of(request);
	char advice[256], shorter[96] = "", others[256], text[1024];
	advise(plan, need, advice, sizeof advice);
	describe_others(request, others, sizeof others);
	int64_t len = fitting_len(request, plan->budget_bytes);
	if (len > 0)
		snprintf(shorter, sizeof shorter, ", or lower --max-model-len to %lld", (long long)len);
	snprintf(text, sizeof text,
		"%.1f MiB are needed (weights %.1f, workspace %.1f, step plans %.1f, collectives %.1f, logits %.1f, "
		"KV cache for one sequence of %lld tokens %.1f), the budget is %.1f MiB (%.4g of %.0f MiB, %s); %s%s%s",
		(double)need / MIB, (double)request->weights_bytes / MIB, (double)request->workspace_bytes / MIB,
		(double)request->plans_bytes / MIB, (double)request->collectives_bytes / MIB, (double)request->logits_bytes / MIB,
		(long long)request->max_model_len, (double)(need - plan->fixed_bytes) / MIB, (double)plan->budget_bytes / MIB,
		plan->fraction, (double)request->total_bytes / MIB, request->total_source, advice, shorter, others);
	return set_refusal(plan, need, text, err);
}

/* The fraction asked for more than is free. */
static enum status refuse_unfree(const struct memplan *plan, struct err *err)
{
	uint64_t used = plan->fixed_bytes + plan->kv_bytes;
	char others[256], text[1024];
	describe_others(&plan->request, others, sizeof others);
	snprintf(text, sizeof text,
		"the plan takes %.0f MiB (%.4g of %.0f MiB, %s)%s; lower --mem-fraction to %.2f or less, or use auto",
		(double)used / MIB, plan->fraction, (double)plan->request.total_bytes / MIB, plan->request.total_source, others,
		plan->max_fraction);
	return set_refusal(plan, used, text, err);
}

static void choose_fraction(struct memplan *plan)
{
	const struct memplan_request *request = &plan->request;
	uint64_t available = available_of(request);
	plan->reserve_bytes = reserve_of(request);
	if (request->automatic) {
		plan->budget_bytes = available - plan->reserve_bytes;
		/* To four decimals: a number for people, and one to type. The budget itself is exact. */
		plan->fraction = round((double)plan->budget_bytes / (double)request->total_bytes * 1e4) / 1e4;
		char others[160] = "";
		if (available < request->total_bytes)
			snprintf(others, sizeof others, " and %.0f MiB held by %s",
				(double)(request->total_bytes - available) / MIB,
				request->others && request->others[0] ? request->others : "others or the driver");
		snprintf(plan->fraction_why, sizeof plan->fraction_why, "auto: all of %.0f MiB (%s) but a reserve of %.0f MiB%s",
			(double)request->total_bytes / MIB, request->total_source, (double)plan->reserve_bytes / MIB, others);
		return;
	}
	plan->fraction = request->fraction;
	plan->budget_bytes = budget_of(request->total_bytes, request->fraction);
	snprintf(plan->fraction_why, sizeof plan->fraction_why, "as asked: %.0f MiB of %.0f MiB (%s)",
		(double)plan->budget_bytes / MIB, (double)request->total_bytes / MIB, request->total_source);
}

enum status memplan_compute(const struct memplan_request *request, struct memplan *out, struct err *err)
{
	ASSERT(request->total_bytes > 0 && request->block_bytes > 0 && request->max_model_len > 0 && request->max_num_seqs > 0);
	*out = (struct memplan){.request = *request};
	choose_fraction(out);
	out->fixed_bytes = fixed_of(request);
	out->min_fraction = min_fraction_of(request);
	out->max_fraction = max_fraction_of(request);
	if (out->budget_bytes < need_of(request))
		return refuse(out, err);

	/* More blocks than every running sequence at full length can use would never be touched. */
	uint64_t affordable = (out->budget_bytes - out->fixed_bytes) / request->block_bytes;
	uint64_t useful = (uint64_t)memplan_blocks(request->max_model_len) * (uint64_t)request->max_num_seqs + 1;
	if (useful > INT32_MAX)
		useful = INT32_MAX;
	bool capped = affordable > useful;
	out->n_blocks = (int32_t)(capped ? useful : affordable);
	out->kv_bytes = (uint64_t)out->n_blocks * request->block_bytes;
	snprintf(out->blocks_why, sizeof out->blocks_why,
		capped ? "%lld sequences of %lld tokens fill the pool; the budget would allow %llu blocks"
		       : "what the budget leaves; %lld sequences of %lld tokens could use more than these %llu blocks",
		(long long)request->max_num_seqs, (long long)request->max_model_len, (unsigned long long)affordable);
	uint64_t used = out->fixed_bytes + out->kv_bytes, available = available_of(request);
	if (used > takeable_of(request))
		return refuse_unfree(out, err);
	out->left_bytes = available - used;
	if (out->left_bytes < out->reserve_bytes)
		snprintf(out->warning, sizeof out->warning,
			"only %.0f MiB of %.0f MiB are left for everything else, less than the reserve of %.0f MiB: "
			"the system may swap or end the server; --mem-fraction auto leaves the reserve",
			(double)out->left_bytes / MIB, (double)request->total_bytes / MIB, (double)out->reserve_bytes / MIB);
	return STATUS_OK;
}

struct json *memplan_json(const struct memplan *plan)
{
	const struct memplan_request *request = &plan->request;
	const struct {
		const char *key;
		uint64_t bytes;
	} terms[] = {
		{"total_bytes", request->total_bytes},
		{"available_bytes", available_of(request)},
		{"budget_bytes", plan->budget_bytes},
		{"reserve_bytes", plan->reserve_bytes},
		{"left_bytes", plan->left_bytes},
		{"weights_bytes", request->weights_bytes},
		{"workspace_bytes", request->workspace_bytes},
		{"plans_bytes", request->plans_bytes},
		{"collectives_bytes", request->collectives_bytes},
		{"logits_bytes", request->logits_bytes},
		{"kv_bytes", plan->kv_bytes},
		{"kv_block_bytes", request->block_bytes},
	};
	struct json *object = json_new_object();
	for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
		json_set(object, terms[i].key, json_new_integer((int64_t)terms[i].bytes));
	json_set(object, "total_source", json_new_string(request->total_source));
	json_set(object, "held_by_others",
		request->others && request->others[0] ? json_new_string(request->others) : json_new_null());
	json_set(object, "max_mem_fraction", json_new_number(plan->max_fraction));
	json_set(object, "mem_fraction", json_new_number(plan->fraction));
	json_set(object, "mem_fraction_why", json_new_string(plan->fraction_why));
	json_set(object, "min_mem_fraction", plan->min_fraction <= 1 ? json_new_number(plan->min_fraction) : json_new_null());
	json_set(object, "kv_blocks", json_new_integer(plan->n_blocks));
	json_set(object, "kv_blocks_why", json_new_string(plan->blocks_why));
	json_set(object, "warning", plan->warning[0] ? json_new_string(plan->warning) : json_new_null());
	return object;
}
