"""The content channel: text, and tool calls found in it while it streams.

    content text -> regions | text -> stop strings -> line breaks held -> deltas

Text that could still open a region is held, nothing else. Line breaks before the first call are
layout of the call, white space behind a call is dropped unless text follows. Does not know tokens
or thinking. Source: the serving contract, sections 4.3, 6.3 and 6.4.
"""

import copy
import dataclasses
import hashlib
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ninfer.frontend.stop_strings import StopMatcher
from ninfer.frontend.tool_arguments import ToolSignature
from ninfer.frontend.tool_region import (
    REGION_OPENER,
    RegionArguments,
    RegionEvent,
    RegionPhase,
    RegionStart,
    RegionText,
    ToolRegion,
)
from ninfer.generation import Channel, OutputDelta, TextDelta, ToolCallArguments, ToolCallStart

_ID_ALPHABET = string.digits + string.ascii_letters
_ID_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class CallIds:
    """Ids of a request's calls: a function of a nonce and the index, so previews agree."""

    nonce: bytes
    prefix: str = "call_"

    def of(self, index: int) -> str:
        """Id of the call with this index."""
        digest = hashlib.sha256(self.nonce + index.to_bytes(4, "big")).digest()
        number = int.from_bytes(digest, "big")
        characters: list[str] = []
        for _ in range(_ID_CHARACTERS):
            number, digit = divmod(number, len(_ID_ALPHABET))
            characters.append(_ID_ALPHABET[digit])
        return self.prefix + "".join(characters)


@dataclass(frozen=True, slots=True)
class ToolDiagnostics:
    """Counts of what the parser met; never the text.

    Attributes:
        undeclared: regions left as text because their name is no declared tool.
        malformed: regions left as text because their structure is none.
        repaired: calls with a missing closing tag supplied.
        duplicates: parameters dropped because their key came before.
        incomplete: calls the output ended in.
    """

    undeclared: int = 0
    malformed: int = 0
    repaired: int = 0
    duplicates: int = 0
    incomplete: int = 0


class ContentStream:
    """Content text in, deltas out; copied for a preview.

    Args:
        tools: declared tools by name; without any, markup is text.
        stops: strings that end the content.
        call_ids: names the calls.
        max_calls: complete calls that end the content; None is any number.

    Attributes:
        matched_stop: stop string that ended the content.
        num_complete: calls closed so far.
        diagnostics: see `ToolDiagnostics`.
    """

    def __init__(
        self,
        tools: Mapping[str, ToolSignature],
        stops: tuple[str, ...],
        call_ids: CallIds,
        max_calls: int | None = None,
    ) -> None:
        self.matched_stop: str | None = None
        self.num_complete = 0
        self.diagnostics = ToolDiagnostics()
        self._tools = tools
        self._matcher = StopMatcher(stops)
        self._call_ids = call_ids
        self._max_calls = max_calls
        self._num_started = 0
        self._text = ""  # may still open a region
        self._region: ToolRegion | None = None
        self._gap = ""  # white space behind a call
        self._is_in_gap = False
        self._breaks = ""  # line breaks that may be layout of the first call

    def copy(self) -> Self:
        """Get an independent stream in the same state."""
        twin = copy.copy(self)
        twin._region = self._region.copy() if self._region else None
        return twin

    @property
    def is_ended(self) -> bool:
        """Whether the content itself ended the output; what follows is dropped."""
        is_full = self._max_calls is not None and self.num_complete >= self._max_calls
        return is_full or self.matched_stop is not None

    def feed(self, text: str, deltas: list[OutputDelta]) -> None:
        """Read the next text; ``deltas`` receives what became final."""
        self._text += text
        goes_on = True
        while goes_on and not self.is_ended:
            goes_on = self._read_region(deltas) if self._region else self._read_text(deltas)

    def end(self, deltas: list[OutputDelta], *, is_turn_end: bool) -> None:
        """Release what is held; nothing follows.

        Args:
            deltas: receives what became final.
            is_turn_end: the model ended its turn, so that a missing last tag can be supplied.
        """
        if is_turn_end:
            self._finish_regions(deltas)
        if not self.is_ended:
            if self._region:
                self._say(self._region.unsaid, deltas)
                self._count(incomplete=int(self._region.is_started))
            self._say(self._text, deltas)
        if self.matched_stop is None:
            held, self._matcher = self._matcher.flush()
            self._emit_text(held, deltas)
            self._release_breaks(deltas)

    def _finish_regions(self, deltas: list[OutputDelta]) -> None:
        while self._region and not self.is_ended:
            region = self._region
            self._take_events(region, region.finish(), deltas)
            if self._region is region:
                return
            self.feed("", deltas)

    def _read_text(self, deltas: list[OutputDelta]) -> bool:
        """Read up to a region; whether there is one to read next."""
        place = self._text.find(REGION_OPENER) if self._tools else -1
        if place < 0:
            keep = _opener_overlap(self._text) if self._tools else 0
            cut = len(self._text) - keep
            text, self._text = self._text[:cut], self._text[cut:]
            self._say(text, deltas)
            return False
        text, rest = self._text[:place], self._text[place + len(REGION_OPENER) :]
        self._text = ""
        self._say(text, deltas)
        if self.matched_stop is None:
            self._region = ToolRegion(self._tools)
            self._text = rest
        return True

    def _read_region(self, deltas: list[OutputDelta]) -> bool:
        """Read inside a region; whether it ended and text goes on."""
        region = self._region
        if region is None:
            return False
        text, self._text = self._text, ""
        self._take_events(region, region.feed(text), deltas)
        return self._region is None

    def _take_events(
        self, region: ToolRegion, events: list[RegionEvent], deltas: list[OutputDelta]
    ) -> None:
        for event in events:
            match event:
                case RegionStart():
                    self._start_call(event.name, deltas)
                case RegionArguments():
                    deltas.append(ToolCallArguments(self._num_started - 1, event.fragment))
                case RegionText():
                    self._say(event.text, deltas)
        if region.phase is RegionPhase.BROKEN:
            self._region = None
            if not region.is_undeclared:
                self._count(malformed=1)
                self._say(REGION_OPENER, deltas)
        elif region.phase is RegionPhase.COMPLETE:
            self._region = None
            self._is_in_gap = self._is_in_gap or region.is_started
            self.num_complete += region.is_started
        else:
            return
        self._text = region.rest
        self._count(
            undeclared=int(region.is_undeclared),
            repaired=int(region.is_repaired),
            duplicates=region.num_duplicates,
        )

    def _start_call(self, name: str, deltas: list[OutputDelta]) -> None:
        held, self._matcher = self._matcher.flush()
        self._emit_text(held, deltas)
        self._breaks = self._gap = ""
        index = self._num_started
        self._num_started += 1
        deltas.append(ToolCallStart(index, self._call_ids.of(index), name))

    def _say(self, text: str, deltas: list[OutputDelta]) -> None:
        """Pass text of the content on, through the search for stop strings."""
        if self._is_in_gap:
            self._gap += text
            if self._gap.isspace() or not self._gap:
                return
            text, self._gap, self._is_in_gap = self._gap, "", False
        if not text or self.matched_stop is not None:
            return
        scan = self._matcher.feed(text)
        self._matcher = scan.next
        self._emit_text(scan.released, deltas)
        self.matched_stop = scan.matched
        if scan.matched is not None:
            self._release_breaks(deltas)

    def _emit_text(self, text: str, deltas: list[OutputDelta]) -> None:
        text = self._breaks + text
        kept = len(text)
        if self._tools and not self._num_started:
            kept = len(text.rstrip("\r\n"))
        self._breaks = text[kept:]
        if kept:
            deltas.append(TextDelta(Channel.CONTENT, text[:kept]))

    def _release_breaks(self, deltas: list[OutputDelta]) -> None:
        if self._breaks:
            deltas.append(TextDelta(Channel.CONTENT, self._breaks))
            self._breaks = ""

    def _count(self, **more: int) -> None:
        counts = {name: getattr(self.diagnostics, name) + count for name, count in more.items()}
        self.diagnostics = dataclasses.replace(self.diagnostics, **counts)


def _opener_overlap(text: str) -> int:
    """Length of the longest suffix that is a proper prefix of `REGION_OPENER`."""
    longest = min(len(text), len(REGION_OPENER) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(REGION_OPENER[:n])), 0)
