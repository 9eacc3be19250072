"""Outputs of a model and what they mean, one for each rule of channels, stops and tool calls.

Expected values are written by hand from the serving contract, sections 4.3, 5 and 6.
"""

from dataclasses import dataclass, field
from typing import Any

from ninfer.generation import Channel, FinishReason


@dataclass(frozen=True, slots=True)
class Output:
    """One output and its meaning.

    Attributes:
        text: what the model says; added tokens spelled.
        calls: name and arguments of each call.
        is_budget: the budget ends behind the text.
    """

    name: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: FinishReason = FinishReason.STOP
    is_thinking: bool = False
    is_budget: bool = False
    has_tools: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> Channel:
        """Channel the output begins in."""
        return Channel.THINKING if self.is_thinking else Channel.CONTENT


END = "<|im_end|>"
LENGTH, CALLS = FinishReason.LENGTH, FinishReason.TOOL_CALLS
PING = "<tool_call>\n<function=ping>\n</function>\n</tool_call>"


PLAIN = (
    Output("text", "Hello there." + END, "Hello there."),
    Output("text cut by the budget", "Hello the", "Hello the", finish=LENGTH, is_budget=True),
    Output("trailing breaks stay without a call", "Hi\n\n" + END, "Hi\n\n"),
    Output("characters of several tokens", "🦔 ok€ 👩‍👩‍👧 ñ" + END, "🦔 ok€ 👩‍👩‍👧 ñ"),
    Output("control tokens are not shown", "a<|audio_pad|>b<|im_start|>c" + END, "abc"),
    Output("markup is text without tools", PING + END, PING, has_tools=False),
    Output("thinking markup in content is text", "a<think>b</think>" + END, "a<think>b</think>"),
    Output(
        "end tokens can be ignored",
        "a" + END + "b",
        "ab",
        finish=LENGTH,
        is_budget=True,
        options={"ignore_eos": True},
    ),
)

STOPS = (
    Output("b02", "kettle, spoon, fork, END", "kettle, ", options={"stop": ("spoon, fo",)}),
    Output("first end wins", "xabcdy", "xa", options={"stop": ("bcd", "bc")}),
    Output("longest wins a tie", "xabcy", "x", options={"stop": ("bc", "abc")}),
    Output(
        "held text is released", "ends in spo" + END, "ends in spo", options={"stop": ("spoon",)}
    ),
    Output(
        "held text is released at length",
        "a spo",
        "a spo",
        finish=LENGTH,
        is_budget=True,
        options={"stop": ("spoon",)},
    ),
    Output("overlapping starts", "aaab", "a", options={"stop": ("aab",)}),
    Output("a stop of breaks", "a\n\nb", "a", options={"stop": ("\n\n",)}),
    Output(
        "thinking is not searched",
        "a stop\n</think>\n\nb" + END,
        "b",
        "a stop",
        is_thinking=True,
        options={"stop": ("stop",)},
    ),
    Output(
        "markup is not searched",
        PING + END,
        "",
        calls=(("ping", "{}"),),
        finish=CALLS,
        options={"stop": ("function",)},
    ),
    Output(
        "text behind a call is searched",
        PING + "\nnow stop here",
        "\nnow ",
        calls=(("ping", "{}"),),
        finish=CALLS,
        options={"stop": ("stop",)},
    ),
    Output(
        "markup that is text is searched",
        "a<tool_call>\n<function=nope>stop",
        "a<tool_call>\n<function=nope>",
        options={"stop": ("stop",)},
    ),
    Output(
        "a stop may begin in markup that is text",
        "xy<tool_call>z",
        "x",
        options={"stop": ("y<tool_call>z",)},
    ),
    Output(
        "thinking stop",
        "so be it then",
        "",
        "so ",
        is_thinking=True,
        options={"reasoning_stop": ("be it",)},
    ),
    Output(
        "a thinking stop does not search content",
        "a\n</think>\n\nbe it" + END,
        "be it",
        "a",
        is_thinking=True,
        options={"reasoning_stop": ("be it",)},
    ),
    Output("a stop cuts a break that waits", "\na\nstop", "\na\n", options={"stop": ("stop",)}),
)

THINKING = (
    Output("a block and an answer", "why\n</think>\n\nso" + END, "so", "why", is_thinking=True),
    Output(
        "breaks around the block are layout",
        "a\n\n</think>\n\n\nb" + END,
        "\nb",
        "a\n",
        is_thinking=True,
    ),
    Output("no breaks around the block", "a</think>b" + END, "b", "a", is_thinking=True),
    Output("leading space is data", " \n a\n</think>\n\nb" + END, "b", " \n a", is_thinking=True),
    Output("an empty block says nothing", "\n</think>\n\nb" + END, "b", is_thinking=True),
    Output("a blank block says nothing", " \n\n</think>\n\nb" + END, "b", is_thinking=True),
    Output(
        "b05 no end", "720 has ", "", "720 has ", finish=LENGTH, is_thinking=True, is_budget=True
    ),
    Output("b05 thinking off", "720 has ", "720 has ", finish=LENGTH, is_budget=True),
    Output("the turn ends in thinking", "hm\n" + END, "", "hm\n", is_thinking=True),
    Output(
        "a second block is text",
        "a\n</think>\n\n<think>b</think>" + END,
        "<think>b</think>",
        "a",
        is_thinking=True,
    ),
    Output(
        "an opener in thinking is text",
        "a <think> b\n</think>\n\nc" + END,
        "c",
        "a <think> b",
        is_thinking=True,
    ),
)
