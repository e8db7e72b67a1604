/* What must hold for any bytes that a server may send; used by the fuzzers and by the tests that replay their corpus. */
#ifndef TESTS_SUPPORT_REPLAY_CHECKS_H
#define TESTS_SUPPORT_REPLAY_CHECKS_H

#include <stddef.h>
#include <stdint.h>

/* Events are the same however the bytes are cut, and hold no line ends but the LF that joins data lines. */
void check_sse_bytes(const uint8_t *data, size_t size);

/* The body is the same however the bytes are cut, or they are refused in every cut. */
void check_chunked_bytes(const uint8_t *data, size_t size);

/* Reading gives a result that is consistent in itself, as a stream and as a document, complete and cut off. */
void check_completion_bytes(const uint8_t *data, size_t size);

/* Reading other benchmarks' results gives rows that all have a hash and a document, or a complaint. */
void check_foreign_bytes(const uint8_t *data, size_t size);

/* A record is sound, or refused with a reason and a place that is in it. */
void check_record_bytes(const uint8_t *data, size_t size);

/* Counters read from a server's metrics are -1 or at least 0. */
void check_counters_bytes(const uint8_t *data, size_t size);

/* Calls check with each file of a folder; returns how many there were, -1 when the folder cannot be read. */
int check_corpus(const char *folder, void (*check)(const uint8_t *data, size_t size));

#endif
