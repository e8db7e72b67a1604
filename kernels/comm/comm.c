/* Names of collectives: finds a backend, or says why there is none. */
#include "kernels/comm/comm.h"

#include "base/text.h"
#include "kernels/comm/backends.h"

const struct comm_ops *const comm_cpu_backends[] = {&comm_ref_socket, &comm_shm_flag, &comm_shm_lamport, &comm_shm_2shot};
const size_t comm_cpu_backends_count = sizeof(comm_cpu_backends) / sizeof(comm_cpu_backends[0]);

/* Names of device "cuda", each with the CPU backend of the same, or else the nearest, protocol. */
static const struct {
	const char *name, *twin;
} gpu_names[] = {
	{"nccl", "ref-socket"},
	{"nccl-sym", "ref-socket"},
	{"p2p-ll", "shm-lamport"},
	{"p2p-lamport", "shm-lamport"},
	{"p2p-flag", "shm-flag"},
	{"p2p-2shot", "shm-2shot"},
	{"pcie-staged", "shm-2shot"},
	{"host-staged", "shm-flag"},
};
static const size_t gpu_names_count = sizeof(gpu_names) / sizeof(gpu_names[0]);

static const struct comm_ops *find_cpu(const char *name)
{
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		if (text_equal(comm_cpu_backends[i]->name, name))
			return comm_cpu_backends[i];
	}
	return NULL;
}

static const char *gpu_twin(const char *name)
{
	for (size_t i = 0; i < gpu_names_count; i++) {
		if (text_equal(gpu_names[i].name, name))
			return gpu_names[i].twin;
	}
	return NULL;
}

static enum status refuse_unknown(const char *name, const char *device, struct err *err)
{
	struct text names = {0};
	text_append_str(&names, "auto");
	bool on_cpu = text_equal(device, "cpu");
	size_t count = on_cpu ? comm_cpu_backends_count : gpu_names_count;
	for (size_t i = 0; i < count; i++)
		text_printf(&names, ", %s", on_cpu ? comm_cpu_backends[i]->name : gpu_names[i].name);
	enum status status = err_set_code(err, STATUS_INPUT, "allreduce_refused", "unknown allreduce '%s'; device %s has %s",
		name != NULL ? name : "", device, text_str(&names));
	text_release(&names);
	return status;
}

enum status comm_find(const char *name, const char *device, const struct comm_ops **out, struct err *err)
{
	const struct comm_ops *cpu = find_cpu(name);
	const char *twin = gpu_twin(name);
	bool on_cpu = text_equal(device, "cpu");
	if (cpu != NULL && on_cpu) {
		*out = cpu;
		return STATUS_OK;
	}
	if (cpu != NULL)
		return err_set_code(err, STATUS_INPUT, "allreduce_refused",
			"allreduce '%s' is for device cpu; its twin on %s is '%s'", name, device, cpu->twin);
	if (twin != NULL && on_cpu)
		return err_set_code(err, STATUS_INPUT, "allreduce_refused",
			"allreduce '%s' is for device cuda; its twin on cpu is '%s'", name, twin);
	if (twin != NULL)
		return err_set_code(err, STATUS_UNAVAILABLE, "allreduce_refused", "allreduce '%s' is not in this build", name);
	return refuse_unknown(name, device, err);
}
