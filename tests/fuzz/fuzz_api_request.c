/* Fuzzes the parser of completion and chat requests; what is accepted must be within the documented limits. */
#include <stddef.h>
#include <stdint.h>

#include "engine/api_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (int kind = API_COMPLETION; kind <= API_CHAT; kind++) {
		struct api_request request;
		struct api_error error = {0};
		struct text out = {0};
		enum status status = api_request_parse((enum api_kind)kind, (const char *)data, size, &request, &error);

		ASSERT((status == STATUS_OK) == (error.http_status == 0));
		if (status == STATUS_OK) {
			ASSERT(request.n >= 1 && request.n <= API_CHOICES_MAX && request.n_stops <= STOP_STRINGS_MAX);
			ASSERT(request.sampling.logprobs >= -1 && request.sampling.logprobs <= ENGINE_LOGPROBS_MAX);
			ASSERT(request.sampling.max_tokens >= 0 && request.sampling.temperature >= 0);
		} else {
			api_error_write(&error, &out);
		}
		text_release(&out);
		api_request_release(&request);
	}
	return 0;
}
