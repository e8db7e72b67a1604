/* Calls that are the same in all of them. */
#include "nvml_fake.h"

#include <stdio.h>

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
	return OK;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
	return OK;
}

int nvmlSystemGetDriverVersion(char *version, unsigned bytes);
int nvmlSystemGetDriverVersion(char *version, unsigned bytes)
{
	snprintf(version, bytes, "570.00.1");
	return fake_answer();
}

int nvmlSystemGetCudaDriverVersion_v2(int *version);
int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = 12080;
	return fake_answer();
}

int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts);
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts)
{
	*milliwatts = 700000;
	return fake_answer();
}
