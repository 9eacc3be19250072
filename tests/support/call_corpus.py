"""Outputs with tool calls and what they mean, one for each rule of the format.

Expected values are written by hand from the serving contract, section 6.3.
"""

from typing import Any

from tests.support.output_corpus import CALLS, END, LENGTH, PING, Output


def _tool(name: str, properties: dict[str, Any], **schema: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, **schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    _tool(
        "plan_route",
        {
            "stops": {"type": "array", "items": {"type": "object"}},
            "fast": {"type": "boolean"},
            "note": {"type": "string"},
        },
    ),
    _tool("write_file", {"path": {"type": "string"}, "body": {"type": "string"}}),
    _tool("ping", {}),
]


def _call(name: str, *parameters: tuple[str, str]) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def _write(body: str) -> str:
    return _call("write_file", ("body", body))


B04 = "A block ends with </parameter> and a call with </tool_call>, see <function=demo>.\nlast line"
B04_JSON = (
    '{"body":"A block ends with </parameter> and a call with </tool_call>, '
    'see <function=demo>.\\nlast line"}'
)

CALLS_OF_RULES = (
    Output(
        "b03 types",
        _call(
            "plan_route",
            ("stops", '[{"name":"Mill","km":3.50}]'),
            ("fast", "True"),
            ("note", "42"),
        )
        + END,
        calls=(("plan_route", '{"stops":[{"name":"Mill","km":3.50}],"fast":true,"note":"42"}'),),
        finish=CALLS,
    ),
    Output("b04 literal tags", _write(B04) + END, calls=(("write_file", B04_JSON),), finish=CALLS),
    Output(
        "only one break is layout",
        _write("\n  x \n\n") + END,
        calls=(("write_file", '{"body":"\\n  x \\n\\n"}'),),
        finish=CALLS,
    ),
    Output(
        "values without breaks",
        "<tool_call><function=write_file><parameter=body>x</parameter></function></tool_call>"
        + END,
        calls=(("write_file", '{"body":"x"}'),),
        finish=CALLS,
    ),
    Output(
        "empty values",
        _write("") + _call("write_file", ("path", "\n")) + END,
        calls=(("write_file", '{"body":""}'), ("write_file", '{"path":"\\n"}')),
        finish=CALLS,
    ),
    Output(
        "escapes and entities are data",
        _write('"q\\n" &lt; \t€🦔') + END,
        calls=(("write_file", '{"body":"\\"q\\\\n\\" &lt; \\t€🦔"}'),),
        finish=CALLS,
    ),
    Output(
        "a function end in data",
        _write("a </function> b") + END,
        calls=(("write_file", '{"body":"a </function> b"}'),),
        finish=CALLS,
    ),
    Output(
        "a parameter end before data",
        _write("</parameter>\n</function>\nx") + END,
        calls=(("write_file", '{"body":"</parameter>\\n</function>\\nx"}'),),
        finish=CALLS,
    ),
    Output(
        "a parameter tag inside a line",
        _write("see <parameter=path> now") + END,
        calls=(("write_file", '{"body":"see <parameter=path> now"}'),),
        finish=CALLS,
    ),
    Output(
        "an unknown parameter tag at a line start",
        _write("see\n<parameter=other>\nx") + END,
        calls=(("write_file", '{"body":"see\\n<parameter=other>\\nx"}'),),
        finish=CALLS,
    ),
    Output(
        "a missing parameter end before a known parameter",
        "<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n<parameter=body>\nx\n"
        "</parameter>\n</function>\n</tool_call>" + END,
        calls=(("write_file", '{"path":"a.txt","body":"x"}'),),
        finish=CALLS,
    ),
    Output(
        "a missing parameter end of an empty value",
        "<tool_call>\n<function=write_file>\n<parameter=path>\n<parameter=body>\nx\n"
        "</parameter>\n</function>\n</tool_call>" + END,
        calls=(("write_file", '{"path":"","body":"x"}'),),
        finish=CALLS,
    ),
    Output(
        "a missing parameter end before the function end",
        "<tool_call>\n<function=write_file>\n<parameter=body>\nx\n</function>\n</tool_call>" + END,
        calls=(("write_file", '{"body":"x"}'),),
        finish=CALLS,
    ),
    Output(
        "a missing call end at the end of the turn",
        "<tool_call>\n<function=write_file>\n<parameter=body>\nx\n</parameter>\n</function>\n"
        + END,
        calls=(("write_file", '{"body":"x"}'),),
        finish=CALLS,
    ),
    Output(
        "a missing call end without parameters",
        "<tool_call>\n<function=ping>\n</function>" + END,
        calls=(("ping", "{}"),),
        finish=CALLS,
    ),
    Output(
        "a call end is not supplied at length",
        "<tool_call>\n<function=ping>\n</function>",
        "<tool_call>\n<function=ping>\n</function>",
        finish=LENGTH,
        is_budget=True,
    ),
    Output(
        "an undeclared name",
        "a\n" + _call("nope", ("x", PING)) + "\nb" + END,
        "a\n" + _call("nope", ("x", PING)) + "\nb",
    ),
    Output("text in a region", "<tool_call>\nno call" + END, "<tool_call>\nno call"),
    Output(
        "text behind the name",
        "<tool_call>\n<function=ping>\nx\n</function>" + END,
        "<tool_call>\n<function=ping>\nx\n</function>",
    ),
    Output(
        "a region in a broken region",
        "<tool_call>" + PING + END,
        "<tool_call>",
        calls=(("ping", "{}"),),
        finish=CALLS,
    ),
    Output(
        "a broken name",
        "<tool_call>\n<function=pi\nng>\n" + PING + END,
        "<tool_call>\n<function=pi\nng>",
        calls=(("ping", "{}"),),
        finish=CALLS,
    ),
    Output(
        "an end token inside a value",
        "<tool_call>\n<function=write_file>\n<parameter=body>\nx y" + END,
        calls=(("write_file", '{"body":"x y'),),
    ),
    Output(
        "the budget inside a value",
        "<tool_call>\n<function=write_file>\n<parameter=body>\nx</param",
        calls=(("write_file", '{"body":"x'),),
        finish=LENGTH,
        is_budget=True,
    ),
    Output(
        "the budget inside a value that is not text",
        "<tool_call>\n<function=plan_route>\n<parameter=stops>\n[1, 2",
        is_budget=True,
        calls=(("plan_route", '{"stops":'),),
        finish=LENGTH,
    ),
    Output(
        "a first key wins",
        _call("write_file", ("body", "x"), ("body", "y"), ("path", "z")) + END,
        calls=(("write_file", '{"body":"x","path":"z"}'),),
        finish=CALLS,
    ),
    Output(
        "undeclared keys stay",
        _call("ping", ("n", "1.10"), ("s", "x"), ("t", "true")) + END,
        calls=(("ping", '{"n":1.10,"s":"x","t":true}'),),
        finish=CALLS,
    ),
    Output(
        "several calls with text around",
        "Let me see.\n\n" + PING + "\n" + PING + "\n\nDone." + END,
        "Let me see.\n\nDone.",
        calls=(("ping", "{}"), ("ping", "{}")),
        finish=CALLS,
    ),
    Output(
        "only line breaks before a call are layout",
        "a \n \r\n" + PING + END,
        "a \n ",
        calls=(("ping", "{}"),),
        finish=CALLS,
    ),
    Output(
        "white space behind calls is dropped",
        PING + "\n\n" + END,
        calls=(("ping", "{}"),),
        finish=CALLS,
    ),
    Output(
        "text between calls stays",
        PING + "\nthen\n" + PING + END,
        "\nthen\n",
        calls=(("ping", "{}"), ("ping", "{}")),
        finish=CALLS,
    ),
    Output(
        "one call only",
        "a" + PING + PING + "b",
        "a",
        calls=(("ping", "{}"),),
        finish=CALLS,
        options={"parallel_tool_calls": False},
    ),
    Output("a tag that is none", "a < b <tool b <tool_cal" + END, "a < b <tool b <tool_cal"),
    Output("the budget inside a tag", "a <tool_cal", "a <tool_cal", finish=LENGTH, is_budget=True),
    Output(
        "the budget behind a call", PING, calls=(("ping", "{}"),), finish=LENGTH, is_budget=True
    ),
    Output(
        "a call behind thinking",
        "why\n</think>\n\n" + PING + END,
        "",
        "why",
        calls=(("ping", "{}"),),
        finish=CALLS,
        is_thinking=True,
    ),
)

CALLS_IN_THINKING = (
    Output(
        "the turn ends with the call",
        "plan\n" + PING + "\n" + END,
        "",
        "plan",
        calls=(("ping", "{}"),),
        finish=CALLS,
        is_thinking=True,
    ),
    Output(
        "another call follows",
        "plan\n\n" + PING + "\n" + PING + END,
        "",
        "plan\n",
        calls=(("ping", "{}"), ("ping", "{}")),
        finish=CALLS,
        is_thinking=True,
    ),
    Output(
        "a call opens the block",
        PING + END,
        calls=(("ping", "{}"),),
        finish=CALLS,
        is_thinking=True,
    ),
    Output(
        "text behind it",
        "plan\n" + PING + "\nno\n</think>\n\nok" + END,
        "ok",
        "plan\n" + PING + "\nno",
        is_thinking=True,
    ),
    Output(
        "the block closes behind it",
        "plan\n" + PING + "\n</think>\n\nok" + END,
        "ok",
        "plan\n" + PING,
        is_thinking=True,
    ),
    Output(
        "the block closes inside it",
        "a\n<tool_call>\n<function=ping>\n</think>\n\nok" + END,
        "ok",
        "a\n<tool_call>\n<function=ping>",
        is_thinking=True,
    ),
    Output(
        "the budget behind it",
        "a\n" + PING,
        "",
        "a\n" + PING,
        finish=LENGTH,
        is_budget=True,
        is_thinking=True,
    ),
    Output(
        "the turn ends inside it",
        "a\n<tool_call>\n<function=ping>\n</function>" + END,
        "",
        "a\n<tool_call>\n<function=ping>\n</function>",
        is_thinking=True,
    ),
    Output("inside a line", "a " + PING + END, "", "a " + PING, is_thinking=True),
    Output(
        "an undeclared name",
        "a\n" + _call("nope") + END,
        "",
        "a\n" + _call("nope"),
        is_thinking=True,
    ),
    Output(
        "prose before a real call",
        "a\n" + PING + "\nb\n" + PING + END,
        "",
        "a\n" + PING + "\nb",
        calls=(("ping", "{}"),),
        finish=CALLS,
        is_thinking=True,
    ),
    Output(
        "an undeclared call follows",
        "a\n" + PING + "\n" + _call("nope") + END,
        "",
        "a\n" + PING + "\n" + _call("nope"),
        is_thinking=True,
    ),
    Output(
        "without tools", "a\n" + PING + END, "", "a\n" + PING, is_thinking=True, has_tools=False
    ),
    Output(
        "one call only",
        "a\n" + PING + "\n" + PING + END,
        "",
        "a",
        calls=(("ping", "{}"),),
        finish=CALLS,
        is_thinking=True,
        options={"parallel_tool_calls": False},
    ),
)
