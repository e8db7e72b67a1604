/* Inside the template interpreter: what filters and methods do to strings. Characters are code points, as in Python; an invalid
 * byte is a character of its own. Strings that come out may be parts of those that went in. */
#ifndef ENGINE_JINJA_TEXT_H
#define ENGINE_JINJA_TEXT_H

#include "engine/jinja_node.h"

/* Without white space, or the characters of the string set, at its beginning and its end. */
struct value jinja_strip(struct value string, struct value set, bool left, bool right);

/* The parts between separators, at most `most` cuts (negative: any number). A separator that is no string: runs of white space. */
enum status jinja_split(struct rendering *r, struct value string, struct value separator, int64_t most, struct value *out);

/* At most `most` of them are replaced (negative: all). An empty string is found before every character and at the end. */
enum status jinja_replace(
	struct rendering *r, struct value string, struct value from, struct value to, int64_t most, struct value *out);

/* By Unicode's full case mappings, as Python does; see normalise_append_case. */
enum jinja_case {
	CASE_UPPER,
	CASE_LOWER,
	CASE_CAPITALIZE,
	CASE_TITLE, /* large after what has no case: the method */
	CASE_WORDS /* large after white space, '-' and opening brackets: the filter */
};
struct value jinja_change_case(struct arena *arena, struct value string, enum jinja_case to);

/* Lines, with or without their ends. */
enum status jinja_split_lines(struct rendering *r, struct value string, bool with_ends, struct value *out);

/* Lines after the first (all with first) are indented by width spaces, empty ones only with blank. */
enum status jinja_indent(struct rendering *r, struct value string, int64_t width, bool first, bool blank, struct value *out);

/* Items of a list as text, with separator between; lists and dicts are refused. */
enum status jinja_join(struct rendering *r, struct value list, struct value separator, struct value *out);

/* What Python's int and float read of a text: digits of any script as those of ASCII, white space outside ASCII as blanks. */
struct value jinja_plain_number(struct arena *arena, struct value string);

int64_t jinja_characters(struct value string);

/* Characters begin, begin + step, … before end (after it, where step is negative); each within -1 to the number of characters. */
struct value jinja_pick(struct arena *arena, struct value string, int64_t begin, int64_t end, int64_t step);

#endif
