#!/usr/bin/env python3
"""Remakes rendered.json: run by hand, see README.md.
usage: make.py   (needs transformers)"""
import json, os, traceback
import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.realpath(__file__))

# Parts that several templates have.
TAKE_SYSTEM_MESSAGE = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
"""
HEADERS_PROMPT = """{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
CHATML_PROMPT = """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TOOL_RESPONSE_END = """        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
"""

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
""" + TAKE_SYSTEM_MESSAGE + """{%- if builtin_tools is defined or tools is not none %}
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
""" + HEADERS_PROMPT,
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
""" + TOOL_RESPONSE_END + CHATML_PROMPT,
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


# Families whose templates speak of tools, written in their manner.
TEMPLATES.update({
    # Tools in the first user's turn or the system's, calls as JSON, answers under a role of their own.
    "headers_tools": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d") | length ~ " digits" %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
""" + TAKE_SYSTEM_MESSAGE + """{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
""" + HEADERS_PROMPT,
    # Tools before the last question, calls with ids of nine letters, JSON cut open by slices.
    "inst_tools": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    # Tools as lines of JSON between tags, calls and answers likewise; answers of several tools share a turn.
    "tags_tools": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
""" + TOOL_RESPONSE_END + CHATML_PROMPT,
    # Macros: with defaults, by name, calling themselves and later ones, over schemas.
    "macros": """{%- macro render_extra_keys(json_dict, handled_keys) -%}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}
                {{- '\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{-'\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | string) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{% macro type_of(spec, depth=0) %}
    {%- if spec.type == 'object' -%}
        {{- '{' -}}
        {%- for name, inner in spec.properties | dictsort -%}
            {{- name ~ ('' if name in (spec.required or []) else '?') ~ ': ' ~ type_of(inner, depth=depth + 1) -}}
            {%- if not loop.last %}, {% endif -%}
        {%- endfor -%}
        {{- '}' ~ depth -}}
    {%- elif spec.type == 'array' -%}
        {{- type_of(spec['items'] or {}, depth + 1) + '[]' -}}
    {%- elif spec.enum is defined -%}
        {{- spec.enum | map('tojson') | join(' | ') -}}
    {%- else -%}
        {{- spec.type or 'any' -}}
    {%- endif -%}
{% endmacro %}
{%- macro turn(role, content='') -%}
<|{{ role | upper }}|>{{ later(content) }}
{%- endmacro -%}
{%- macro later(content, mark='.') %}{{ content ~ mark }}{% endmacro -%}
{%- for tool in tools or [] %}
{%- set tool = tool.function if tool.function is defined else tool %}
{{ tool.name }}({{ type_of(tool.parameters) if tool.parameters else '' }})
{{- render_extra_keys(tool, ['type', 'name', 'parameters']) }}
{{- render_extra_keys(tool.parameters, ['type', 'properties']) }}
{% endfor %}
{%- for message in messages -%}
{{ turn(message.role, content=message.content or '') }}{{ turn(role='x') }}
{% endfor -%}
""",
    # Filters and methods that the others leave out.
    "filters": """{%- set roles = messages | map(attribute='role') | list -%}
{{ roles | join(',') }} {{ roles | unique | join('+') }} {{ roles | reverse | first }} {{ roles | last }}
{{ messages | selectattr('content') | map(attribute='content') | map('trim') | join('|') }}
{{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }}{{ roles | select('ne', 'user') | list | length }}
{{ roles | reject('equalto', 'user') | join }} {{ messages | map(attribute='name', default='nobody') | join(' ') }}
{{ 'one two_three' | title }} {{ 'a.b.c'.split('.') | tojson }} {{ ' a  b '.split() | tojson }} {{ 'x'.join(['1', '2']) }}
{{ 'line1\\nline2\\n\\nline3' | indent(2) }}|{{ 'p\\nq' | indent(width=3, first=true) }}|{{ 'a\\r\\nb\\nc'.splitlines() | tojson }}
{{ '猫と犬'[1:] }}{{ '猫と犬'[::-1] }}{{ '猫と犬'[-1] }}{{ 'abcdef'[1:5:2] }}{{ [1, 2, 3, 4, 5][::2] | tojson }}{{ [1, 2, 3, 4, 5][3:0:-2] | tojson }}
{{ '12' | int + 3 }} {{ 'x' | int }} {{ '猫' | length }} {{ 'abc'.find('c') }} {{ 'ABC'.lower().title() }} {{ 'aXb' | lower | capitalize }}
{% for key, value in {'b': 1, 'a': [1, {'c': none}], 'd': true} | items %}{{ key }}={{ value | tojson }};{% endfor %}
{{ {'b': 1, 'a': 2} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {'x': []} | tojson(indent=1) }} {{ {'b': 1}.keys() | list | tojson }} {{ {'b': 1}.values() | list | tojson }}
{{ [1, [2]] == [1, [2]] }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ messages[0] == messages[-1] }}{{ 4 is divisibleby 2 }}{{ 3 is gt 2 }}
{% for tool in tools or [] %}{{ tool.function.parameters | tojson(indent=4) }}{{ tool.function.parameters.limit or '-' }}{{ tool.function.parameters.limit is float }}{% endfor %}
{{ namespace(a=1).a }}{{ dict(x=2).x }}{{ 'q' if roles is sequence else 'r' }}{{ roles is mapping }}{{ (1, 2) | length if false else 0 }}
""".replace("{{ (1, 2) | length if false else 0 }}", ""),
})

# What ends with a block, and the else of a loop whose turns all end early.
TEMPLATES["scopes"] = r"""{% set x = 'X' %}{% set y %}{% set x = 1 %}{{ x }}{% endset %}{{ x }}{{ y }}
{% generation %}{% set x = 2 %}{{ x }}{% for message in messages %}{{ loop.index }}{% endfor %}{% endgeneration %}{{ x }}
{% for i in [] %}{% else %}{% set x = 3 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 4 %}{% endif %}{{ x }}
{% for i in [1, 2] %}{% break %}{% else %}broken{% endfor %} {% for i in [1, 2] %}{% continue %}{% else %}continued{% endfor %}
{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}never{% endfor %}
{% for i in [1, 2] %}{% for j in [1] %}{% break %}{% else %}{% continue %}{% endfor %}never{% else %}both{% endfor %}
"""

# Filters and methods where Jinja and Python do more than one would think: cases, defaults, arguments by name, empty strings, lines.
TEMPLATES["as_python"] = r"""{{ ['a', 'A', 'b', 1, 1, 'É', 'é'] | unique | list | tojson }}{{ ['a', 'A'] | unique(true) | list | tojson }}
{{ [{'k': 'x', 'v': 1}, {'k': 'X', 'v': 2}] | unique(attribute='k') | map(attribute='v') | join(',') }}
{{ 'x' | int }} {{ 'x' | int(7) }} {{ 'x' | int(default=8) }} {{ ' 12 ' | int(5) }} {{ '+5' | int }} {{ '-5' | int }} {{ '' | int('none') }}
{{ '3.7' | int }} {{ '-1e3' | int }} {{ '1_000' | int }} {{ '1__0' | int }} {{ '_1' | int }} {{ '1_0.5' | int }} {{ '1_e3' | int(4) }} {{ '1._5' | int(4) }} {{ '1_0e1_0' | int }} {{ '0x1f' | int }} {{ '007' | int }}
{{ 'ff' | int(0, 16) }} {{ '0x1f' | int(base=16) }} {{ '-0b11' | int(base=2) }} {{ '0x_1f' | int(0, 16) }} {{ '0x' | int(3, 16) }} {{ '9' | int(1, 8) }}
{{ none | int }} {{ none | int(4) }} {{ true | int }} {{ [1] | int(9) }} {{ 'inf' | int }} {{ 'nan' | int(2) }}
{{ 'äöü ß é ŉ ﬁ ΐ ᾳ ᾂ ǆ' | upper }} {{ 'ÄÖÜ ẞ É İ ΑΣ ΑΣΑ Σ' | lower }} {{ 'ﬁé ÉA' | capitalize }} {{ 'ЖЗ'.lower() ~ 'жз'.upper() }}
{{ "éa üB-ñ ßa (ñ it's" | title }} {{ "it's éa 1a ǆa ﬁb".title() }} {{ 'they\'re a	b' | title }} {{ 'ΑΣ ΑΒΣ ΣΑΣ' | title }} {{ 'ΑΣ'.title() }} {{ 'ΑΣ' | capitalize }}
{{ 'xxaxx' | trim('x') }} {{ 'xxaxx' | trim(chars='x') }} {{ 'xax'.strip('x') }}
{{ 'a,b,c'.split(',', maxsplit=1) | join('+') }} {{ 'a b  c'.split(maxsplit=1) | join('+') }} {{ 'a,b'.split(sep=',') | join('+') }}
{{ 'aaa'.replace('a', 'b', 2) }} {{ 'aaa' | replace('a', 'b', count=1) }} {{ 'aé' | replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ '' | replace('', 'x') }}
{{ 'a
b
c

d'.splitlines() | join('|') }} {{ 'a
'.splitlines(true) | tojson }} {{ 'a

b' | indent(2, blank=true) }}
{{ none.x is defined }} {{ none.x }} {{ missing is iterable }} {{ missing is sequence }} {{ missing is mapping }} {{ none is iterable }}
{{ 'a' is in ['a'] }} {{ 2 is in [1] }} {{ {'a': {'b': {}}}['a'] | length }} {{ [{'a': {'b': 5}}] | map(attribute='a.b') | join }}
{% for k, v in {'b': 1, 'B': 2, 'a': 3, 'É': 4, 'Z': 5} | dictsort %}{{ k ~ v }} {% endfor %}
{{ [[1, 'x'], [2, 'y']] | join('-', attribute=1) }} {{ {'b': 1, 'a': 2} | list | join }} {{ '' | default('y', boolean=true) }}
"""
# Ends of lines as on other systems, and white space that is no blank.
TEMPLATES["line_ends"] = ("{% if true %}\r\n  x\r\n{% endif %}\r\ny\rz\r\n{{ 'a\r\nb' | tojson }}\r\n  {% if true %}\r\n  w\r\n\t\u00a0{% endif %}\r\n"
                          "a \u00a0{%- if true -%}\x0b b \x0b{%- endif %} c\r\n\r\n")

# One conversation is enough for these: nothing of it is in them.
ALONE = {
    # Text between raw and endraw, and the white space beside them.
    "raw": r"""a
  {% raw %}
  {{ x }} {% if %} {# y #}
  {% endraw %}
  b{%- raw -%}  c {%- endraw -%}  d{%+ raw %} e {%+ endraw +%}
f  {%+ raw %}g
  {%+ endraw +%}
{% raw
%}{% raw %}{%
endraw	%}h{%raw%}{%endraw%}{{ '{% raw %}' }}{# {% raw %} #}{% if true %}{% raw %}{% endif %}{% endraw %}{% endif %}
{% raw %}{% endraw x %}{% endrawx %}{% endraw
%}
{% for i in [1, 2] %}{% raw %}{{ i }}{% endraw %}{{ i }}{% endfor %}
""",
    "loops": r"""{% for i in range(5) %}{{ loop.cycle('a', 2, [3][0]) }}{{ loop.depth }}{{ loop.depth0 }}{% for j in [1, 2] %}{{ loop.cycle('x', 'y') }}{{ loop.depth }}{% endfor %}{% endfor %}
""",
    # Names that are functions, and what is undefined.
    "callable": r"""{% macro f() %}{% endmacro %}{{ f is callable }}{{ missing is callable }}{{ range is callable }}{{ raise_exception is callable }}{{ strftime_now is callable }}
{{ none is callable }}{{ 'a' is callable }}{{ {} is callable }}{{ [] is callable }}{{ 1 is callable }}{{ messages[0].missing is callable }}
{{ range is string }}{{ range is defined }}{{ range is iterable }}{{ range is mapping }}{{ 'y' if range else 'n' }}{{ range == range }}{{ range == dict }}{{ range | default('x') is string }}
""",
    "contains": r"""{{ 'b' in 'abc' }}{{ '' in 'abc' }}{{ 1 in missing }}{{ 1 in {'a': 1} }}{{ missing in {'a': 1} }}{{ missing in [1] }}{{ missing in [missing] }}{{ 'a' in dict(a=missing) }}{{ none in {'a': 1} }}
{{ 2 is in [1, 2] }}{{ [] in [[]] }}{{ {} in [{}] }}{{ 'a' not in 'bc' }}
""",
    # What is undefined has no items and no text; single values are text to filters of text.
    "undefined": r"""{% for x in missing %}x{% else %}none{% endfor %}{{ missing | length }}{{ missing | count }}{{ missing | list | length }}{{ missing | join(',') }}
[{{ missing | first }}{{ missing | last }}]{{ missing | reverse | list | length }}{{ missing | map('upper') | list | length }}{{ missing | map(attribute='x') | join }}
{{ missing | select | list | length }}{{ missing | reject('string') | list | length }}{{ missing | selectattr('a') | list | length }}{{ missing | rejectattr('a') | list | length }}
[{{ missing | upper }}{{ missing | lower }}{{ missing | capitalize }}{{ missing | title }}{{ missing | trim }}{{ missing | replace('a', 'b') }}{{ missing | string }}{{ missing | unique | join }}]
{{ 5 | upper }}{{ none | trim }}{{ true | lower }}{{ 1 | replace('1', '2') }}{{ none | title }}{{ none | upper }}{{ -5 | trim('-') }}{{ [1, none, 'x'] | map('upper') | join }}
""",
    # int takes the decimal digits of all scripts, and no other character of the value of a number.
    "digits": r"""{{ '٣' | int }} {{ '٣.٥' | int }} {{ '-१२' | int }} {{ '１２_３' | int }} {{ '𝟙𝟚' | int }} {{ '²' | int(9) }} {{ '٣f' | int(0, 16) }} {{ '０x1f' | int(0, 16) }}
{{ '½' | int(8) }} {{ '一' | int(7) }} {{ '＋5' | int(6) }} {{ '٣e2' | int }} {{ '　٣ ' | int }} {{ '１３' | int }} {{ '٩' | int(1, 8) }} {{ '٣_٥' | int }}
{{ '٣__٥' | int(4) }} {{ '٣٫٥' | int(2) }} {{ '１２ ３' | int(6) }} {{ '1　2' | int(5) }} {{ '𞥐𞥙' | int }} {{ '۴۵۶۷۸۹' | int }} {{ '𝟎𝟗𝟘𝟡𝟢𝟫𝟬𝟵𝟶𝟿' | int }} {{ '๐๙' | int }}
{{ '\x1c12' | int(5) }} {{ '12\x1f' | int(5) }} {{ '\x8512' | int(5) }} {{ '\x0b12\x0c' | int(5) }}
""".replace("\\x1c", "\x1c").replace("\\x1f", "\x1f").replace("\\x85", "\x85").replace("\\x0b", "\x0b").replace("\\x0c", "\x0c"),
}
# What Python does not take, each on the second line of a template.
for number, expression in enumerate([
        "2 in 'abc'", "none in 'abc'", "missing in 'abc'", "['a'] in 'abc'", "true in 'True'", "2 not in 'abc'", "2 is in 'abc'",
        "range in 'abc'", "[1] | select('in', 'abc') | list", "1 in none", "1 in 5", "1 in true", "1 in range", "[] in {'a': 1}", "{} in {'a': 1}",
        "messages[0] in messages[0]", "range | tojson", "{'a': missing} | tojson", "[[range]] | tojson", "{'a': [1, missing]} | tojson(indent=2)"]):
    ALONE["refused_%d" % number] = "a\n{{ %s }}\n" % expression
ALONE["refused_call"] = "{% set range = 5 %}\n\n{{ range(3) }}"
ALONE["refused_cycle"] = "{% for i in [1] %}\n{{ loop.cycle() }}{% endfor %}"
ALONE["refused_in_macro"] = "{% macro f(x) %}\n{% if true %}\n\n{{ x in 'a' }}{% endif %}{% endmacro %}\n\n\n{{ f(1) }}"
ALONE["refused_elif"] = "{% if false %}\n{% elif 1 in 'a' %}\n{% endif %}"
ALONE["refused_after_raw"] = "{% raw %}\n\n{% endraw %}\n{% set x = 1 in 'a' %}"
ALONE["raised"] = "\n{{ raise_exception('words') }}"
TEMPLATES.update(ALONE)

TOOLS = {
    "weather": [dict(type="function", function=dict(
        name="get_weather", description="Weather \"now\" in a city: 猫\n<b>", parameters=dict(
            type="object", properties=dict(city=dict(type="string", description="City's name"),
                                           unit=dict(type="string", enum=["celsius", "fahrenheit"])), required=["city"])))],
    "several": [
        dict(type="function", function=dict(name="f", description="", parameters=dict(
            type="object", limit=0.5, properties=dict(
                list=dict(type="array", items=dict(type="object", properties=dict(x=dict(type="number", minimum=1e-7, maximum=1e22)))),
                Any=dict(), n=dict(type="integer", default=-3)), required=[]), strict=True)),
        dict(type="function", function=dict(name="g", description="no parameters")),
    ],
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

def call(name, arguments, id="abc123def"):
    return dict(id=id, type="function", function=dict(name=name, arguments=arguments))

# With calls of tools.
CONVERSATIONS += [
    [dict(role="user", content="Weather in Brno?"), dict(role="assistant", content=None, tool_calls=[call("get_weather", dict(city="Brno"))]),
     dict(role="tool", content='{"t": 21.5}', tool_call_id="abc123def", name="get_weather")],
    [dict(role="system", content="s"), dict(role="user", content="Both!"),
     dict(role="assistant", content="I look.", reasoning_content="\nhm\n", tool_calls=[
         call("f", dict(list=[dict(x=1.0)], n=2, s="\u00fc\"<s>")), call("g", {}, "123456789")]),
     dict(role="tool", content="[1]", tool_call_id="abc123def"), dict(role="tool", content="ok", tool_call_id="123456789"),
     dict(role="assistant", content="Done."), dict(role="user", content="Both!")],
    [dict(role="user", content="x"), dict(role="assistant", content="", tool_calls=[call("g", dict(a=None, b=[True, 1e16, 0.0001, -2.5]), "short")])],
]

rows = []
for name, template in TEMPLATES.items():
    for number, messages in enumerate(CONVERSATIONS[:1] if name in ALONE else CONVERSATIONS):
        for tools in [None, *TOOLS] if "tools" in template else [None]:
            row = dict(template=name, conversation=number)
            if tools:
                row["tools"] = tools
            try:
                text, _ = render_jinja_template([messages], tools=TOOLS.get(tools), chat_template=template, add_generation_prompt=True,
                                                bos_token="<s>", eos_token="</s>")
                row["text"] = text[0]
            except Exception as error:
                row["error"] = str(error)
                if not isinstance(error, jinja2.TemplateError):  # what a template raises is one, and says no place
                    row["line"] = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"][-1]
            rows.append(row)
with open(os.path.join(HERE, "rendered.json"), "w", encoding="utf-8") as out:
    out.write('{"templates": %s,\n"tools": %s,\n"conversations": %s,\n"rows": [\n%s\n]}\n' % (
        json.dumps(TEMPLATES, ensure_ascii=False), json.dumps(TOOLS, ensure_ascii=False), json.dumps(CONVERSATIONS, ensure_ascii=False),
        ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)))
print(len(rows), sum("error" in row for row in rows), {row["error"] for row in rows if "error" in row})
