/* A folder with an experiment file in it and the database that its runs fill; what such a run says and stores. */
#ifndef TESTS_SUPPORT_RUN_BED_H
#define TESTS_SUPPORT_RUN_BED_H

#include "base/json.h"
#include "base/text.h"
#include "tests/support/experiments.h"

struct run_bed {
	char folder[64], file[96], db[96];
};

void run_bed_open(struct run_bed *space, const struct stub_experiment *options);
void run_bed_close(struct run_bed *space);

/* Stub arguments: what decides is told by the stub, so that a busy machine changes no verdict. NULL-terminated. */
extern const char *const run_bed_telling_stub[];

/* Two short requests under the name "w". */
#define RUN_BED_SHORT_LOAD \
	"[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 2, " \
	"\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 6}}]"

/* `run` with --json and one more argument (or NULL); returns the exit code, the document in *out when there is one. */
int run_bed_run(const struct run_bed *space, const char *extra, struct json **out, struct text *errors);

/* The same; fails the test unless the exit code is 0. */
void run_bed_run_well(const struct run_bed *space, const char *extra, struct json **out, struct text *errors);

/* The verdict about knob (and value, unless NULL) in such a document; NULL when there is none. */
const struct json *run_bed_row(const struct json *document, const char *knob, const char *value);

/* Fails the test unless that verdict is there, and has this reason (unless NULL). */
void run_bed_expect(const struct json *document, const char *knob, const char *value, const char *verdict, const char *reason);

/* What the store holds of the only experiment; NULL when it is not there yet. Caller frees. */
struct json *run_bed_show(const struct run_bed *space);

/* Appends every launch of the experiment as "block.arm.attempt " in the order of saving. */
void run_bed_list_launches(const struct run_bed *space, struct text *out);

int run_bed_count_of(const struct text *text, const char *needle);

/* Stub servers whose command line holds the folder. */
int run_bed_count_stubs(const char *folder);

#endif
