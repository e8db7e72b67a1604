/* Percent-decoding of request targets. */
#include "base/uri.h"

#include <string.h>
#include <strings.h>

#include "base/utf8.h"

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20; /* lower case */
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that the escape at text stands for, or -1. */
static int escaped_byte(const char *text)
{
	int high = hex_digit(text[1]), low = high < 0 ? -1 : hex_digit(text[2]);

	return low < 0 ? -1 : high << 4 | low;
}

static bool refuse(const char **why, const char *reason)
{
	*why = reason;
	return false;
}

/* Where the path of a target begins: servers must take whole URLs, which are meant for proxies (RFC 9112, 3.2.2). */
static const char *path_of(const char *target)
{
	if (strncasecmp(target, "http://", 7) != 0)
		return target;
	const char *slash = strchr(target + 7, '/');

	return slash ? slash : "/";
}

bool uri_decode_path(const char *target, struct text *out, const char **why)
{
	const char *path = path_of(target);
	size_t begin = out->len;

	if (path[0] != '/')
		return refuse(why, "the path does not begin with '/'");
	while (*path) {
		int byte = *path == '%' ? escaped_byte(path) : (unsigned char)*path;
		if (byte < 0)
			return refuse(why, "a '%' in the path is not followed by two hexadecimal digits");
		if (byte < 0x20 || byte == 0x7f)
			return refuse(why, "a control character is in the path");
		if (*path == '%' && byte == '/')
			text_append_str(out, "%2F");
		else
			text_append_char(out, (char)byte);
		path += *path == '%' ? 3 : 1;
	}
	return utf8_is_valid(out->data + begin, out->len - begin) || refuse(why, "the path is not UTF-8");
}
