/* Checked reading of an experiment document: every value is reached by a path, and every complaint names that path with
 * its line and column. Private to experiment*.c and their tests. */
#ifndef HARNESS_EXPERIMENT_FIELDS_H
#define HARNESS_EXPERIMENT_FIELDS_H

#include "harness/experiment.h"

/* The objects of an experiment file and the keys each may hold. experiments/schema.json must say the same: a test compares. */
struct experiment_section {
	const char *path; /* as in a complaint, with [] for array elements: "workloads[].dataset" */
	const char *const *keys; /* NULL-terminated */
};
enum section_id {
	SECTION_ROOT,
	SECTION_ENGINE,
	SECTION_ENGINES,
	SECTION_READY,
	SECTION_STOP,
	SECTION_BASELINE,
	SECTION_MATRIX,
	SECTION_RANGE,
	SECTION_CONSTRAINT,
	SECTION_WORKLOAD,
	SECTION_DATASET,
	SECTION_SAMPLING,
	SECTION_RATE,
	SECTION_ARRIVALS,
	SECTION_GOODPUT,
	SECTION_PIN,
	SECTION_PROTOCOL,
	SECTION_WARMUP,
	SECTION_RETRIES,
	SECTION_GUARDS,
	SECTION_FINGERPRINT,
	SECTION_VERDICT,
	SECTION_PRIMARY,
	SECTION_LIMIT,
	SECTION_COUNT
};
extern const struct experiment_section experiment_sections[SECTION_COUNT];

/* One document being read. The first complaint is kept in err and later readers return their fallbacks. */
struct reader {
	const char *bytes; /* as read from the file: what line and column refer to */
	size_t len;
	const char *source;
	struct arena *arena; /* owns every string handed out */
	struct err *err; /* never NULL; status STATUS_OK until the first complaint */
	const struct json *recorded_workloads; /* see struct experiment_overrides */
};

/* A value and where it is. value is NULL when the key is absent. */
struct place {
	struct reader *reader;
	const struct json *value;
	const char *path;
};

bool reader_ok(const struct reader *reader);

/* Records "SOURCE:LINE:COL: path: reason" for the value, or for its key with of_key. A value that came from --set has no
 * line of its own: the nearest enclosing value that has one is named. */
void place_fail(const struct place *place, bool of_key, const char *format, ...) __attribute__((format(printf, 3, 4)));

struct place place_get(const struct place *object, const char *key);
struct place place_at(const struct place *array, size_t index);

/* Complains unless the value is absent or an object with no other keys than the section's. True when present and fine. */
bool place_section(const struct place *place, enum section_id section);

/* Complains unless the value is absent or of that kind. True when present and fine. */
bool place_is(const struct place *place, enum json_kind kind);

/* Readers of the member key of an object; fallback when absent. Strings are copied to the arena, not empty and without NUL. */
long long place_integer(const struct place *object, const char *key, long long min, long long max, long long fallback);
double place_number(const struct place *object, const char *key, double min, double max, double fallback);
bool place_bool(const struct place *object, const char *key, bool fallback);
const char *place_text(const struct place *object, const char *key, const char *fallback);
const char *place_name(const struct place *object, const char *fallback); /* "name", fit to stand in a table */
int place_choice(const struct place *object, const char *key, const char *const *names, int fallback); /* names NULL-terminated */
void place_strings(const struct place *object, const char *key, bool may_be_empty, struct string_list *out);
void place_pairs(const struct place *object, const char *key, struct name_value **out, size_t *count);

/* A string of the value itself, in the arena; NULL after a complaint. */
const char *place_own_text(const struct place *place, bool may_be_empty);

/* Text in the arena. */
const char *reader_print(struct reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *reader_json_text(struct reader *reader, const struct json *value); /* compact */

/* Appends to a list whose items live in the arena. */
void string_list_add(struct arena *arena, struct string_list *list, const char *item);

#endif
