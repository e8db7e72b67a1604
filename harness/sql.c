/* The only file that includes SQLite. See sql.h. */
#include "harness/sql.h"

#include <errno.h>
#include <math.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

struct sql {
	sqlite3 *handle;
	int depth; /* of transactions */
};

struct sql_statement {
	struct sql *sql;
	sqlite3_stmt *handle;
	int bound; /* parameters bound so far */
};

/* What a failure means to whoever named the file; NULL: only SQLite's own words tell. */
static const char *meaning_of(int code)
{
	static const struct {
		int code;
		const char *meaning;
	} meanings[] = {
		{SQLITE_NOTADB, "the file is no database"},
		{SQLITE_CORRUPT, "the database is damaged"},
		{SQLITE_READONLY, "the database cannot be written: it, or its folder, may only be read"},
		{SQLITE_BUSY, "the database is locked: another program holds it"},
		{SQLITE_FULL, "the disk is full"},
	};
	for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
		if (meanings[i].code == code)
			return meanings[i].meaning;
	return NULL;
}

static enum status fail(struct sql *sql, struct err *err)
{
	int code = sqlite3_errcode(sql->handle) & 0xff; /* the rest says where it happened */
	bool refused = code == SQLITE_CONSTRAINT || code == SQLITE_MISMATCH || code == SQLITE_TOOBIG || code == SQLITE_NOTADB;
	enum status status = refused ? STATUS_INPUT : STATUS_UNAVAILABLE;
	if (meaning_of(code))
		err_set(err, status, "%s", meaning_of(code));
	else
		err_set(err, status, "database: %s", sqlite3_errmsg(sql->handle));
	return status;
}

/* Why SQLite cannot open a file, which its own words do not tell. */
static enum status fail_to_open(struct sql *sql, const char *path, struct err *err)
{
	int code = sqlite3_errcode(sql->handle) & 0xff, errnum = sqlite3_system_errno(sql->handle);
	if (code != SQLITE_CANTOPEN)
		return fail(sql, err);
	if (file_is_folder(path))
		return err_set(err, STATUS_INPUT, "it is a folder, not a database");
	if (errnum == ENOENT || errnum == ENOTDIR)
		return err_set(err, STATUS_NOT_FOUND, "there is no such folder to make a database in");
	return err_set_errno(err, STATUS_UNAVAILABLE, errnum ? errnum : EACCES, "the database cannot be opened");
}

enum status sql_open(const char *path, int busy_ms, struct sql **out, struct err *err)
{
	struct sql *sql = mem_calloc(1, sizeof *sql);
	*out = NULL;
	enum status status = STATUS_OK;
	if (!*path) { /* to SQLite a database that is thrown away at the end */
		status = err_set(err, STATUS_INPUT, "a database needs a name");
	} else if (sqlite3_open_v2(path, &sql->handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) != SQLITE_OK) {
		status = fail_to_open(sql, path, err);
	} else if (sqlite3_db_readonly(sql->handle, "main") == 1) {
		status = err_set(err, STATUS_UNAVAILABLE, "%s", meaning_of(SQLITE_READONLY));
	} else {
		sqlite3_busy_timeout(sql->handle, busy_ms);
		status = sql_exec(sql, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;", err);
		if (status && (sqlite3_errcode(sql->handle) & 0xff) == SQLITE_CANTOPEN) { /* its log or index */
			err_clear(err);
			status = err_set(err, STATUS_UNAVAILABLE, "%s", meaning_of(SQLITE_READONLY));
		}
	}
	if (status) {
		sql_close(sql);
		return err_add(err, "'%s'", path);
	}
	*out = sql;
	return STATUS_OK;
}

/* Opens a name (a path, or a URI), and reads the first page: opening alone touches nothing. */
static int try_to_read(struct sql *sql, const char *name, int flags, int busy_ms)
{
	int code = sqlite3_open_v2(name, &sql->handle, SQLITE_OPEN_READONLY | flags, NULL);
	if (code != SQLITE_OK)
		return code;
	sqlite3_busy_timeout(sql->handle, busy_ms);
	return sqlite3_exec(sql->handle, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL) & 0xff;
}

/* "file:PATH?immutable=1", the path escaped (RFC 3986). More than one slash in front would name a host. */
static void immutable_uri(const char *path, struct text *out)
{
	size_t slashes = strspn(path, "/");
	text_append_str(out, "file:");
	for (path += slashes > 1 ? slashes - 1 : 0; *path; path++)
		if (strchr("%?#", *path))
			text_printf(out, "%%%02X", (unsigned char)*path);
		else
			text_append_char(out, *path);
	text_append_str(out, "?immutable=1");
}

/* A file that cannot be looked at counts as one with bytes: what it holds may not be left out. */
static bool has_bytes(const char *path, const char *ending)
{
	struct stat info;
	struct text name = {0};
	text_printf(&name, "%s%s", path, ending);
	bool has = stat(text_str(&name), &info) == 0 ? info.st_size > 0 : errno != ENOENT;
	text_release(&name);
	return has;
}

enum status sql_open_to_read(const char *path, int busy_ms, struct sql **out, struct err *err)
{
	struct sql *sql = mem_calloc(1, sizeof *sql);
	struct text uri = {0};
	enum status status = STATUS_OK;
	*out = NULL;
	int code = try_to_read(sql, path, 0, busy_ms);
	bool wants_files = code == SQLITE_CANTOPEN || code == SQLITE_READONLY; /* the log's, which cannot be made here */
	const char *log = has_bytes(path, "-wal") ? "-wal" : has_bytes(path, "-journal") ? "-journal" : NULL;
	if (wants_files && !file_is_folder(path) && log) {
		status = err_set(err, STATUS_UNAVAILABLE,
			"its newest entries are in '%s%s', which can only be read where files can be made beside it", path, log);
	} else if (wants_files && has_bytes(path, "")) {
		/* Without a log it cannot be in use by a writer: there would be one. */
		sqlite3_close(sql->handle);
		immutable_uri(path, &uri);
		code = try_to_read(sql, text_str(&uri), SQLITE_OPEN_URI, busy_ms);
	}
	if (!status && code != SQLITE_OK)
		status = fail_to_open(sql, path, err);
	text_release(&uri);
	if (status) {
		sql_close(sql);
		return err_add(err, "'%s'", path);
	}
	*out = sql;
	return STATUS_OK;
}

void sql_close(struct sql *sql)
{
	if (!sql)
		return;
	sqlite3_close(sql->handle);
	mem_free(sql);
}

enum status sql_exec(struct sql *sql, const char *text, struct err *err)
{
	return sqlite3_exec(sql->handle, text, NULL, NULL, NULL) == SQLITE_OK ? STATUS_OK : fail(sql, err);
}

enum status sql_begin(struct sql *sql, struct err *err)
{
	enum status status = sql_exec(sql, sql->depth ? "SAVEPOINT part" : "BEGIN IMMEDIATE", err);
	sql->depth += !status;
	return status;
}

enum status sql_begin_to_read(struct sql *sql, struct err *err)
{
	ASSERT(sql->depth == 0);
	enum status status = sql_exec(sql, "BEGIN", err);
	sql->depth += !status;
	return status;
}

/* The innermost transaction. */
static enum status commit(struct sql *sql, struct err *err)
{
	return sql_exec(sql, sql->depth > 1 ? "RELEASE part" : "COMMIT", err);
}

static void roll_back(struct sql *sql)
{
	sqlite3_exec(sql->handle, sql->depth > 1 ? "ROLLBACK TO part; RELEASE part" : "ROLLBACK", NULL, NULL, NULL);
}

enum status sql_end(struct sql *sql, enum status status, struct err *err)
{
	ASSERT(sql->depth > 0);
	if (!status)
		status = commit(sql, err);
	if (status)
		roll_back(sql);
	sql->depth--;
	return status;
}

enum status sql_prepare(struct sql *sql, const char *text, struct sql_statement **out, struct err *err)
{
	struct sql_statement *statement = mem_calloc(1, sizeof *statement);
	statement->sql = sql;
	*out = NULL;
	if (sqlite3_prepare_v2(sql->handle, text, -1, &statement->handle, NULL) != SQLITE_OK) {
		mem_free(statement);
		return fail(sql, err);
	}
	*out = statement;
	return STATUS_OK;
}

void sql_finish(struct sql_statement *statement)
{
	if (!statement)
		return;
	sqlite3_finalize(statement->handle);
	mem_free(statement);
}

/* Binding can only fail for a parameter that the statement lacks, which is our own bug, or for want of memory. */
static void bound(struct sql_statement *statement, int code)
{
	ASSERT(code == SQLITE_OK);
	(void)statement;
}

void sql_bind_int(struct sql_statement *statement, int64_t value)
{
	bound(statement, sqlite3_bind_int64(statement->handle, ++statement->bound, value));
}

void sql_bind_real(struct sql_statement *statement, double value)
{
	statement->bound++;
	if (isfinite(value))
		bound(statement, sqlite3_bind_double(statement->handle, statement->bound, value));
	else
		bound(statement, sqlite3_bind_null(statement->handle, statement->bound));
}

static void bind_bytes(struct sql_statement *statement, const char *bytes, size_t len)
{
	bound(statement, sqlite3_bind_text64(statement->handle, ++statement->bound, bytes, len, SQLITE_TRANSIENT, SQLITE_UTF8));
}

void sql_bind_text(struct sql_statement *statement, const char *value)
{
	if (value)
		bind_bytes(statement, value, strlen(value));
	else
		bound(statement, sqlite3_bind_null(statement->handle, ++statement->bound));
}

void sql_bind_json(struct sql_statement *statement, const struct json *value)
{
	struct text text = {0};
	switch (json_kind_of(value)) {
	case JSON_KIND_NULL:
		sql_bind_text(statement, NULL);
		break;
	case JSON_KIND_BOOL:
		sql_bind_int(statement, json_bool(value, false));
		break;
	case JSON_KIND_INTEGER:
		sql_bind_int(statement, json_int(value, 0));
		break;
	case JSON_KIND_REAL:
		sql_bind_real(statement, json_number(value, NAN));
		break;
	case JSON_KIND_STRING:
		bind_bytes(statement, json_text(value), json_text_len(value));
		break;
	case JSON_KIND_ARRAY:
	case JSON_KIND_OBJECT:
		json_write(value, JSON_STYLE_COMPACT, &text);
		bind_bytes(statement, text_str(&text), text.len);
		break;
	}
	text_release(&text);
}

enum status sql_step(struct sql_statement *statement, bool *row, struct err *err)
{
	int code = sqlite3_step(statement->handle);
	*row = code == SQLITE_ROW;
	if (*row)
		return STATUS_OK;
	enum status status = code == SQLITE_DONE ? STATUS_OK : fail(statement->sql, err);
	sqlite3_reset(statement->handle);
	statement->bound = 0;
	return status;
}

enum status sql_run(struct sql_statement *statement, struct err *err)
{
	bool row = true;
	enum status status = STATUS_OK;
	while (row && !status)
		status = sql_step(statement, &row, err);
	return status;
}

int64_t sql_int(struct sql_statement *statement, int column)
{
	return sqlite3_column_int64(statement->handle, column);
}

double sql_real(struct sql_statement *statement, int column)
{
	return sql_is_null(statement, column) ? NAN : sqlite3_column_double(statement->handle, column);
}

const char *sql_text(struct sql_statement *statement, int column)
{
	return (const char *)sqlite3_column_text(statement->handle, column);
}

bool sql_is_null(struct sql_statement *statement, int column)
{
	return sqlite3_column_type(statement->handle, column) == SQLITE_NULL;
}

static bool is_listed(const char *name, const char *const *names)
{
	for (; names && *names; names++)
		if (text_equal(name, *names))
			return true;
	return false;
}

static struct json *column_json(struct sql_statement *statement, int column, bool parse)
{
	const char *text;
	size_t len;
	struct json *value = NULL;
	switch (sqlite3_column_type(statement->handle, column)) {
	case SQLITE_INTEGER:
		return json_new_integer(sqlite3_column_int64(statement->handle, column));
	case SQLITE_FLOAT:
		return json_new_number(sqlite3_column_double(statement->handle, column));
	case SQLITE_NULL:
		return json_new_null();
	default:
		text = sql_text(statement, column);
		len = (size_t)sqlite3_column_bytes(statement->handle, column);
		if (parse && json_parse(text, len, "column", &value, NULL) == STATUS_OK)
			return value;
		return json_new_string_len(text, len);
	}
}

struct json *sql_row(struct sql_statement *statement, const char *const *json_columns)
{
	struct json *row = json_new_object();
	for (int i = 0; i < sqlite3_column_count(statement->handle); i++) {
		const char *name = sqlite3_column_name(statement->handle, i);
		json_set(row, name, column_json(statement, i, is_listed(name, json_columns)));
	}
	return row;
}

enum status sql_rows(struct sql_statement *statement, const char *const *json_columns, struct json **out, struct err *err)
{
	struct json *rows = json_new_array();
	bool row = true;
	enum status status = STATUS_OK;
	while (row && !status) {
		status = sql_step(statement, &row, err);
		if (row && !status)
			json_append(rows, sql_row(statement, json_columns));
	}
	if (status) {
		json_free(rows);
		rows = NULL;
	}
	*out = rows;
	return status;
}

int64_t sql_last_id(struct sql *sql)
{
	return sqlite3_last_insert_rowid(sql->handle);
}

enum status sql_insert(
	struct sql *sql, const char *table, const char *const *columns, const struct json *object, int64_t *id, struct err *err)
{
	struct text text = {0};
	struct sql_statement *statement = NULL;
	text_printf(&text, "INSERT INTO %s (", table);
	for (size_t i = 0; columns[i]; i++)
		text_printf(&text, "%s%s", i ? ", " : "", columns[i]);
	text_append_str(&text, ") VALUES (");
	for (size_t i = 0; columns[i]; i++)
		text_append_str(&text, i ? ", ?" : "?");
	text_append_str(&text, ")");
	enum status status = sql_prepare(sql, text_str(&text), &statement, err);
	for (size_t i = 0; columns[i] && !status; i++)
		sql_bind_json(statement, json_get(object, columns[i]));
	if (!status)
		status = sql_run(statement, err);
	if (!status && id)
		*id = sql_last_id(sql);
	sql_finish(statement);
	text_release(&text);
	return status;
}
