/* Columns, signs and colours. See report_format.h. */
#include "harness/report_format.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "harness/metric.h"

/* Ranges of East Asian wide and emoji characters (Unicode 15, EastAsianWidth.txt, joined where the gaps are unassigned). */
static const struct {
	uint32_t first, last;
} wide[] = {
	{0x1100, 0x115F},
	{0x2E80, 0x303E},
	{0x3041, 0xA4CF},
	{0xA960, 0xA97F},
	{0xAC00, 0xD7A3},
	{0xF900, 0xFAFF},
	{0xFE30, 0xFE6F},
	{0xFF00, 0xFF60},
	{0xFFE0, 0xFFE6},
	{0x1F300, 0x1F64F},
	{0x1F680, 0x1F6FF},
	{0x1F900, 0x1F9FF},
	{0x20000, 0x3FFFD},
};

static size_t code_point_columns(uint32_t c)
{
	bool combining = (c >= 0x300 && c <= 0x36F) || (c >= 0x20D0 && c <= 0x20FF) || (c >= 0xFE00 && c <= 0xFE0F) || c == 0x200D;
	for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
		if (c >= wide[i].first && c <= wide[i].last)
			return 2;
	return combining ? 0 : 1;
}

/* Length in bytes of the first character, and its columns; a bad byte counts as one column. */
static size_t first_character(const char *text, size_t len, size_t *columns)
{
	uint32_t c = 0;
	int bytes = utf8_decode(text, len, &c);
	*columns = bytes > 0 ? code_point_columns(c) : 1;
	return bytes > 0 ? (size_t)bytes : 1;
}

size_t format_columns(const char *text)
{
	size_t len = strlen(text), total = 0, columns;
	while (len) {
		size_t bytes = first_character(text, len, &columns);
		total += columns;
		text += bytes;
		len -= bytes;
	}
	return total;
}

static void append_spaces(struct text *out, int count)
{
	for (int i = 0; i < count; i++)
		text_append_char(out, ' ');
}

void format_padded(struct text *out, const char *text, int columns)
{
	int missing = (columns < 0 ? -columns : columns) - (int)format_columns(text);
	if (columns < 0)
		append_spaces(out, missing);
	text_append_str(out, text);
	if (columns > 0)
		append_spaces(out, missing);
}

void format_clipped(struct text *out, const char *text, size_t columns)
{
	if (format_columns(text) <= columns) {
		text_append_str(out, text);
		return;
	}
	size_t len = strlen(text), used = 0, width;
	while (len) {
		size_t bytes = first_character(text, len, &width);
		if (used + width + 1 > columns)
			break;
		text_append(out, text, bytes);
		used += width;
		text += bytes;
		len -= bytes;
	}
	text_append_str(out, "…");
}

void format_signed(struct text *out, double value, int digits)
{
	double unit = pow(10, -digits);
	bool zero = fabs(value) < unit / 2; /* what is printed as 0.0 has no sign worth showing */
	text_printf(out, "%s%.*f", zero ? "±" : value < 0 ? "−" : "+", digits, zero ? 0.0 : fabs(value));
}

void format_seconds(struct text *out, double seconds)
{
	if (!(seconds >= 0))
		text_append_str(out, "?");
	else if (seconds < 10)
		text_printf(out, "%.1f s", seconds);
	else if (seconds < 100)
		text_printf(out, "%.0f s", seconds);
	else if (seconds < 100 * 60)
		text_printf(out, "%.0f min", seconds / 60);
	else
		text_printf(out, "%.1f h", seconds / 3600);
}

const char *format_verdict_colour(const char *verdict, struct report_style style)
{
	if (!style.colour)
		return "";
	if (text_equal(verdict, "helped"))
		return "\033[32m";
	if (text_equal(verdict, "hurt") || text_equal(verdict, "failed"))
		return "\033[31m";
	return text_equal(verdict, "void") ? "\033[33m" : "";
}

const char *format_dim(struct report_style style)
{
	return style.colour ? "\033[2m" : "";
}

const char *format_plain(struct report_style style)
{
	return style.colour ? "\033[0m" : "";
}

const char *format_unit(const char *metric)
{
	const struct metric_spec *spec = metric_by_name(metric);
	return spec ? spec->unit : "tok/s";
}
