/* A scripted engine for tests of the API. */
#include "tests/support/fake_backend.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/support/http_client.h"

static bool is_ready(const void *self)
{
	const struct fake_backend *fake = self;
	return !fake->not_ready;
}

static const char *model_name(const void *self)
{
	return "fake/model";
}

static int max_model_len(const void *self)
{
	const struct fake_backend *fake = self;
	return fake->context;
}

static int32_t vocab_size(const void *self)
{
	return FAKE_PIECES + FAKE_PIECES_MAX;
}

static int32_t prompt_bos(const void *self)
{
	return -1;
}

static enum status encode(
	const void *self, const char *text, size_t len, bool parse_special, struct token_list *out, struct err *err)
{
	for (size_t i = 0; i < len; i++) {
		if (parse_special && len - i >= 7 && memcmp(text + i, "<|end|>", 7) == 0) {
			token_list_append(out, FAKE_END);
			i += 6;
		} else {
			token_list_append(out, (unsigned char)text[i]);
		}
	}
	return STATUS_OK;
}

static bool token_bytes(const void *self, int32_t id, bool with_special, struct text *out)
{
	const struct fake_backend *fake = self;

	if (id < 0 || id >= vocab_size(self))
		return false;
	if (id < 256)
		text_append_char(out, (char)id);
	else if (id == FAKE_END && with_special)
		text_append_str(out, "<|end|>");
	else if (id >= FAKE_PIECES && fake->pieces[id - FAKE_PIECES])
		text_append_str(out, fake->pieces[id - FAKE_PIECES]);
	return true;
}

static enum status render_chat(const void *self, const struct chat *chat, struct token_list *out, struct err *err)
{
	for (size_t i = 0; i < chat->n_messages; i++) {
		const struct chat_message *message = &chat->messages[i];

		encode(self, message->role, strlen(message->role), false, out, err);
		token_list_append(out, ':');
		if (message->content)
			encode(self, message->content, message->content_len, false, out, err);
		token_list_append(out, FAKE_END);
	}
	return STATUS_OK;
}

static enum status submit(void *self, const int32_t *prompt, size_t count, const struct sampling *sampling,
	const struct engine_listener *listener, uint64_t *id, struct err *err)
{
	struct fake_backend *fake = self;
	int active = 0;

	pthread_mutex_lock(&fake->lock);
	for (int i = 0; i < fake->n_runs; i++)
		active += fake->runs[i].active;
	if (active >= fake->queue_max || fake->n_runs == FAKE_RUNS_MAX) {
		pthread_mutex_unlock(&fake->lock);
		return err_set_code(err, STATUS_UNAVAILABLE, "queue_full", "the queue of %d requests is full", fake->queue_max);
	}
	struct fake_run *run = &fake->runs[fake->n_runs];
	*run = (struct fake_run){
		.id = (uint64_t)fake->n_runs + 1, .active = true, .listener = *listener, .sampling = *sampling, .n_prompt = count};
	run->prompt = mem_calloc(count, sizeof(*prompt));
	memcpy(run->prompt, prompt, count * sizeof(*prompt));
	*id = run->id;
	fake->n_runs++;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
	return STATUS_OK;
}

static void cancel(void *self, uint64_t id)
{
	struct fake_backend *fake = self;

	pthread_mutex_lock(&fake->lock);
	for (int i = 0; i < fake->n_runs; i++)
		if (fake->runs[i].id == id && fake->runs[i].active)
			fake->runs[i].cancelled = true;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

static void flush_cache(void *self)
{
	struct fake_backend *fake = self;

	pthread_mutex_lock(&fake->lock);
	fake->n_flushed++;
	pthread_mutex_unlock(&fake->lock);
}

static struct json *config(const void *self)
{
	struct json *root = json_new_object();
	json_set(root, "settings", json_new_object());
	return root;
}

static void metrics(const void *self, struct text *out)
{
	text_append_str(out, "verdict_fake 1\n");
}

static const struct api_backend_ops ops = {
	.name = "fake",
	.is_ready = is_ready,
	.model_name = model_name,
	.max_model_len = max_model_len,
	.vocab_size = vocab_size,
	.prompt_bos = prompt_bos,
	.encode = encode,
	.token_bytes = token_bytes,
	.render_chat = render_chat,
	.submit = submit,
	.cancel = cancel,
	.flush_cache = flush_cache,
	.config = config,
	.metrics = metrics,
};

/* The next tokens of a generation, as the real engine would hand them over. Returns how many. */
static size_t next_tokens(const struct fake_backend *fake, struct fake_run *run, struct engine_token *tokens, size_t max)
{
	size_t count = 0;
	int end = fake->script_count < run->sampling.max_tokens ? fake->script_count : run->sampling.max_tokens;

	for (; count < max && run->sent < end; count++, run->sent++) {
		struct engine_token *token = &tokens[count];
		*token = (struct engine_token){.id = fake->script[run->sent], .logprob = -0.5f};
		token->n_top = run->sampling.logprobs > 0 ? run->sampling.logprobs : 0;
		for (int k = 0; k < token->n_top; k++) {
			token->top_ids[k] = fake->repeat_top ? token->id : (token->id + k) % 256;
			token->top_logprobs[k] = -0.5f - (float)k;
		}
	}
	return count;
}

static void finish(struct fake_backend *fake, struct fake_run *run, enum finish how)
{
	struct engine_result result = {.finish = how,
		.prompt_tokens = (int)run->n_prompt,
		.cached_tokens = 3,
		.completion_tokens = run->sent,
		.drafted = 5,
		.accepted = 2,
		.verify_steps = 4,
		.queued_ns = 1500000,
		.prefill_ns = 2000000,
		.decode_ns = 3000000,
		.error = fake->error};

	pthread_mutex_lock(&fake->lock);
	run->active = false;
	pthread_mutex_unlock(&fake->lock);
	run->listener.on_done(run->listener.ctx, &result);
	pthread_mutex_lock(&fake->lock);
	fake->n_done++;
	fake->n_cancelled += how == FINISH_CANCELLED;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

/* One step of one generation. Returns false when it waits. */
static bool step(struct fake_backend *fake, struct fake_run *run)
{
	struct engine_token tokens[16];

	pthread_mutex_lock(&fake->lock);
	bool cancelled = run->cancelled || fake->stopping;
	bool held = fake->hold_after && run->sent >= fake->hold_after;
	pthread_mutex_unlock(&fake->lock);
	if (cancelled) {
		finish(fake, run, FINISH_CANCELLED);
		return true;
	}
	if (held)
		return false;
	size_t count = next_tokens(fake, run, tokens, (size_t)fake->per_step);
	if (count)
		run->listener.on_tokens(run->listener.ctx, tokens, count);
	if (run->sent >= run->sampling.max_tokens)
		finish(fake, run, FINISH_LENGTH);
	else if (run->sent >= fake->script_count)
		finish(fake, run, fake->at_end);
	return true;
}

static void *step_thread(void *arg)
{
	struct fake_backend *fake = arg;

	for (;;) {
		bool worked = false;
		pthread_mutex_lock(&fake->lock);
		int count = fake->n_runs;
		pthread_mutex_unlock(&fake->lock);
		bool active = false;
		for (int i = 0; i < count; i++) {
			if (fake->runs[i].active) {
				active = true;
				worked |= step(fake, &fake->runs[i]);
			}
		}
		pthread_mutex_lock(&fake->lock);
		bool end = fake->stopping && !active && count == fake->n_runs;
		if (!worked && !end && count == fake->n_runs) {
			/* Everything waits: for a request, a cancel, a release or the end. All of them signal. */
			bool pending = fake->stopping;
			for (int i = 0; i < count; i++)
				pending |= fake->runs[i].active && (fake->runs[i].cancelled || !fake->hold_after);
			if (!pending)
				pthread_cond_wait(&fake->changed, &fake->lock);
		}
		pthread_mutex_unlock(&fake->lock);
		if (end)
			return NULL;
	}
}

struct fake_backend *fake_backend_open(void)
{
	struct fake_backend *fake = mem_calloc(1, sizeof(*fake));

	fake->backend = (struct api_backend){&ops, fake};
	fake->per_step = 1;
	fake->at_end = FINISH_STOP;
	fake->context = 2048;
	fake->queue_max = FAKE_RUNS_MAX;
	pthread_mutex_init(&fake->lock, NULL);
	pthread_cond_init(&fake->changed, NULL);
	pthread_create(&fake->thread, NULL, step_thread, fake);
	return fake;
}

void fake_backend_close(struct fake_backend *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->stopping = true;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
	pthread_join(fake->thread, NULL);
	for (int i = 0; i < fake->n_runs; i++)
		mem_free(fake->runs[i].prompt);
	pthread_mutex_destroy(&fake->lock);
	pthread_cond_destroy(&fake->changed);
	mem_free(fake);
}

void fake_backend_say(struct fake_backend *fake, const char *text)
{
	fake->script_count = 0;
	for (; *text; text++)
		fake->script[fake->script_count++] = (unsigned char)*text;
}

void fake_backend_release(struct fake_backend *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_after = 0;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

int fake_backend_count(struct fake_backend *fake, const int *counter)
{
	pthread_mutex_lock(&fake->lock);
	int count = *counter;
	pthread_mutex_unlock(&fake->lock);
	return count;
}

bool fake_backend_wait(struct fake_backend *fake, const int *counter, int count)
{
	int64_t deadline_ns = clock_realtime_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
	struct timespec until = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
	int errnum = 0;

	pthread_mutex_lock(&fake->lock);
	while (*counter < count && errnum == 0)
		errnum = pthread_cond_timedwait(&fake->changed, &fake->lock, &until);
	bool reached = *counter >= count;
	pthread_mutex_unlock(&fake->lock);
	return reached;
}
