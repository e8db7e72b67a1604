/* Error text carried upwards by value. The failing line says what and which; callers add their noun; only main prints. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ERR_TEXT_BYTES_MAX 1024

/* Owned by the caller, usually on the stack: `struct err err = {0};`. Passing NULL where an err is taken is allowed. */
struct err {
	enum status status;
	char code[32]; /* stable machine-readable code such as "not_enough_memory"; empty when there is none */
	char text[ERR_TEXT_BYTES_MAX];
	char details[128]; /* JSON members for programs, such as "\"need_bytes\":123"; empty when there are none */
};

/* Records status and text, keeping the first error when one is already recorded. Returns the status recorded. */
enum status err_set(struct err *err, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* As err_set, with a stable code for programs. */
enum status err_set_code(struct err *err, enum status status, const char *code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* As err_set, and appends ": " and the text of errno value errnum. */
enum status err_set_errno(struct err *err, enum status status, int errnum, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Puts the caller's noun and ": " before the text. Returns the recorded status, for
 * `return err_add(err, "model '%s'", path);`. */
enum status err_add(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__
/* The analyser sees no bodies; without this it goes on after an error as if there had been none. */
static inline enum status err_recorded(enum status status)
{
	if (status == STATUS_OK)
		__builtin_unreachable();
	return status;
}
#define err_set(...) err_recorded(err_set(__VA_ARGS__))
#define err_set_code(...) err_recorded(err_set_code(__VA_ARGS__))
#define err_set_errno(...) err_recorded(err_set_errno(__VA_ARGS__))
#endif

/* Forgets the error. */
void err_clear(struct err *err);

/* Ends the process after printing file, line and condition. For our own bugs only; stays on in release. */
void assert_failed(const char *file, int line, const char *condition) __attribute__((noreturn));

#define ASSERT(condition) ((condition) ? (void)0 : assert_failed(__FILE__, __LINE__, #condition))

#ifdef __cplusplus
}
#endif
#endif
