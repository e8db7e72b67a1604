/* Recognises chat templates of the ChatML family by what they do. There is no Jinja interpreter here: a template is cut into
 * literals, variables and statements, and accepted when these are, in order,
 *
 *   optionally  {% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
 *   optionally  {{ bos_token }}
 *   {% for message in messages %}
 *       optionally (here or before the loop)
 *       {% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system\nTEXT<|im_end|>\n{% endif %}
 *       <|im_start|>ROLE\nCONTENT<|im_end|>\n
 *   {% endfor %}
 *   {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}
 *
 * however they are spelled: text outside tags or string literals, any quotes, + or ~, ['role'] or .role, whitespace control. White
 * space follows Jinja with trim_blocks and lstrip_blocks, as transformers sets them. Anything else is refused, since a prompt
 * that is nearly right makes a model quietly worse. */
#ifndef ENGINE_CHAT_TEMPLATE_H
#define ENGINE_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

struct chat_template {
	bool adds_bos;
	bool has_default_system;
	struct text default_system; /* content of the message put first when the first message is not a system message */
	bool trims_content; /* content | trim: white space at both ends of a content is dropped */
};

/* Reads source[0..len). False, with a static text in *why, when the template is not one of the family. Release in any case. */
bool chat_template_parse(const char *source, size_t len, struct chat_template *out, const char **why);
void chat_template_release(struct chat_template *template);

#endif
