r"""The thinking channel: text before the block is closed.

The line breaks the template puts around the block are layout: one before ``</think>`` is dropped
here, and a block of nothing but white space says nothing at all. A call drafted in thinking is
thinking, with one exception, because these models do it: a complete call at a line start that the
turn ends with, or that another call follows, counts as content behind a block closed before it.

    ... text \n <tool_call> HEAD ... </tool_call> ws  | end of turn, next call: `claimed`
                `---------------- held -----------'   | anything else: it was thinking

Does not know tokens. Source: the serving contract, section 5 and section 6.3, rule 1.
"""

import copy
from collections.abc import Mapping
from typing import Self

from ninfer.frontend.stop_strings import StopMatcher
from ninfer.frontend.tool_arguments import ToolSignature
from ninfer.frontend.tool_region import REGION_OPENER, RegionPhase, ToolRegion
from ninfer.generation import Channel, OutputDelta, TextDelta

_SPACE = " \t\r\n\f\v"


class ThinkingStream:
    """Thinking text in, deltas out; copied for a preview.

    Attributes:
        matched_stop: string that ended the request inside the block.
        claimed: text that proved to be content; the block is closed when it is set.
    """

    def __init__(self, tools: Mapping[str, ToolSignature], stops: tuple[str, ...]) -> None:
        self.matched_stop: str | None = None
        self.claimed: str | None = None
        self._tools = tools
        self._matcher = StopMatcher(stops)
        self._text = ""  # not looked at yet, or may still open a call
        self._is_line_start = True
        self._complete = ""  # complete calls that nothing has proved to be content
        self._region: ToolRegion | None = None
        self._region_text = ""
        self._blank: str | None = ""  # white space before the first text; None behind that
        self._break = ""  # a line break that may be layout of the close

    def copy(self) -> Self:
        """Get an independent stream in the same state."""
        twin = copy.copy(self)
        twin._region = self._region.copy() if self._region else None
        return twin

    def feed(self, text: str, deltas: list[OutputDelta]) -> None:
        """Read the next text; ``deltas`` receives what became final."""
        self._text += text
        goes_on = bool(self._text)
        while goes_on and self.matched_stop is None and self.claimed is None:
            if self._region:
                goes_on = self._read_region(self._region, deltas)
            elif self._complete:
                goes_on = self._read_behind_call(deltas)
            else:
                goes_on = self._read_text(deltas)

    def feed_forced(self, text: str, deltas: list[OutputDelta]) -> None:
        """Pass text that is ours, not the model's: it is searched for nothing."""
        self._release(deltas)
        self._flush_matcher(deltas)
        self._lay_out(text, deltas)

    def close(self, deltas: list[OutputDelta]) -> None:
        """End the block by its closing token."""
        self._release(deltas)
        self._flush_matcher(deltas)

    def end(self, deltas: list[OutputDelta], *, is_turn_end: bool) -> None:
        """End the output inside the block; a call the turn ended with becomes `claimed`."""
        is_call = self._complete and not self._region and not self._text.strip(_SPACE)
        if is_turn_end and is_call:
            self._claim(deltas)
            return
        self._release(deltas)
        self._flush_matcher(deltas)
        if self.matched_stop is None:
            rest = (self._blank or "") + self._break
            if rest:
                deltas.append(TextDelta(Channel.THINKING, rest))

    def _read_text(self, deltas: list[OutputDelta]) -> bool:
        place = self._find_opener() if self._tools else len(self._text)
        text, self._text = self._text[:place], self._text[place:]
        self._say(text, deltas)
        if not self._text.startswith(REGION_OPENER):
            return False
        self._open_region()
        return True

    def _find_opener(self) -> int:
        """Place of the first opener at a line start, or of what may become one."""
        place = self._text.find("<")
        while place >= 0:
            is_line_start = self._text[place - 1] == "\n" if place else self._is_line_start
            rest = self._text[place : place + len(REGION_OPENER)]
            if is_line_start and REGION_OPENER.startswith(rest):
                return place
            place = self._text.find("<", place + 1)
        return len(self._text)

    def _open_region(self) -> None:
        self._region = ToolRegion(self._tools)
        self._region_text = REGION_OPENER
        self._text = self._text[len(REGION_OPENER) :]

    def _read_region(self, region: ToolRegion, deltas: list[OutputDelta]) -> bool:
        text, self._text = self._text, ""
        region.feed(text)
        self._region_text += text
        if region.phase is RegionPhase.BROKEN or region.is_undeclared:
            prose = self._complete + REGION_OPENER
            self._text = self._region_text[len(REGION_OPENER) :]
            self._forget_calls()
            self._say(prose, deltas)
            return True
        if self._complete and region.name is not None:
            self._claim(deltas)
        elif region.phase is RegionPhase.COMPLETE:
            self._text = region.rest
            self._complete = self._region_text[: len(self._region_text) - len(region.rest)]
            self._region, self._region_text = None, ""
            return True
        return False

    def _read_behind_call(self, deltas: list[OutputDelta]) -> bool:
        following = self._text.lstrip(_SPACE)
        if following.startswith(REGION_OPENER):
            self._complete += self._text[: len(self._text) - len(following)]
            self._text = following
            self._open_region()
            return True
        if REGION_OPENER.startswith(following):
            return False
        prose = self._complete
        self._forget_calls()
        self._say(prose, deltas)
        return True

    def _claim(self, deltas: list[OutputDelta]) -> None:
        claimed = self._complete + self._region_text + self._text
        self._text = ""
        self._forget_calls()
        self._flush_matcher(deltas)
        self.claimed = claimed

    def _release(self, deltas: list[OutputDelta]) -> None:
        """What is held was thinking after all."""
        prose = self._complete + self._region_text + self._text
        self._text = ""
        self._forget_calls()
        self._say(prose, deltas)

    def _forget_calls(self) -> None:
        self._complete = self._region_text = ""
        self._region = None

    def _say(self, text: str, deltas: list[OutputDelta]) -> None:
        if not text or self.matched_stop is not None:
            return
        self._is_line_start = text.endswith("\n")
        scan = self._matcher.feed(text)
        self._matcher = scan.next
        self._lay_out(scan.released, deltas)
        self.matched_stop = scan.matched
        if scan.matched is not None and self._break:
            deltas.append(TextDelta(Channel.THINKING, self._break))
            self._break = ""

    def _flush_matcher(self, deltas: list[OutputDelta]) -> None:
        if self.matched_stop is None:
            held, self._matcher = self._matcher.flush()
            self._lay_out(held, deltas)

    def _lay_out(self, text: str, deltas: list[OutputDelta]) -> None:
        if self._blank is not None:
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank = self._blank, None
        text = self._break + text
        self._break = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if text:
            deltas.append(TextDelta(Channel.THINKING, text))
