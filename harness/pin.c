/* Pinning for the time of a launch. See pin.h. */
#include "harness/pin.h"

#include <string.h>

static enum status check_one(const struct cpu_list *wanted, const struct cpu_list *allowed, const char *whose, struct err *err)
{
	int missing = cpu_list_missing(wanted, allowed);
	if (missing < 0)
		return STATUS_OK;
	struct text have = {0};
	cpu_list_text(allowed, &have);
	err_set(err, STATUS_INPUT, "pin.%s: CPU %d cannot be used here; there are %s", whose, missing, text_str(&have));
	text_release(&have);
	return STATUS_INPUT;
}

enum status pin_check(const struct experiment *experiment, struct err *err)
{
	struct cpu_list allowed;
	if (!experiment->pin.client_text && !experiment->pin.engine_text)
		return STATUS_OK;
	enum status status = cpu_list_allowed(0, &allowed, err);
	if (!status)
		status = check_one(&experiment->pin.client, &allowed, "client", err);
	if (!status)
		status = check_one(&experiment->pin.engine, &allowed, "engine", err);
	return status;
}

enum status pin_begin(const struct experiment *experiment, struct pin_session *session, struct err *err)
{
	const struct pin *pin = &experiment->pin;
	*session = (struct pin_session){.pinned = pin->client_text || pin->engine_text};
	if (!session->pinned)
		return STATUS_OK;
	enum status status = cpu_list_allowed(0, &session->before, err);
	session->engine = pin->engine_text ? pin->engine : session->before;
	int errnum = !status && pin->client_text ? cpu_list_apply(&pin->client) : 0;
	return errnum ? err_set_errno(err, STATUS_INPUT, errnum, "pin.client: '%s'", pin->client_text) : status;
}

void pin_end(const struct pin_session *session)
{
	if (session->pinned)
		cpu_list_apply(&session->before);
}

static void set_allowed(struct json *object, const char *name, pid_t thread)
{
	struct cpu_list allowed;
	struct text text = {0};
	if (cpu_list_allowed(thread, &allowed, NULL) != STATUS_OK)
		return;
	cpu_list_text(&allowed, &text);
	json_set(object, name, json_new_string(text_str(&text)));
	text_release(&text);
}

struct json *pin_record(const struct pin_session *session, pid_t engine)
{
	if (!session->pinned)
		return NULL;
	struct json *object = json_new_object();
	set_allowed(object, "client", 0);
	if (engine > 0)
		set_allowed(object, "engine", engine);
	return object;
}
