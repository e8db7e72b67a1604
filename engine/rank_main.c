/* Main loop of a child rank: attach to rank 0's region, load, connect, then one step per command until told to stop. */
#include "engine/commands.h"
#include "engine/rank.h"
#include "engine/ranks.h"

/* What a child holds; released in reverse at the end. */
struct child {
	struct rank_link *link;
	struct region region;
	struct source source;
	struct model_config config;
	struct rank *rank;
};

/* Rank 0 fills the region before its first command, so nothing is read from it earlier. */
static enum status await_command(struct child *child, uint32_t expected, struct err *err)
{
	uint32_t command;
	enum status status = rank_link_wait(child->link, &command, err);
	if (status != STATUS_OK)
		return status;
	if (command == RANKS_COMMAND_STOP)
		return err_set(err, STATUS_INTERRUPTED, "told to stop while starting");
	ASSERT(command == expected);
	return STATUS_OK;
}

static enum status load(struct child *child, struct err *err)
{
	region_bind(rank_link_shared(child->link), &child->region);
	const struct rank_setup *setup = &child->region.header->setup;
	struct rank_peers peers = {
		.rank = rank_link_rank(child->link),
		.sockets = rank_link_sockets(child->link),
		.abort_word = rank_link_abort_word(child->link),
	};
	enum status status = source_open(setup->model_path, &child->source, err);
	if (status == STATUS_OK)
		status = model_config_read(&child->source, &child->config, err);
	if (status == STATUS_OK)
		status = rank_create(&child->region, &child->source, &child->config, &peers, &child->rank, err);
	return status;
}

static enum status serve_steps(struct child *child, struct err *err)
{
	for (;;) {
		uint32_t command;
		enum status status = rank_link_wait(child->link, &command, err);
		if (status != STATUS_OK || command == RANKS_COMMAND_STOP)
			return status;
		ASSERT(command == RANKS_COMMAND_STEP);
		status = rank_step(child->rank, NULL, err);
		if (status != STATUS_OK)
			return status;
	}
}

static enum status run(struct child *child, struct err *err)
{
	enum status status = await_command(child, REGION_COMMAND_LOAD, err);
	if (status != STATUS_OK)
		return status;
	status = load(child, err);
	rank_link_report(child->link, status, err);
	if (status != STATUS_OK)
		return status;
	status = await_command(child, REGION_COMMAND_CONNECT, err);
	if (status == STATUS_OK)
		status = rank_connect(child->rank, err);
	if (status == STATUS_OK)
		status = serve_steps(child, err);
	if (status != STATUS_OK)
		rank_link_report(child->link, status, err); /* rank 0 quotes it when it sees this process end */
	return status;
}

enum status cmd_rank(int argc, char **argv, struct err *err)
{
	struct child child = {0};
	enum status status = rank_link_open(argc, argv, &child.link, err);
	if (status != STATUS_OK)
		return status;
	status = run(&child, err);
	rank_destroy(child.rank);
	source_close(&child.source);
	rank_link_close(child.link);
	return status;
}
