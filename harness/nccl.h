/* The version of NCCL that programs started here would load, from the library itself. No header of theirs is needed. */
#ifndef HARNESS_NCCL_H
#define HARNESS_NCCL_H

#include <stdbool.h>

#define NCCL_VERSION_BYTES 24

/* "2.21.5"; false where there is no library, or it does not tell. An engine may bring a library of its own: what that one says
 * stands in its configuration, where it says anything. */
bool nccl_version(char out[NCCL_VERSION_BYTES]);

/* The text of a version number; the way it is coded changed with 2.9. Source: nccl.h, NCCL_VERSION. Pure. */
void nccl_version_text(int code, char out[NCCL_VERSION_BYTES]);

#endif
