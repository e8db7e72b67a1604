/* Stop strings across token boundaries. The held text is always shorter than the longest stop string, so each search is
 * over that and the new piece only. */
#include "engine/api_stop.h"

#include <string.h>

/* Where the stop string begins that is complete first, the longest of several that end together; text->len when none is. */
static size_t find_match(const struct stop_filter *filter, const struct text *text)
{
	size_t first_end = text->len + 1;
	size_t begin = text->len;

	for (size_t i = 0; i < filter->count; i++) {
		const struct stop_string *stop = &filter->strings[i];
		const char *at = memmem(text->data, text->len, stop->bytes, stop->len);
		if (!at)
			continue;
		size_t at_begin = (size_t)(at - text->data);
		size_t at_end = at_begin + stop->len;
		if (at_end < first_end || (at_end == first_end && at_begin < begin)) {
			first_end = at_end;
			begin = at_begin;
		}
	}
	return begin;
}

/* Where the longest end of text begins that is a true beginning of some stop string, or text->len. */
static size_t find_partial(const struct stop_filter *filter, const struct text *text)
{
	size_t longest = 0;

	for (size_t i = 0; i < filter->count; i++) {
		const struct stop_string *stop = &filter->strings[i];
		size_t len = stop->len - 1 < text->len ? stop->len - 1 : text->len;
		for (; len > longest; len--) {
			if (memcmp(text->data + text->len - len, stop->bytes, len) == 0)
				longest = len;
		}
	}
	return text->len - longest;
}

bool stop_filter_push(struct stop_filter *filter, const char *bytes, size_t len, struct text *out)
{
	if (filter->matched)
		return true;
	if (!filter->count) {
		text_append(out, bytes, len);
		return false;
	}
	if (!len)
		return false;
	text_append(&filter->held, bytes, len);
	size_t certain = find_match(filter, &filter->held);
	filter->matched = certain < filter->held.len;
	if (!filter->matched)
		certain = find_partial(filter, &filter->held);
	text_append(out, filter->held.data, certain);
	if (filter->matched) {
		text_clear(&filter->held);
	} else {
		memmove(filter->held.data, filter->held.data + certain, filter->held.len - certain);
		text_truncate(&filter->held, filter->held.len - certain);
	}
	return filter->matched;
}

void stop_filter_finish(struct stop_filter *filter, struct text *out)
{
	text_append(out, text_str(&filter->held), filter->held.len);
	text_clear(&filter->held);
}

void stop_filter_release(struct stop_filter *filter)
{
	text_release(&filter->held);
}
