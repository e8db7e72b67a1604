/* Finds where a value stands in a JSON document that was already accepted by json_parse. */
#include <string.h>

#include "base/json.h"

/* A cursor over valid JSON: it needs no error handling, only bounds. */
struct cursor {
	const char *at, *end;
};

static void skip_space(struct cursor *c)
{
	while (c->at < c->end && strchr(" \t\r\n", *c->at))
		c->at++;
}

static void skip_string(struct cursor *c)
{
	c->at++;
	while (c->at < c->end && *c->at != '"')
		c->at += *c->at == '\\' ? 2 : 1;
	c->at++;
}

/* Moves past one value by counting brackets, so nesting costs no stack. */
static void skip_value(struct cursor *c)
{
	int depth = 0;
	while (c->at < c->end) {
		char ch = *c->at;
		if (ch == '"') {
			skip_string(c);
		} else if (ch == '{' || ch == '[') {
			depth++;
			c->at++;
			continue;
		} else if (ch == '}' || ch == ']') {
			if (depth == 0)
				return;
			depth--;
			c->at++;
		} else if (ch == ',' && depth == 0) {
			return;
		} else {
			c->at++;
			continue;
		}
		if (depth == 0)
			return;
	}
}

/* Moves from the opening bracket of a container to its member number index, or to the member called key. With key set,
 * *key_at is where its key string starts. Escapes inside keys are compared as they are written. */
static bool enter(struct cursor *c, const char *key, size_t key_len, size_t index, const char **key_at)
{
	c->at++;
	for (size_t i = 0; c->at < c->end; i++) {
		skip_space(c);
		if (c->at >= c->end || *c->at == '}' || *c->at == ']')
			return false;
		bool found = !key && i == index;
		if (key) {
			*key_at = c->at;
			skip_string(c);
			found = (size_t)(c->at - *key_at) == key_len + 2 && memcmp(*key_at + 1, key, key_len) == 0;
			skip_space(c);
			c->at++; /* the colon */
			skip_space(c);
		}
		if (found)
			return true;
		skip_value(c);
		skip_space(c);
		if (c->at < c->end && *c->at == ',')
			c->at++;
	}
	return false;
}

/* Takes one step of the path. A key runs up to the longest match among the object's members, since keys such as
 * "spec=ngram" or "a.b" may hold the path's own separators. */
static bool step(struct cursor *c, const char **path, const char **key_at)
{
	skip_space(c);
	if (**path == '[') {
		if (c->at >= c->end || *c->at != '[')
			return false;
		size_t index = 0;
		const char *p = *path + 1;
		for (; *p >= '0' && *p <= '9'; p++)
			index = index * 10 + (size_t)(*p - '0');
		*path = p + (*p == ']');
		*key_at = NULL;
		return enter(c, NULL, 0, index, key_at);
	}
	if (**path == '.')
		(*path)++;
	if (c->at >= c->end || *c->at != '{')
		return false;
	for (size_t len = strlen(*path); len > 0; len--) {
		char next = (*path)[len];
		if (next != '\0' && next != '.' && next != '[')
			continue;
		struct cursor attempt = *c;
		if (enter(&attempt, *path, len, 0, key_at)) {
			*c = attempt;
			*path += len;
			return true;
		}
	}
	return false;
}

bool json_locate(const char *bytes, size_t len, const char *path, bool of_key, int *line, int *column)
{
	struct cursor c = {bytes, bytes + len};
	const char *key_at = NULL;
	skip_space(&c);
	while (*path)
		if (!step(&c, &path, &key_at))
			return false;
	skip_space(&c);
	const char *place = of_key && key_at ? key_at : c.at;
	*line = 1;
	*column = 1;
	for (const char *p = bytes; p < place && p < c.end; p++) {
		(*column)++;
		if (*p == '\n') {
			(*line)++;
			*column = 1;
		}
	}
	return true;
}
