"""The spec of a queue: the messages it takes, and how consumers work on them.

The RFC's record holds the filter, the attempts, the retention of done messages, the bucket size and
the description. All other settings are in a companion record, written together with the RFC's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from fnmatch import translate
from functools import cached_property, lru_cache
from math import ceil
from typing import Any, Literal, Protocol, TypedDict, Unpack, get_type_hints

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from millstream.errors import InvalidInput, NotFound
from millstream.format.ids import CAPACITY_EXPONENT_MAX
from millstream.log.model.names import (
    NUMBER_MAX,
    PRIVATE,
    ROOM,
    check_name,
    check_text,
    did_you_mean,
)
from millstream.numbers import check_duration
from millstream.queue.model.backoff import Backoff
from millstream.record import Seconds, to_ms

ATTEMPTS_MAX = 65_535
SOURCES_MAX = 100
DESCRIPTION_CHARS_MAX = 1_000
DAY_S = 24 * 3600
LEASE_S_MAX = 7 * DAY_S
RETENTION_S_MAX = 2**32 - 1
DELAY_MS_MAX = 10 * 366 * DAY_S * 1000
KEY = "_key"
"""In place of a header's name: the record's key."""
PRIORITY_MAX = 9
PRIORITY_STEP_S_MAX = 30 * DAY_S
DEDUP_WINDOW_S_MAX = 7 * DAY_S
IN_FLIGHT_MAX = 10_000_000
STARTS = ("latest", "earliest")
ROUTERS = ("", "spark")
HOLDS = {
    "": frozenset[str](),
    "waiting": frozenset(("available", "delayed")),
    "running": frozenset(("available", "delayed", "in_flight")),
}
"""The states in which a message holds its dedup id, by the short values of `dedup_while`."""
SOURCES_FEW = 4
"""The most named logs that a claim can check without measurable cost."""

RATE_MIN, RATE_MAX = 1e-6, 1e9


class QueueSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """All settings of a queue. `sources` are names of logs or patterns with `*` and `?`."""

    sources: tuple[str, ...] = ()
    filter: str = ""
    start: str | int = "latest"
    """Where routing begins in a log that exists already: 'latest', 'earliest', or an offset."""
    start_ms: int | None = None
    """Instead of `start`: with the first record appended at or after this time."""
    max_attempts: int = 5
    lease: float = 30.0
    """How long a claim holds, in seconds, if the consumer does not say."""
    lease_max: float = 12 * 3600.0
    """The longest lease that a consumer may ask for, in seconds."""
    backoff: Backoff = field(default_factory=Backoff)
    delay: float = 0.0
    """The number of seconds before a new message can be claimed."""
    priority_by: str = ""
    """The header that holds a message's priority, 0 to 9; the higher, the sooner."""
    priority_step: float = 60.0
    """The seconds of waiting that one priority level is worth; this keeps messages of low priority from starving."""
    group_by: str = ""
    """The header that names a message's group, or `_key`."""
    group_in_flight: int = 1
    """The most messages of a group in flight: 1 keeps the group's order, 0 is unlimited and fair.
    """
    group_order: bool = True
    """Whether a group with one message in flight keeps its order. Without the order, a message that
    waits for its retry or its due time holds up no other message of its group.
    """
    group_rate: float = 0.0
    """Claims per second of one group; 0 is any number."""
    group_burst: int = 0
    """The most claims of one group at once after a pause; 0: the claims of one second, at least one.
    """
    max_in_flight: int = 0
    rate: float = 0.0
    """Claims per second of the whole queue; 0 is any number."""
    burst: int = 0
    """The most claims at once after a pause; 0: the claims of one second, at least one."""
    dedup_by: str = ""
    """The header, or `_key`, by which a repeat of a message is recognised."""
    dedup_window: float = 300.0
    """The number of seconds for which a repeat is dropped."""
    dedup_while: str = ""
    """Instead of the window: a repeat is dropped while the message before it is 'waiting', or is
    waiting or 'running'; or is in one of the named states, as in 'delayed,in_flight'.
    """
    done_retention: float = 7.0 * DAY_S
    """How long done messages are remembered, in seconds; 0: unlimited."""
    keep_payloads: bool = False
    """Whether the payloads of done messages are kept as long as the messages."""
    bucket_exponent: int = 3
    dead_letter: str = ""
    """A log to which failed messages are published as well."""
    changes: str = ""
    """A log to which each change of a message's state is appended, in the same commit."""
    lossy: bool = False
    """Whether a log may delete records before this queue has routed them; lost records are counted.
    """
    description: str = ""
    router: str = ""
    """Who routes: '' for the queue itself; 'spark' has messages assigned by a pipeline."""

    def check(self) -> None:
        """Refuse values outside their ranges, before anything is stored."""
        if len(self.sources) > SOURCES_MAX:
            raise InvalidInput(
                f"sources: a queue has at most {SOURCES_MAX} sources, got {len(self.sources)}"
            )
        for source in self.sources:
            check_name(source, "source")
        if self.filter:
            from millstream.filters import parse  # only queues with a filter pay for its parser

            parse(self.filter)
        is_offset = isinstance(self.start, int) and 0 <= self.start <= NUMBER_MAX
        if not is_offset and self.start not in STARTS:
            raise InvalidInput(
                f"start is 'latest', 'earliest' or an offset from 0 to 2^63 - 1, not {self.start!r}"
            )
        if self.dead_letter:
            check_name(self.dead_letter, "dead-letter log")
        if self.changes:
            check_name(self.changes, "log of changes")
            if self.changes.startswith(PRIVATE) or self.changes == self.dead_letter:
                raise InvalidInput(
                    f"changes names a log of its own, which is neither {self.changes!r} nor a log of a "
                    "queue, a room or the store"
                )
        if len(self.description) > DESCRIPTION_CHARS_MAX:
            raise InvalidInput(
                f"description: it has at most {DESCRIPTION_CHARS_MAX} characters, "
                f"got {len(self.description)}"
            )
        if self.router not in ROUTERS:
            raise InvalidInput(f"router is 'spark', or '' for none, not {self.router!r}")
        if not (self.dedup_while in HOLDS or self.holding_states <= HOLDS["running"]):
            raise InvalidInput(
                "dedup_while is 'waiting', 'running', states of 'available', 'delayed' and 'in_flight' "
                f"with commas between them, or '' for the window, not {self.dedup_while!r}"
            )
        self.backoff.check()
        _within("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        _within_s("lease_max", self.lease_max, 0.001, LEASE_S_MAX)
        _within_s("lease", self.lease, 0.001, self.lease_max)
        _within_s("delay", self.delay, 0, DELAY_MS_MAX / 1000)
        for name in ("priority_by", "group_by", "dedup_by"):
            check_text(name, getattr(self, name))
        _within_s("priority_step", self.priority_step, 0.001, PRIORITY_STEP_S_MAX)
        _within("group_in_flight", self.group_in_flight, 0, IN_FLIGHT_MAX)
        _within("max_in_flight", self.max_in_flight, 0, IN_FLIGHT_MAX)
        _within("burst", self.burst, 0, IN_FLIGHT_MAX)
        _within("group_burst", self.group_burst, 0, IN_FLIGHT_MAX)
        _within_s("dedup_window", self.dedup_window, 0.001, DEDUP_WINDOW_S_MAX)
        for name in ("rate", "group_rate"):
            if getattr(self, name):
                _within_rate(name, getattr(self, name))
        if self.priority_by == KEY:
            raise InvalidInput(f"priority_by is the name of a header, not the key ({KEY!r})")
        _within_s("done_retention", self.done_retention, 0, RETENTION_S_MAX)
        _within("bucket_exponent", self.bucket_exponent, 0, CAPACITY_EXPONENT_MAX)

    @cached_property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return to_ms(self.lease)

    @cached_property
    def lease_max_ms(self) -> int:
        """The longest lease."""
        return to_ms(self.lease_max)

    @cached_property
    def delay_ms(self) -> int:
        """The delay of each new message, in milliseconds."""
        return to_ms(self.delay)

    @cached_property
    def priority_step_ms(self) -> int:
        """The waiting time that one priority level is worth, in milliseconds."""
        return to_ms(self.priority_step)

    @cached_property
    def dedup_window_ms(self) -> int:
        """How long a repeat is dropped, in milliseconds."""
        return to_ms(self.dedup_window)

    @cached_property
    def done_retention_s(self) -> int:
        """How long done messages are remembered, in whole seconds."""
        return ceil(self.done_retention)

    @cached_property
    def holding_states(self) -> frozenset[str]:
        """The states in which a message keeps its repeats away; empty: the window decides."""
        states = HOLDS.get(self.dedup_while)
        return frozenset(self.dedup_while.split(",")) if states is None else states

    @property
    def ordered(self) -> bool:
        """Whether a group's messages are handed out in order, one at a time."""
        return bool(self.group_by) and self.group_in_flight == 1 and self.group_order

    @cached_property
    def is_plain(self) -> bool:
        """Return whether the queue is plain: claimed in number order, without any cap or log of
        changes.
        """
        return not (self.indexed or self.max_in_flight or self.rate or self.changes)

    @cached_property
    def takes_all(self) -> bool:
        """Return whether every record of a few named logs is a message, claimed in number order."""
        chooses = self.filter or self.dedup_by or self.router or self.indexed or self.changes
        named = not any("*" in source or "?" in source for source in self.sources)
        return not chooses and named and len(self.sources) <= SOURCES_FEW

    @property
    def indexed(self) -> bool:
        """Return whether claims choose messages by an index (group, priority, due time), not by number.

        Such a queue routes every message, because only routing fills the index.
        """
        return bool(self.group_by or self.priority_by or self.delay_ms)

    @property
    def passes(self) -> bool:
        """Return whether messages of groups wait in a lane, where a claim passes over blocked
        groups.

        Queues with priorities do this only without `group_order`: otherwise a group keeps the order
        of its log, whatever the priority.
        """
        return bool(self.group_by) and not (self.priority_by and self.group_order)

    @property
    def in_order(self) -> bool:
        """Return whether messages of several logs are placed in the order of their appends."""
        return self.indexed or bool(self.dedup_by)

    @property
    def looks_at_headers(self) -> bool:
        """Return whether messages need a routing mark from their key or headers; a filter is asked
        separately."""
        return bool(self.group_by or self.priority_by or self.dedup_by)

    def lease_for(self, lease_ms: int | None) -> int:
        """Return the requested lease up to the queue's longest, or the queue's default lease."""
        if lease_ms is None:
            return self.lease_ms
        if lease_ms < 1:
            raise InvalidInput(f"lease must be positive, got {lease_ms} ms")
        return min(lease_ms, self.lease_max_ms)

    def takes_from(self, log: str) -> bool:
        """Return whether a log is a source. A room's log is a source only if a pattern names rooms."""
        of_room = log.startswith(ROOM)
        return any(
            _pattern(source).match(log) is not None
            for source in self.sources
            if not of_room or source.startswith(ROOM)
        )


DedupWhile = Literal[
    "",
    "waiting",
    "running",
    "available",
    "delayed",
    "in_flight",
    "available,in_flight",
    "delayed,in_flight",
]
"""The states in which a message keeps its repeats away; "": within the window."""


class Named(Protocol):
    """A log or a queue of any surface, given where its name is wanted."""

    name: str


class QueueSettings(TypedDict, total=False):
    """The settings of a queue as callers may write them."""

    sources: str | Named | Iterable[str | Named]
    filter: str
    start: Literal["latest", "earliest"] | int
    start_ms: int | None
    max_attempts: int
    lease: Seconds
    lease_max: Seconds
    backoff: Backoff | Seconds | Sequence[Seconds]
    delay: Seconds
    priority_by: str
    priority_step: Seconds
    group_by: str
    group_in_flight: int
    group_order: bool
    group_rate: float
    group_burst: int
    max_in_flight: int
    rate: float
    burst: int
    dedup_by: str
    dedup_window: Seconds
    dedup_while: DedupWhile
    done_retention: Seconds
    keep_payloads: bool
    bucket_exponent: int
    dead_letter: str | Named
    changes: str | Named
    lossy: bool
    description: str
    router: Literal["", "spark"]


_HINTS = get_type_hints(QueueSpec)
_DURATIONS = {name for name, said in get_type_hints(QueueSettings).items() if said == Seconds}


def spec_of(**settings: Unpack[QueueSettings]) -> QueueSpec:
    """Return the spec for a caller's settings; missing settings have their defaults."""
    return altered(QueueSpec(), settings)


def altered(spec: QueueSpec, settings: Mapping[str, Any]) -> QueueSpec:
    """Return a spec with changed settings; an error names the wrong setting."""
    fields = {name: _field_of(name, value) for name, value in settings.items()}
    if "lease_max" not in fields and fields.get("lease", 0) > spec.lease_max:
        fields["lease_max"] = fields["lease"]
    return replace(spec, **fields)


def _field_of(name: str, value: Any) -> Any:
    """Return the value of a field, converted from a caller's setting."""
    if name not in _HINTS:
        raise InvalidInput(f"a queue has no setting {name!r}{did_you_mean(name, _HINTS)}")
    if name in _DURATIONS:
        return _seconds(name, value)
    if name == "sources":
        sources: Any = [value] if isinstance(value, str) or hasattr(value, "name") else value
        if not isinstance(sources, Iterable):
            raise InvalidInput(f"sources are names of logs, or logs, not {value!r:.100}")
        return tuple(check_name(_name_of(entry), "source") for entry in sources)
    if name == "backoff" and not isinstance(value, Backoff):
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            waits = tuple(_seconds(name, entry) for entry in value)
            return Backoff(kind="list", waits=waits, jitter=0.0)
        return Backoff(kind="fixed", first=_seconds(name, value), jitter=0.0)
    if name in ("dead_letter", "changes"):
        value = _name_of(value)
    try:
        return convert(value, _HINTS[name])
    except ValidationError as error:
        text = str(error)
        raise InvalidInput(f"{name}: {text[:1].lower()}{text[1:]}: {value!r:.100}") from None


def _name_of(log: Any) -> Any:
    """Return the name of a log handle, or the value itself."""
    return getattr(log, "name", log)


def _seconds(name: str, value: Any) -> float:
    check_duration(name, value)
    return float(value.total_seconds() if isinstance(value, timedelta) else value)


def lease_ms_of(lease: Seconds | None) -> int | None:
    """Return a consumer's lease in milliseconds; None stands for the queue's default.

    A lease of 0 is refused: other consumers could claim the message before this consumer has it.
    """
    if lease is None:
        return None
    lease_ms = to_ms(lease, "lease")
    if lease_ms < 1:
        raise InvalidInput(f"lease must be positive, got {lease_ms} ms")
    return lease_ms


def no_queue(name: str) -> NotFound:
    """Return the error for a missing queue, with the way to make it."""
    return NotFound(
        f"there is no queue {name!r}; make it first: `ms.create_queue({name!r})`, or "
        f"`millstream queue create` on the command line",
        name=name,
    )


@lru_cache(maxsize=1_024)
def _pattern(source: str) -> re.Pattern[str]:
    """Return a source pattern as a regular expression; brackets stand for themselves."""
    return re.compile(translate(source.replace("[", "[[]")))


def _within_s(name: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:
        raise InvalidInput(f"{name} is from {minimum:,} to {maximum:,} seconds, not {value:,}")


def _within_rate(name: str, value: float) -> None:
    if not RATE_MIN <= value <= RATE_MAX:
        raise InvalidInput(
            f"{name} is from {RATE_MIN:f} to {RATE_MAX:,.0f} claims per second, or 0 for any number, "
            f"not {value:,}"
        )


def _within(name: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:
        raise InvalidInput(f"{name} is from {minimum:,} to {maximum:,}, not {value:,}")
