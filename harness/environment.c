/* Choosing variables by name. */
#include "harness/environment.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"

/* Names that change how fast an engine is or which devices it sees; their values are no secrets. */
static const char *const recorded_prefixes[] = {
	"CUDA_",
	"NVIDIA_",
	"NCCL_",
	"OMP_",
	"GOMP_",
	"KMP_",
	"MKL_",
	"OPENBLAS_",
	"MALLOC_",
	"LD_",
	"GGML_",
	"LLAMA_",
	"VLLM_",
	"SGLANG_",
	"SGL_",
	"TORCH_",
	"PYTORCH_",
	"LC_",
	"LANG",
	"TZ",
	"PATH",
	"HIP_",
	"ROCR_",
};

/* The engine gets ours, or none. */
static bool is_ours(const char *entry)
{
	return text_starts_with(entry, "PORT=") || text_starts_with(entry, "VERDICT_");
}

static size_t name_len(const char *entry)
{
	return strcspn(entry, "=");
}

static bool is_overridden(const struct string_vector *overrides, const char *entry)
{
	size_t len = name_len(entry);
	for (size_t i = 0; i < overrides->count; i++)
		if (name_len(overrides->items[i]) == len && memcmp(overrides->items[i], entry, len) == 0)
			return true;
	return false;
}

static bool is_recorded(const char *entry)
{
	/* API keys of engines have such prefixes too. */
	char name[128];
	snprintf(name, sizeof(name), "%.*s", (int)name_len(entry), entry);
	if (strstr(name, "KEY") || strstr(name, "TOKEN") || strstr(name, "SECRET") || strstr(name, "PASS"))
		return false;
	for (size_t i = 0; i < sizeof(recorded_prefixes) / sizeof(recorded_prefixes[0]); i++)
		if (text_starts_with(name, recorded_prefixes[i]))
			return true;
	return false;
}

static void record_entry(struct json *object, const char *entry)
{
	struct text name = {0};
	text_append(&name, entry, name_len(entry));
	json_set(object, text_str(&name), json_new_string(entry[name.len] ? entry + name.len + 1 : ""));
	text_release(&name);
}

/* Of what the engine gets so far. */
static struct json *new_hash(const struct string_vector *variables)
{
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	char hex[65];
	sha256_init(&sha);
	for (size_t i = 0; i < variables->count; i++)
		sha256_update(&sha, variables->items[i], strlen(variables->items[i]) + 1);
	sha256_finish(&sha, digest);
	sha256_hex(digest, hex);
	return json_new_string(hex);
}

void environment_build(char *const *inherited, const struct string_vector *overrides, int port, const char *nonce,
	struct string_vector *out, struct json **record)
{
	struct json *values = json_new_object(), *names = json_new_array(), *set = json_new_object();
	for (char *const *entry = inherited; *entry; entry++) {
		if (is_ours(*entry) || is_overridden(overrides, *entry))
			continue;
		string_vector_add(out, *entry);
		if (is_recorded(*entry))
			record_entry(values, *entry);
		else
			json_append(names, json_new_string_len(*entry, name_len(*entry)));
	}
	for (size_t i = 0; i < overrides->count; i++) {
		string_vector_add(out, overrides->items[i]);
		record_entry(set, overrides->items[i]);
	}
	struct json *hash = new_hash(out);
	struct text text = {0};
	if (!is_overridden(overrides, "PORT=")) {
		text_printf(&text, "PORT=%d", port);
		string_vector_add_owned(out, text_take(&text));
	}
	text_printf(&text, "VERDICT_NONCE=%s", nonce);
	string_vector_add_owned(out, text_take(&text));
	*record = json_new_object();
	json_set(*record, "set", set);
	json_set(*record, "inherited", values);
	json_set(*record, "inherited_names", names);
	json_set(*record, "hash", hash);
}
