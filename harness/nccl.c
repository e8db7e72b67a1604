/* One call found by name in libnccl.so.2. */
#include "harness/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void nccl_version_text(int code, char out[NCCL_VERSION_BYTES])
{
	int major = code >= 10000 ? code / 10000 : code / 1000, rest = code >= 10000 ? code % 10000 : code % 1000;
	snprintf(out, NCCL_VERSION_BYTES, "%d.%d.%d", major, rest / 100, rest % 100);
}

bool nccl_version(char out[NCCL_VERSION_BYTES])
{
	int (*get_version)(int *version) = NULL;
	int code = 0;
	void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
	void *found = library ? dlsym(library, "ncclGetVersion") : NULL;
	memcpy(&get_version, &found, sizeof(found)); /* as for every data pointer that holds a function */
	bool told = found && get_version(&code) == 0 && code > 0;
	if (told)
		nccl_version_text(code, out);
	if (library)
		dlclose(library);
	return told;
}
