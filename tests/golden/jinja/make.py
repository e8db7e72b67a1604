#!/usr/bin/env python3
"""Remakes rendered.json: run by hand, see README.md.
usage: make.py   (needs transformers)"""
import json, os
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.realpath(__file__))

TEMPLATES = {
    # Headers around trimmed contents; the system message is taken out first, tools are spoken of and never there.
    "headers": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message goes into its own place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only one call at a time") }}
        {%- endif %}
        {%- for key, value in message.tool_calls[0].function.arguments | items %}{{ key ~ value | tojson }}{% endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # Turns of user and assistant in order, a system message before the last user's.
    "inst": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- elif message == user_messages[-1] %}
            {{- "[INST] " ~ message["content"] ~ " [/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.get("tool_calls") is none %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- else %}
        {{- raise_exception("only user and assistant, but found " + message.role) }}
    {%- endif %}
{%- endfor %}
""",
    # A default system message; neighbouring answers of tools share a turn.
    "default_system": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # Thoughts of earlier answers go; the messages are walked backwards to find the last question.
    "thinking": """{%- set ns = namespace(multi_step=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    # Everything else: spaces, captures, loops with conditions and else, break and continue, choices, dicts, operators.
    "corners": """  {# a comment #}
{%- set title %}
 {{ messages | length }} messages {% endset %}
{{ title | trim | upper }}
{% for m in messages if m.role != 'system' %}
  {{ loop.index }}/{{ loop.length }} {{ m.role | capitalize }}{{ ': ' if m.content else '.' }}{{ m.content | default('-', true) }}
  {%- if not loop.last %},{% endif %}

{% else %}
nobody
{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{{ loop.previtem }}{% endfor %}
{{ {'a': 1, "b": 'x'}['b'] ~ [1, 2, 3][-1] ~ (7 // 2) ~ 7 % 3 ~ -3 ~ (1 < 2) ~ none }}
{{ 'abc'[1:] + 'abc'[-1] + 'abc'[:-1] }} {{ 'a-b-c'.split('-', 1) | join('+') }} {{ 'x' in 'xyz' and 'q' not in 'xyz' }}
{{ messages | map(attribute='role') | join if false else 'never' }} {{ missing is defined or 'fallback' }}
{{ ' padded ' | trim }}{{ ' p ' }}{{- ' q ' -}}   {{ ['a', 'b'] | tojson }}{{ {'k': 'v"\\n'} | tojson }}
{% generation %}{{ messages[-1].content.replace('a', 'A').lower() }}{% endgeneration %}
{{ 'first' if messages is iterable and messages is not string else 'second' }}{{ 3 is odd }}{{ 3 is not even }}
{% if messages[0].role == 'system' %}S{% elif messages[0]['role'] in ['user', 'tool'] %}U{% else %}?{% endif %}
    {%+ if true %}kept{% endif %}
""",
}

def said(*turns):
    return [dict(role=turns[i], content=turns[i + 1]) for i in range(0, len(turns), 2)]

CONVERSATIONS = [
    said("user", "Hello"),
    said("system", "Be brief.\n", "user", "  Hi there  "),
    said("user", "1+1?", "assistant", " 2 ", "user", "2+2?"),
    said("system", "s", "user", "u", "assistant", "a", "user", "v", "assistant", "b", "user", "w"),
    said("user", "", "assistant", "", "user", "again"),
    said("user", "Ünï 猫 🐱", "assistant", "\u00a0nb\u3000", "user", "\n\n"),
    said("user", "q", "assistant", "<think>\nlong\nthought\n</think>\n\nanswer", "user", "more?"),
    said("user", "q", "assistant", "<think>t</think>answer"),
    said("user", "<tool_response>x</tool_response>", "assistant", "a</think>b"),
    said("user", "q", "tool", "r1", "tool", "r2", "user", "u"),
    said("assistant", "I begin", "user", "ok"),
    said("user", "a", "user", "b"),
    said("system", "only"),
    said("user", "{{ messages }} {% if %} \\n 'quotes' \"double\""),
]

rows = []
for name, template in TEMPLATES.items():
    for number, messages in enumerate(CONVERSATIONS):
        try:
            text, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, bos_token="<s>",
                                            eos_token="</s>")
            rows.append(dict(template=name, conversation=number, text=text[0]))
        except Exception as error:
            rows.append(dict(template=name, conversation=number, error=str(error)))
with open(os.path.join(HERE, "rendered.json"), "w", encoding="utf-8") as out:
    out.write('{"templates": %s,\n"conversations": %s,\n"rows": [\n%s\n]}\n' % (
        json.dumps(TEMPLATES, ensure_ascii=False), json.dumps(CONVERSATIONS, ensure_ascii=False),
        ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)))
print(len(rows), sum("error" in row for row in rows), {row["error"] for row in rows if "error" in row})
