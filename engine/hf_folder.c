/* Reads JSON files of a folder. */
#include "engine/hf_folder.h"

#include "base/file.h"
#include "base/text.h"

enum status hf_folder_json(
	const char *folder, const char *name, size_t bytes_max, bool required, struct json **out, struct err *err)
{
	struct text path = {0}, content = {0};
	enum status status = STATUS_OK;
	*out = NULL;
	text_printf(&path, "%s/%s", folder, name);
	if (required || file_exists(text_str(&path)))
		status = file_read(text_str(&path), bytes_max, &content, err);
	if (status == STATUS_OK && content.data)
		status = json_parse(text_str(&content), content.len, text_str(&path), out, err);
	else if (status == STATUS_OK && file_exists(text_str(&path)))
		status = err_set(err, STATUS_INPUT, "%s is empty", text_str(&path));
	text_release(&content);
	text_release(&path);
	return status;
}
