/* Unicode normalisation form C: decompose each code point, put combining marks in canonical order, compose. The library's
 * own ordering is quadratic in a run of marks, which a request could use to stall the server, so ordering is done here. */
#include "engine/normalise.h"

#include <stdint.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"

#define DECOMPOSED_MAX 32 /* a single code point decomposes into at most 4 (UAX 15); the rest is slack */

/* Code points below U+0300 neither combine nor decompose under form C. */
bool normalise_is_nfc_quick(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] >= 0xcc) /* first byte of U+0300 */
			return false;
	return true;
}

struct points {
	utf8proc_int32_t *data;
	size_t count, capacity;
};

static void decompose(const char *text, size_t len, struct points *points)
{
	for (size_t pos = 0; pos < len;) {
		uint32_t code_point = 0;
		int bytes = utf8_decode(text + pos, len - pos, &code_point);
		int boundclass = 0;

		ASSERT(bytes > 0);
		pos += (size_t)bytes;
		if (points->capacity - points->count < DECOMPOSED_MAX) {
			points->capacity = points->capacity * 2 + len + DECOMPOSED_MAX;
			points->data = mem_realloc(points->data, points->capacity, sizeof(*points->data));
		}
		points->count += (size_t)utf8proc_decompose_char((utf8proc_int32_t)code_point, points->data + points->count,
			DECOMPOSED_MAX, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundclass);
	}
}

/* A mark with its class and place in the run: sorting by both keeps equal classes in their order. */
struct mark {
	utf8proc_int32_t code_point;
	uint32_t place;
	int class;
};

static int compare_marks(const void *a, const void *b)
{
	const struct mark *left = a, *right = b;

	if (left->class != right->class)
		return left->class - right->class;
	return (left->place > right->place) - (left->place < right->place);
}

static int class_of(utf8proc_int32_t code_point)
{
	return utf8proc_get_property(code_point)->combining_class;
}

static void order_run(utf8proc_int32_t *run, size_t count)
{
	struct mark *marks = mem_calloc(count, sizeof(*marks));

	for (size_t i = 0; i < count; i++)
		marks[i] = (struct mark){run[i], (uint32_t)i, class_of(run[i])};
	qsort(marks, count, sizeof(*marks), compare_marks);
	for (size_t i = 0; i < count; i++)
		run[i] = marks[i].code_point;
	mem_free(marks);
}

static void order_marks(struct points *points)
{
	for (size_t i = 0; i < points->count;) {
		size_t end = i;

		while (end < points->count && class_of(points->data[end]) != 0)
			end++;
		if (end - i > 1)
			order_run(points->data + i, end - i);
		i = end == i ? end + 1 : end;
	}
}

void normalise_nfc(const char *text, size_t len, struct text *out)
{
	struct points points = {0};
	utf8proc_ssize_t composed;

	if (len == 0)
		return;
	decompose(text, len, &points);
	order_marks(&points);
	composed = utf8proc_normalize_utf32(points.data, (utf8proc_ssize_t)points.count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
	ASSERT(composed >= 0);
	for (utf8proc_ssize_t i = 0; i < composed; i++) {
		char bytes[4];

		text_append(out, bytes, (size_t)utf8_encode((uint32_t)points.data[i], bytes));
	}
	mem_free(points.data);
}

/* --- case ---------------------------------------------------------------------------------------------------------- */

#define SHARP_S 0xdf
#define DOTTED_I 0x130 /* I with a dot above */
#define IOTA_SUBSCRIPT 0x345

static void append_point(utf8proc_int32_t point, struct text *out)
{
	char bytes[4];

	text_append(out, bytes, (size_t)utf8_encode((uint32_t)point, bytes));
}

bool normalise_is_cased(uint32_t c)
{
	utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);

	return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT ||
		utf8proc_toupper((utf8proc_int32_t)c) != utf8proc_tolower((utf8proc_int32_t)c);
}

/* Letters without a large form of their own, ligatures and letters with marks, have one made of their parts: all of these large,
 * for a title the first letter. An iota below comes behind the rest, which is composed again. */
static void append_parts(utf8proc_int32_t point, bool title, struct text *out)
{
	utf8proc_int32_t parts[DECOMPOSED_MAX], last = 0;
	bool is_large = false;
	int boundary = 0;
	utf8proc_ssize_t count =
		utf8proc_decompose_char(point, parts, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, &boundary);

	if (count < 2 || count > DECOMPOSED_MAX) {
		append_point(point, out);
		return;
	}
	bool has_iota = parts[count - 1] == IOTA_SUBSCRIPT;
	for (utf8proc_ssize_t i = 0; i < count && !(title && is_large); i++) {
		is_large = normalise_is_cased((uint32_t)parts[i]);
		parts[i] = utf8proc_toupper(parts[i]);
	}
	if (has_iota) {
		last = parts[count - 1];
		count = utf8proc_normalize_utf32(parts, count - 1, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
	}
	for (utf8proc_ssize_t i = 0; i < count; i++)
		append_point(parts[i], out);
	if (has_iota)
		append_point(last, out);
}

/* Small letters, and what is large only at its beginning, without a form of their own. */
static bool is_made_of_parts(utf8proc_int32_t point, utf8proc_int32_t simple, enum normalise_case to)
{
	utf8proc_category_t category = utf8proc_category(point);

	if (to == NORMALISE_UPPER && utf8proc_category(simple) == UTF8PROC_CATEGORY_LT)
		return true;
	return to != NORMALISE_LOWER && simple == point && category == UTF8PROC_CATEGORY_LL;
}

void normalise_append_case(uint32_t code_point, enum normalise_case to, struct text *out)
{
	utf8proc_int32_t point = (utf8proc_int32_t)code_point;
	utf8proc_int32_t simple = to == NORMALISE_LOWER ? utf8proc_tolower(point)
		: to == NORMALISE_UPPER                 ? utf8proc_toupper(point)
							: utf8proc_totitle(point);

	if (point == SHARP_S && to != NORMALISE_LOWER)
		text_append_str(out, to == NORMALISE_UPPER ? "SS" : "Ss");
	else if (point == DOTTED_I && to == NORMALISE_LOWER)
		text_append_str(out, "i\xcc\x87");
	else if (is_made_of_parts(point, simple, to))
		append_parts(point, to == NORMALISE_TITLE, out);
	else
		append_point(simple, out);
}

/* --- classes -------------------------------------------------------------------------------------------------------- */

bool normalise_is_space(uint32_t c)
{
	return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
		c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Symbols that Unicode counts as letters all the same: circled and squared ones. */
static bool is_letter_symbol(uint32_t c)
{
	return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
		(c >= 0x1f170 && c <= 0x1f189);
}

static bool is_digit(uint32_t c)
{
	return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

/* Unicode promises that decimal digits come in runs of ten, in the order of their values (The Unicode Standard, 4.6); where runs
 * follow one another, as the mathematical ones do, counting goes on. */
int normalise_digit(uint32_t c)
{
	uint32_t first = c;

	if (!is_digit(c))
		return -1;
	while (first > 0 && is_digit(first - 1))
		first--;
	return (int)((c - first) % 10);
}

bool normalise_is_word(uint32_t c)
{
	switch (utf8proc_category((utf8proc_int32_t)c)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return true;
	default:
		return c == 0x200c || c == 0x200d || is_letter_symbol(c);
	}
}
