/* What the parts of the experiment parser share. Private to experiment*.c. */
#ifndef HARNESS_EXPERIMENT_INTERNAL_H
#define HARNESS_EXPERIMENT_INTERNAL_H

#include "harness/experiment_fields.h"

/* Reads "engine", or the alternatives under "engines". */
void experiment_read_engines(struct experiment *experiment, const struct place *root);

/* Complains unless the engine can be given a value of the knob. */
void experiment_check_switch(const struct place *place, const struct engine_spec *engine, const char *knob);

/* Complains when knob chooses the engine and value is not the name of one. */
void experiment_check_engine_name(const struct experiment *experiment, const struct place *value, const char *knob);

/* Gives every arm its engine and the settings of that engine alone, and makes the baseline's the experiment's. */
void experiment_assign_engines(struct experiment *experiment, const struct place *root);

/* How rows and titles show a value; in the arena. */
const char *experiment_value_text(struct reader *reader, const struct json *value);

/* Expands "baseline" and "matrix" into experiment->arms. Needs experiment->engine. */
void experiment_read_arms(struct experiment *experiment, const struct place *root);

/* Complains about malformed constraints, and about one that the baseline breaks. Needs the baseline's arm. */
void experiment_read_constraints(const struct experiment *experiment, const struct place *constraints);

/* Whether an arm keeps a constraint that experiment_read_constraints accepted. */
bool experiment_keeps_constraint(const struct arm *arm, const struct json *constraint);

/* Reads "monotone_oom" of the matrix. Needs the baseline's arm. */
void experiment_read_monotone(struct experiment *experiment, const struct place *matrix);

/* Drops the candidates that --only does not name. */
void experiment_keep_only(struct experiment *experiment, struct reader *reader, const char *only);

/* True when every knob of the object assignment has that value in the arm. Knobs must exist. */
bool experiment_arm_matches(const struct arm *arm, const struct json *assignment);

/* Complains about the keys of a partial assignment that are no knobs of this experiment; skip may be NULL. */
void experiment_check_assignment(const struct experiment *experiment, const struct place *assignment, const char *skip);

/* Reads "dataset" and "sampling" of a workload: prompts or how they are made, lengths, endpoint. recorded: the workload's row in a
 * record, whose prompts stand for those of files; NULL: files are read, relative to the source's folder. */
void experiment_read_dataset(struct workload *workload, const struct json *recorded, const struct place *place);

/* Reads "workloads" (one default chat workload when absent). Needs the arms and the rules. */
void experiment_read_workloads(struct experiment *experiment, const struct place *root);

/* Shortens the loads and the protocol as --quick promises. Call before hashes are taken. */
void experiment_make_quick(struct experiment *experiment);

/* Fills workload->hash of every workload. */
void experiment_hash_workloads(struct experiment *experiment);

/* SHA-256 of the canonical form. */
void experiment_hash_json(const struct json *document, char out[65]);

/* Applies "key.path=value" to the document; value is JSON where it parses, else a string. Complaints begin with "--set". */
enum status experiment_set(struct json **document, const char *setting, struct err *err);

#endif
