/* `verdict-engine serve`: the command line of the server. */
#include "engine/commands.h"

#include <string.h>

#include "base/options.h"
#include "engine/options.h"
#include "engine/serve.h"

#define OWN_OPTIONS 6
#define CONNECTIONS_MAX 65536
#define BODY_BYTES_MAX ((long long)1 << 30)

static const char help_head[] =
	"usage: verdict-engine serve --model PATH [options]\n"
	"Serves the model over HTTP, compatible with OpenAI's API: /v1/completions, /v1/chat/completions, /v1/models;\n"
	"also /tokenize, /detokenize, /health, /config, /metrics, /flush_cache.\n"
	"The launch nonce in the environment variable VERDICT_NONCE is echoed in /health, /config and X-Verdict-Nonce.\n"
	"SIGTERM ends it with exit code 0, SIGINT with 130; running requests are cancelled.\n\n";

static size_t fill_table(struct serve_options *o, bool *help, struct option *table)
{
	const struct option own[OWN_OPTIONS] = {
		{"host", OPTION_STRING, &o->host, 0, 0, "NAME", "Address to listen on (default 127.0.0.1: this machine only)."},
		{"port", OPTION_I64, &o->port, 0, 65535, "N",
			"Port to listen on; 0 takes a free one and prints it (default 8000)."},
		{"api-key", OPTION_STRING, &o->api_key, 0, 0, "KEY",
			"Ask for \"Authorization: Bearer KEY\" everywhere but at /health (default: nobody is asked)."},
		{"connections-max", OPTION_I64, &o->connections_max, 1, CONNECTIONS_MAX, "N",
			"Connections served at the same time; more are answered 503 (default 512)."},
		{"body-max", OPTION_I64, &o->body_bytes_max, 1024, (double)BODY_BYTES_MAX, "BYTES",
			"Largest request body; larger ones are answered 413 (default 4194304)."},
		{"help", OPTION_FLAG, help, 0, 0, NULL, "This text."},
	};
	memcpy(table, own, sizeof own);
	return engine_options_table(&o->engine, table, OWN_OPTIONS);
}

enum status cmd_serve(int argc, char **argv, const char *nonce, struct err *err)
{
	struct serve_options options;
	struct option table[OWN_OPTIONS + ENGINE_OPTIONS_COUNT_MAX];
	bool help = false;

	serve_options_init(&options);
	options.nonce = nonce;
	size_t count = fill_table(&options, &help, table);
	enum status status = options_parse(table, count, argc, argv, 1, NULL, 0, NULL, err);
	if (status == STATUS_OK && help)
		return command_print_help(help_head, table, count, err);
	if (status == STATUS_OK && options.api_key && !options.api_key[0])
		status = err_set_code(err, STATUS_INPUT, "bad_option", "--api-key: the key is empty");
	if (status == STATUS_OK)
		status = engine_options_check(&options.engine, err);
	return status == STATUS_OK ? serve_run(&options, err) : status;
}
