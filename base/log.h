/* Log lines on standard error: "time level area: text". Safe from any thread; each line is one write. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Set once in main before threads start. Lines below the level are dropped. Default LOG_INFO. */
void log_set_level(enum log_level level);

/* Text put before each line, such as "rank 1"; copied, at most 31 bytes. Set once in main. */
void log_set_prefix(const char *prefix);

void log_write(enum log_level level, const char *area, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define log_debug(area, ...) log_write(LOG_DEBUG, area, __VA_ARGS__)
#define log_info(area, ...) log_write(LOG_INFO, area, __VA_ARGS__)
#define log_warn(area, ...) log_write(LOG_WARN, area, __VA_ARGS__)
#define log_error(area, ...) log_write(LOG_ERROR, area, __VA_ARGS__)

#endif
