"""Order: which waiting request may be tried next, and which model unit runs next.

Both decisions are pure functions of a frozen snapshot. The scheduler reads no checkpoint, no victim
list, no resource amount: a backfill proof is Program's, a verdict is the planner's. First come,
first tried; resources never change that order. Source: system design, section 5, "Scheduler".
"""

import enum
from dataclasses import dataclass
from typing import Final

from ninfer.engine.request import RequestOrder


class UnitKind(enum.Enum):
    """Kinds of model units."""

    PREFILL = enum.auto()
    CONTROL = enum.auto()
    DECODE = enum.auto()


@dataclass(frozen=True, slots=True)
class PrefillUnit:
    """The next chunk of the staged request.

    Attributes:
        is_alone: nobody else is ready, so that nobody waits for the end of the chunk.
    """

    order: RequestOrder
    is_alone: bool = True


@dataclass(frozen=True, slots=True)
class ControlUnit:
    """A forced suffix of one request."""

    order: RequestOrder


@dataclass(frozen=True, slots=True)
class DecodeUnit:
    """One compact round."""

    orders: tuple[RequestOrder, ...]


@dataclass(frozen=True, slots=True)
class NoUnit:
    """Nothing to run."""


Unit = PrefillUnit | ControlUnit | DecodeUnit | NoUnit


@dataclass(frozen=True, slots=True)
class UnitSnapshot:
    """Active requests by what they are ready for, each in publication order.

    Attributes:
        last: kind of the unit that ran before.
    """

    prefill: RequestOrder | None
    control: tuple[RequestOrder, ...]
    decode: tuple[RequestOrder, ...]
    last: UnitKind | None


_ROTATION: Final = (UnitKind.PREFILL, UnitKind.CONTROL, UnitKind.DECODE)


def choose_unit(snapshot: UnitSnapshot) -> Unit:
    """Take the first possible kind after the last one in the rotation.

    Each kind that stays possible therefore runs at least once in any three units in a row: staged
    prefill cannot starve ready decode work, and decode cannot starve prefill.
    """
    start = 0 if snapshot.last is None else _ROTATION.index(snapshot.last) + 1
    for kind in _ROTATION[start:] + _ROTATION[:start]:
        match kind:
            case UnitKind.PREFILL if snapshot.prefill is not None:
                is_alone = not (snapshot.control or snapshot.decode)
                return PrefillUnit(snapshot.prefill, is_alone)
            case UnitKind.CONTROL if snapshot.control:
                return ControlUnit(snapshot.control[0])
            case UnitKind.DECODE if snapshot.decode:
                return DecodeUnit(snapshot.decode)
            case UnitKind.PREFILL | UnitKind.CONTROL | UnitKind.DECODE:
                continue
    return NoUnit()


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Everything that can change the answer to an admission attempt.

    Attributes:
        revision: Program's resource revision.
        head: first waiting request.
        donors: active requests that must end before the protected head can enter.
    """

    revision: int
    head: RequestOrder
    donors: frozenset[RequestOrder]


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A waiting request and the facts under which it was last tried in vain."""

    order: RequestOrder
    tried: AdmissionFacts | None


@dataclass(frozen=True, slots=True)
class AdmissionSnapshot:
    """What decides whether, and whom, to try.

    Attributes:
        waiting: first come first.
        revision: Program's resource revision.
        has_free_lane: a new request would find a lane.
        has_transition: a resource transition is unsettled.
        has_staged_request: a request is materializing or in prefill.
        protected: the blocked head that backfill must not delay, if it is known to be blocked.
        donors: active requests that must end before it can enter.
    """

    waiting: tuple[WaitingView, ...]
    revision: int
    has_free_lane: bool
    has_transition: bool
    has_staged_request: bool
    protected: RequestOrder | None
    donors: frozenset[RequestOrder]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The one request to try now, and the facts that its answer depends on."""

    order: RequestOrder
    is_backfill: bool
    facts: AdmissionFacts


def choose_attempt(snapshot: AdmissionSnapshot) -> Attempt | None:
    """The head unless it is known to be blocked, then the first later request not yet tried.

    None means that nothing that could change an answer has changed since the last attempts.
    """
    is_gate_open = snapshot.has_free_lane and not (
        snapshot.has_transition or snapshot.has_staged_request
    )
    if not snapshot.waiting or not is_gate_open:
        return None
    head = snapshot.waiting[0]
    is_protected = snapshot.protected == head.order
    facts = AdmissionFacts(
        snapshot.revision, head.order, snapshot.donors if is_protected else frozenset()
    )
    if not is_protected or head.tried != facts:
        return Attempt(head.order, False, facts)
    for view in snapshot.waiting[1:]:
        if view.tried != facts:
            return Attempt(view.order, True, facts)
    return None


class Scheduler:
    """What has to be remembered between two decisions."""

    def __init__(self) -> None:
        self._last: UnitKind | None = None
        self._protected: RequestOrder | None = None
        self._donors: frozenset[RequestOrder] = frozenset()
        self._tried: dict[RequestOrder, AdmissionFacts] = {}

    @property
    def last_unit(self) -> UnitKind | None:
        """Kind of the newest unit."""
        return self._last

    @property
    def protected(self) -> RequestOrder | None:
        """The blocked head."""
        return self._protected

    @property
    def donors(self) -> frozenset[RequestOrder]:
        """Requests that must end before the protected head can enter."""
        return self._donors

    def note_unit(self, unit: Unit) -> None:
        """Remember which kind ran."""
        match unit:
            case PrefillUnit():
                self._last = UnitKind.PREFILL
            case ControlUnit():
                self._last = UnitKind.CONTROL
            case DecodeUnit():
                self._last = UnitKind.DECODE
            case NoUnit():
                pass

    def protect(self, head: RequestOrder, active: frozenset[RequestOrder]) -> None:
        """Protect a blocked head; its donors are fixed the first time and only get fewer."""
        if self._protected != head:
            self._protected = head
            self._donors = active

    def tried(self, order: RequestOrder) -> AdmissionFacts | None:
        """Facts under which a waiting request was last tried in vain."""
        return self._tried.get(order)

    def note_tried(self, order: RequestOrder, head: RequestOrder, revision: int) -> None:
        """A request was tried in vain; it is not tried again under the same facts."""
        self._tried[order] = AdmissionFacts(revision, head, self._donors)

    def note_settled(self, order: RequestOrder) -> None:
        """A request gave its resources back."""
        self._donors -= {order}

    def note_left_queue(self, order: RequestOrder) -> None:
        """A request is no longer waiting."""
        self._tried.pop(order, None)
        if self._protected == order:
            self._protected = None
            self._donors = frozenset()
