r"""Text that remembers which of its characters a chat template wrote itself.

A rendered prompt mixes the template's literals with strings of the caller. Control tokens may come
only from the former. Literals therefore enter rendering as `MarkedText`, strings of the caller as
plain ``str``, and every operation templates use keeps the marks: joining, slicing, splitting,
stripping, replacing. An operation that is not listed here returns a plain string, so that a lost
mark makes a control token ordinary text, never the other way round.

    '<|im_start|>user\n' + 'what is <|im_end|>?' + '<|im_end|>\n'
     ~~~~~~~~~~~~~~~~~~~     plain: not marked      ~~~~~~~~~~~~~~

Knows no tokens and no template language.
"""

import bisect
import operator
from collections.abc import Iterable, Iterator
from typing import Any, Self, SupportsIndex

Span = tuple[int, int]


class MarkedText(str):
    """A string with ascending, disjoint, non-touching spans of marked characters."""

    __slots__ = ("spans",)

    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Iterable[Span] | None = None) -> Self:
        """Mark ``spans`` of a text, or all of it."""
        self = super().__new__(cls, text)
        self.spans = _merged([(0, len(text))] if spans is None else spans)
        return self

    def is_marked(self, start: int, end: int) -> bool:
        """Whether every character of the non-empty ``[start, end)`` is marked."""
        index = bisect.bisect_right(self.spans, start, key=operator.itemgetter(0)) - 1
        return index >= 0 and end <= self.spans[index][1]

    def _cut(self, start: int, end: int) -> "MarkedText":
        spans: list[Span] = []
        index = bisect.bisect_right(self.spans, start, key=operator.itemgetter(1))
        while index < len(self.spans) and self.spans[index][0] < end:
            first, last = self.spans[index]
            spans.append((max(first, start) - start, min(last, end) - start))
            index += 1
        return MarkedText(str.__getitem__(self, slice(start, end)), spans)

    def _words(self, words: Iterable[str]) -> list[str]:
        cut: list[str] = []
        place = 0
        for word in words:
            place = str.index(self, word, place)
            cut.append(self._cut(place, place + len(word)))
            place += len(word)
        return cut

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return join_marked((self, other))

    def __radd__(self, other: str) -> str:
        return join_marked((other, self))

    def __mul__(self, count: SupportsIndex) -> str:
        if _is_all_marked(self):
            return MarkedText(str.__mul__(self, count))
        return join_marked([self] * count.__index__())

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            index = range(len(self))[key.__index__()]
            return self._cut(index, index + 1)
        start, stop, step = key.indices(len(self))
        if step != 1:
            return str.__getitem__(self, key)
        return self._cut(start, max(start, stop))

    def __iter__(self) -> Iterator[str]:
        return (self._cut(index, index + 1) for index in range(len(self)))

    def join(self, parts: Iterable[str], /) -> str:
        """Join with this text between the parts."""
        joined: list[str] = []
        for part in parts:
            if joined:
                joined.append(self)
            joined.append(part)
        return join_marked(joined)

    def strip(self, chars: str | None = None, /) -> str:
        """Strip both ends."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        """Strip the left end."""
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """Strip the right end."""
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        """Remove a prefix when it is there."""
        return self._cut(len(prefix) if str.startswith(self, prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """Remove a suffix when it is there."""
        has_suffix = bool(suffix) and str.endswith(self, suffix)
        return self._cut(0, len(self) - len(suffix) if has_suffix else len(self))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split from the left."""
        return self._separated(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split from the right."""
        return self._separated(str.rsplit(self, sep, maxsplit), sep)

    def _separated(self, parts: list[str], sep: str | None) -> list[str]:
        if sep is None:
            return self._words(parts)
        cut: list[str] = []
        place = 0
        for part in parts:
            cut.append(self._cut(place, place + len(part)))
            place += len(part) + len(sep)
        return cut

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Split at line ends."""
        cut: list[str] = []
        place = 0
        for line in str.splitlines(self, keepends=True):
            text = str.splitlines(line, keepends)[0]
            cut.append(self._cut(place, place + len(text)))
            place += len(line)
        return cut

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Split at the first separator."""
        return self._three(str.find(self, sep), sep, is_left=True)

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Split at the last separator."""
        return self._three(str.rfind(self, sep), sep, is_left=False)

    def _three(self, place: int, sep: str, *, is_left: bool) -> tuple[str, str, str]:
        if not sep:
            raise ValueError("empty separator")
        if place < 0:
            return (self, "", "") if is_left else ("", "", self)
        behind = place + len(sep)
        return self._cut(0, place), self._cut(place, behind), self._cut(behind, len(self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """Replace occurrences; the replacement brings its own marks."""
        return replace_marked(self, old, new, count.__index__())

    def __format__(self, spec: str) -> str:
        return str.__format__(self, spec) if spec else self

    def __reduce__(self) -> tuple[Any, ...]:
        return MarkedText, (str.__str__(self), self.spans)


def plain_text(text: str) -> str:
    """Get the same characters without marks."""
    return str.__str__(text)


def join_marked(parts: Iterable[str]) -> str:
    """Concatenate strings of both kinds; the counterpart of ``"".join``."""
    texts: list[str] = []
    spans: list[Span] = []
    place = 0
    for part in parts:
        if isinstance(part, MarkedText):
            spans += [(first + place, last + place) for first, last in part.spans]
        texts.append(part)
        place += len(part)
    text = "".join(texts)
    return MarkedText(text, spans) if spans else text


def replace_marked(text: str, old: str, new: str, count: int = -1) -> str:
    """``text.replace(old, new, count)`` that keeps the marks of all three."""
    if not any(isinstance(part, MarkedText) and part.spans for part in (text, new)):
        return str.replace(text, old, new, count)
    if _is_all_marked(text) and (not new or _is_all_marked(new)):
        return MarkedText(str.replace(text, old, new, count))
    source = text if isinstance(text, MarkedText) else MarkedText(text, ())
    joined: list[str] = []
    place = 0
    found = str.find(source, old)
    while found >= 0 and count != 0:
        joined += [source._cut(place, found), new]
        place = found + len(old)
        found = str.find(source, old, place + (not old))
        count -= 1
    return join_marked([*joined, source._cut(place, len(source))])


def _is_all_marked(text: str) -> bool:
    return isinstance(text, MarkedText) and text.spans == ((0, len(text)),)


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for first, last in spans:
        if first >= last:
            continue
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)
