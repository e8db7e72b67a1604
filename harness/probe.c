/* Reading /proc and /sys. */
#include "harness/probe.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/nccl.h"
#include "harness/nvml.h"
#include "harness/probe_cpu.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)

/* Value of the first line "KEY<space>:<space>VALUE" of a file, trimmed; "" when there is none. */
static void read_field(const char *path, const char *key, struct text *out)
{
	struct text text = {0};
	if (file_read(path, FILE_BYTES_MAX, &text, NULL) == STATUS_OK) {
		for (const char *line = text_str(&text); line && *line;) {
			const char *end = strchr(line, '\n');
			const char *colon = text_starts_with(line, key) ? strchr(line, ':') : NULL;
			if (colon && (!end || colon < end)) {
				colon++;
				while (*colon == ' ' || *colon == '\t')
					colon++;
				text_append(out, colon, end ? (size_t)(end - colon) : strlen(colon));
				break;
			}
			line = end ? end + 1 : NULL;
		}
	}
	text_release(&text);
}

/* Number of the line "KEY VALUE" of a file; null when there is none. */
static struct json *new_number_of(const char *path, const char *key)
{
	struct text text = {0};
	struct json *value = NULL;
	const char *line = file_read(path, FILE_BYTES_MAX, &text, NULL) == STATUS_OK ? text_str(&text) : NULL;
	while (line && !value) {
		size_t len = strlen(key);
		if (text_starts_with(line, key) && line[len] == ' ')
			value = json_new_integer(strtoll(line + len, NULL, 10));
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	text_release(&text);
	return value ? value : json_new_null();
}

/* First line of a file as a JSON string; null when it cannot be read. */
static struct json *new_line_of(const char *path)
{
	struct text text = {0};
	struct json *value = NULL;
	if (file_read(path, FILE_BYTES_MAX, &text, NULL) == STATUS_OK)
		value = json_new_string_len(text_str(&text), strcspn(text_str(&text), "\n"));
	text_release(&text);
	return value ? value : json_new_null();
}

static struct json *new_field_of(const char *path, const char *key)
{
	struct text text = {0};
	read_field(path, key, &text);
	struct json *value = text.len ? json_new_string(text_str(&text)) : json_new_null();
	text_release(&text);
	return value;
}

/* The NVIDIA driver lists its devices without any library. */
static struct json *new_gpus(void)
{
	struct json *gpus = json_new_array();
	DIR *folder = opendir("/proc/driver/nvidia/gpus");
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		if (entry->d_name[0] == '.')
			continue;
		char path[512];
		snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", entry->d_name);
		struct json *gpu = json_new_object();
		json_set(gpu, "name", new_field_of(path, "Model"));
		json_set(gpu, "uuid", new_field_of(path, "GPU UUID"));
		json_append(gpus, gpu);
	}
	if (folder)
		closedir(folder);
	return gpus;
}

/* The files of the driver may be hidden from a container, and then its library is what tells the GPUs. */
static void add_gpu_facts(const struct nvml *nvml, struct json *facts)
{
	char nccl[NCCL_VERSION_BYTES];
	nvml_facts(nvml, facts);
	if (nccl_version(nccl))
		json_set(facts, "nccl", json_new_string(nccl));
	if (!json_count(json_get(facts, "gpus")))
		json_set(facts, "gpus", json_clone(json_get(facts, "gpu_details")));
	if (!json_text(json_get(facts, "gpu_driver")) && json_get(facts, "gpu_driver_version"))
		json_set(facts, "gpu_driver", json_clone(json_get(facts, "gpu_driver_version")));
}

static struct json *facts(void)
{
	struct json *object = json_new_object();
	struct utsname name;
	char host[256] = "";
	gethostname(host, sizeof(host) - 1);
	if (uname(&name) != 0)
		memset(&name, 0, sizeof(name));
	json_set(object, "host", json_new_string(host));
	json_set(object, "architecture", json_new_string(name.machine));
	json_set(object, "kernel", json_new_string(name.release));
	json_set(object, "cpu", new_field_of("/proc/cpuinfo", "model name"));
	json_set(object, "cpus", json_new_integer(file_machine_cpus()));
	json_set(object, "cpus_online", json_new_integer(sysconf(_SC_NPROCESSORS_ONLN)));
	json_set(object, "memory_bytes", json_new_integer((int64_t)file_machine_memory_bytes()));
	json_set(object, "governor", new_line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
	json_set(object, "transparent_hugepage", new_line_of("/sys/kernel/mm/transparent_hugepage/enabled"));
	json_set(object, "cgroup_cpu_max", new_line_of("/sys/fs/cgroup/cpu.max"));
	json_set(object, "cgroup_memory_max", new_line_of("/sys/fs/cgroup/memory.max"));
	json_set(object, "gpus", new_gpus());
	json_set(object, "gpu_driver", new_line_of("/proc/driver/nvidia/version"));
	struct nvml *nvml = nvml_open();
	if (nvml)
		add_gpu_facts(nvml, object);
	nvml_close(nvml);
	return object;
}

static void add_ticks(struct json *object, const struct probe_sample *sample)
{
	json_set(object, "cpu_ticks_all", json_new_integer(sample->ticks_all));
	json_set(object, "cpu_ticks_busy", json_new_integer(sample->ticks_busy));
	json_set(object, "cpu_ticks_stolen", json_new_integer(sample->ticks_stolen));
	json_set(
		object, "throttle_count", sample->throttle_count >= 0 ? json_new_integer(sample->throttle_count) : json_new_null());
}

static struct json *reading(void *session)
{
	struct json *object = json_new_object();
	struct text available = {0};
	read_field("/proc/meminfo", "MemAvailable", &available);
	json_set(object, "memory_available_kib",
		available.len ? json_new_integer(strtoll(text_str(&available), NULL, 10)) : json_new_null());
	text_clear(&available);
	read_field("/proc/meminfo", "Shmem", &available);
	json_set(object, "shared_memory_kib",
		available.len ? json_new_integer(strtoll(text_str(&available), NULL, 10)) : json_new_null());
	json_set(object, "load", new_line_of("/proc/loadavg"));
	json_set(object, "oom_kills", new_number_of("/proc/vmstat", "oom_kill"));
	struct probe_sample *sample = mem_calloc(1, sizeof(*sample));
	probe_sample_cpu(sample);
	add_ticks(object, sample);
	if (session) {
		struct json *used = json_new_array();
		nvml_sample(session, sample);
		for (int i = 0; i < sample->n_gpus; i++)
			json_append(used, json_new_number(sample->gpus[i].used_mib));
		json_set(object, "gpu_memory_used_mib", used);
	}
	mem_free(sample);
	text_release(&available);
	return object;
}

static void *open_session(void)
{
	return nvml_open();
}

static void close_session(void *session)
{
	nvml_close(session);
}

static void sample(void *session, struct probe_sample *out)
{
	probe_sample_cpu(out);
	if (session)
		nvml_sample(session, out);
}

const struct probe_ops probe_linux = {
	.name = "linux", .facts = facts, .reading = reading, .open = open_session, .close = close_session, .sample = sample};

void probe_machine_hash(const struct json *all, char out[65])
{
	static const char *const names[] = {"architecture", "cpu", "cpus", "memory_bytes", "gpus", "gpu_driver"};
	struct json *object = json_new_object();
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct json *value = json_get(all, names[i]);
		json_set(object, names[i], value ? json_clone(value) : json_new_null());
	}
	/* A GPU that may take less power is another GPU. Machines without keep the hash they always had. */
	const struct json *gpus = json_get(all, "gpu_details");
	for (size_t i = 0; i < json_count(gpus); i++) {
		char name[48];
		const struct json *watts = json_get(json_at(gpus, i), "power_limit_w");
		snprintf(name, sizeof(name), "power_limit_w_%zu", i);
		if (watts)
			json_set(object, name, json_clone(watts));
	}
	struct text text = {0};
	json_write(object, JSON_STYLE_CANONICAL, &text);
	uint8_t digest[SHA256_BYTES];
	struct sha256 sha;
	sha256_init(&sha);
	sha256_update(&sha, text_str(&text), text.len);
	sha256_finish(&sha, digest);
	sha256_hex(digest, out);
	text_release(&text);
	json_free(object);
}

static double difference(const struct json *before, const struct json *after, const char *name)
{
	return json_number(json_get(after, name), 0) - json_number(json_get(before, name), 0);
}

bool probe_memory_held(const struct json *before, const struct json *after, double limit_mib, char what[128])
{
	double shared_mib = difference(before, after, "shared_memory_kib") / 1024;
	if (json_is_number(json_get(before, "shared_memory_kib")) && shared_mib > limit_mib) {
		snprintf(what, 128, "%.0f MiB of shared memory are left", shared_mib);
		return true;
	}
	const struct json *used_before = json_get(before, "gpu_memory_used_mib"),
			  *used_after = json_get(after, "gpu_memory_used_mib");
	for (size_t i = 0; i < json_count(used_before) && i < json_count(used_after); i++) {
		double held_mib = json_number(json_at(used_after, i), NAN) - json_number(json_at(used_before, i), NAN);
		if (!(held_mib > limit_mib)) /* nor where one of them is not known */
			continue;
		snprintf(what, 128, "%.0f MiB of the memory of GPU %zu are still in use", held_mib, i);
		return true;
	}
	return false;
}

int64_t probe_oom_kills(const struct json *before, const struct json *after)
{
	bool counted = json_is_number(json_get(before, "oom_kills")) && json_is_number(json_get(after, "oom_kills"));
	return counted ? (int64_t)difference(before, after, "oom_kills") : -1;
}

struct json *probe_compare(struct json *before, struct json *after)
{
	struct json *object = json_new_object();
	double all = difference(before, after, "cpu_ticks_all");
	json_set(object, "cpu_busy_frac",
		all > 0 ? json_new_number(difference(before, after, "cpu_ticks_busy") / all) : json_new_null());
	json_set(object, "cpu_steal_frac",
		all > 0 ? json_new_number(difference(before, after, "cpu_ticks_stolen") / all) : json_new_null());
	bool counted = json_is_number(json_get(before, "throttle_count")) && json_is_number(json_get(after, "throttle_count"));
	json_set(object, "throttled", counted ? json_new_bool(difference(before, after, "throttle_count") > 0) : json_new_null());
	json_set(object, "before", before);
	json_set(object, "after", after);
	return object;
}
