"""Chat templates with the rules of the family, in words of our own.

`LAST_QUERY` follows 3.5 and 3.6: thinking is kept behind the last question only, an inline block in
content is split off, and a later system message is an error. `EFFORT` follows 3.8.
"""

_BODY = r"""
{%- macro body(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}{%- if part.type == 'text' -%}{{ part.text }}{%- endif -%}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""

_TURNS = r"""
{%- for message in messages -%}
{%- set text = body(message.content) | trim -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('a system message must come first') }}{%- endif -%}
{%- elif message.role == 'user' -%}
{{- '<|im_start|>' + message.role + '\n' + text + '<|im_end|>' + '\n' }}
{%- elif message.role == 'assistant' -%}
{%- set thought = '' -%}
{%- if message.reasoning_content is string -%}
{%- set thought = message.reasoning_content -%}
{%- elif '</think>' in text -%}
{%- set thought = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set text = text.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{%- if keep_all or loop.index0 > ns.last -%}
{{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + text }}
{%- else -%}
{{- '<|im_start|>assistant\n' ~ text }}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '\n\n' if loop.first and text else ('' if loop.first else '\n') -}}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items -%}
<parameter={{ key }}>
{{ value if value is string else (value | tojson if value is mapping or (value is sequence and
   value is not string) else value | string) }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endfor -%}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' -%}
{%- if loop.previtem is undefined or loop.previtem.role != 'tool' -%}
{{- '<|im_start|>user' }}
{%- endif -%}
{{- '\n<tool_response>\n' ~ text ~ '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' }}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\n\n</think>\n\n' }}
{%- else -%}
{{- '<think>\n' }}
{%- endif -%}
{%- endif -%}
"""

_SYSTEM = r"""
{%- set parts = namespace(list=[]) -%}
{%- if effort_text -%}{%- set parts.list = parts.list + [effort_text] -%}{%- endif -%}
{%- if tools -%}
{%- set described = namespace(text='Functions:\n<tools>') -%}
{%- for tool in tools -%}
{%- set described.text = described.text ~ '\n' ~ (tool | tojson) -%}
{%- endfor -%}
{%- set parts.list = parts.list + [described.text + '\n</tools>'] -%}
{%- endif -%}
{%- if messages[0].role == 'system' -%}
{%- set parts.list = parts.list + [body(messages[0].content) | trim] -%}
{%- endif -%}
{%- if parts.list -%}
{{- '<|im_start|>system\n' + parts.list | join('\n\n') + '<|im_end|>\n' }}
{%- endif -%}
"""

_LAST_QUERY = r"""
{%- set ns = namespace(last=messages | length - 1, open=true) -%}
{%- for message in messages[::-1] -%}
{%- set text = body(message.content) | trim -%}
{%- if ns.open and message.role == 'user' and not (text.startswith('<tool_response>') and
      text.endswith('</tool_response>')) -%}
{%- set ns.open = false -%}
{%- set ns.last = messages | length - loop.index -%}
{%- endif -%}
{%- endfor -%}
{%- if ns.open -%}{{ raise_exception('there is no question') }}{%- endif -%}
{%- set keep_all = preserve_thinking is defined and preserve_thinking is true -%}
"""

_EFFORT = r"""
{%- set effort = reasoning_effort if reasoning_effort is defined else 'xhigh' -%}
{%- set texts = {'xhigh': 'Think for long.', 'medium': '', 'low': 'Think briefly.'} -%}
{%- if effort not in texts -%}{{ raise_exception('no such effort: ' ~ effort) }}{%- endif -%}
{%- set effort_text = texts[effort] -%}
{%- set keep_all = preserve_thinking is not defined or preserve_thinking is true -%}
{%- set ns = namespace(last=messages | length) -%}
"""

LAST_QUERY = _BODY + _LAST_QUERY + _SYSTEM + _TURNS
EFFORT = _BODY + _EFFORT + _SYSTEM + _TURNS
