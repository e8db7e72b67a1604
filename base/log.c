/* Log lines on standard error, one write each so that lines of several processes do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define LOG_LINE_BYTES_MAX 4096

static enum log_level lowest = LOG_INFO; /* set in main before threads start */
static char line_prefix[32]; /* likewise */

void log_set_level(enum log_level level)
{
	lowest = level;
}

void log_set_prefix(const char *prefix)
{
	snprintf(line_prefix, sizeof line_prefix, "%s", prefix);
}

void log_write(enum log_level level, const char *area, const char *format, ...)
{
	static const char *const names[] = {"debug", "info", "warn", "error"};
	if (level < lowest)
		return;
	char line[LOG_LINE_BYTES_MAX], when[CLOCK_UTC_BYTES];
	clock_format_utc(when, clock_realtime_ns());
	int used = snprintf(line, sizeof line, "%s %s %s%s%s: ", when, names[level], line_prefix, line_prefix[0] ? " " : "", area);
	va_list args;
	va_start(args, format);
	int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
	va_end(args);
	size_t len = (size_t)used + (more > 0 ? (size_t)more : 0);
	if (len > sizeof line - 2)
		len = sizeof line - 2; /* long lines are cut; the newline is kept */
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, len) < 0)
		return; /* nowhere left to complain */
}
