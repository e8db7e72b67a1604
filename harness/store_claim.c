/* One program at a time measures an experiment. The claim is a socket's name, which the kernel takes back however the program ends,
 * so that a killed one is resumed at once. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/store_internal.h"

#define CLAIM_WAIT_MS 1000 /* guess: a killed program's child holds the socket until it becomes a guard */
#define CLAIM_POLL_MS 20

enum status store_claim(struct store *store, int64_t experiment_id, struct err *err)
{
	struct stat file;
	struct sockaddr_un name = {.sun_family = AF_UNIX}; /* a name that begins with NUL is no file: unix(7) */
	store_release_claim(store);
	if (stat(store->path, &file) != 0)
		return STATUS_OK; /* in memory: nobody else's */
	int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "verdict/%ju/%ju/%" PRId64, (uintmax_t)file.st_dev,
		(uintmax_t)file.st_ino, experiment_id);
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
	store->claim_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (store->claim_fd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "creating a socket");
	for (int waited_ms = 0; bind(store->claim_fd, (const struct sockaddr *)&name, bytes) != 0; waited_ms += CLAIM_POLL_MS) {
		if (errno != EADDRINUSE)
			return err_set_errno(err, STATUS_UNAVAILABLE, errno, "claiming experiment %" PRId64, experiment_id);
		if (waited_ms >= CLAIM_WAIT_MS) {
			store_release_claim(store);
			return err_set(err, STATUS_UNAVAILABLE, "experiment %" PRId64 " is being measured by another verdict",
				experiment_id);
		}
		clock_sleep_ns((int64_t)CLAIM_POLL_MS * 1000000);
	}
	return STATUS_OK;
}

void store_release_claim(struct store *store)
{
	if (store->claim_fd >= 0)
		close(store->claim_fd);
	store->claim_fd = -1;
}
