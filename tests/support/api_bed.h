/* The API over loopback with a scripted engine, for its tests. All of it fails the running test when something is wrong. */
#ifndef TESTS_SUPPORT_API_BED_H
#define TESTS_SUPPORT_API_BED_H

#include "base/json.h"
#include "engine/api.h"
#include "tests/support/fake_backend.h"
#include "tests/support/http_client.h"

struct api_bed {
	struct fake_backend *fake;
	struct api *api;
	struct http_server *server;
	int port;
};

/* A server whose engine says "Hello, world". stream_queue_bytes 0: as by default. */
struct api_bed api_bed_open(const struct api_config *config, size_t stream_queue_bytes);
struct api_bed api_bed_plain(void); /* nonce "n-1", no key */
void api_bed_close(struct api_bed *f);

/* POSTs (or GETs, body NULL) and parses the JSON answer. Caller frees. */
struct json *api_bed_ask(const struct api_bed *f, const char *path, const char *body, int expected_status);

/* A parsed stream: events as an array of JSON objects; checks that [DONE] comes last and nothing else. Caller frees. */
struct json *api_bed_stream(const struct api_bed *f, const char *path, const char *body);

/* root.key, its element index unless that is negative, and of this key2 unless that is NULL. */
const struct json *api_bed_at(const struct json *root, const char *key, int index, const char *key2);
const char *api_bed_text(const struct json *root); /* of the first choice of a completion */
const char *api_bed_finish(const struct json *root);

/* Joins the text of one choice over all events, and counts its finish reasons. */
struct text api_bed_join(const struct json *events, int index, int *finishes, const char **reason);

#endif
