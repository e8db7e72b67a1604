/* The one object that knows the build's identity, so that a new commit recompiles one file. */
#include "base/version.h"

const char *version_number(void)
{
	return VERDICT_VERSION;
}

const char *version_build_hash(void)
{
	return VERDICT_BUILD_HASH;
}
