"""The spec of a queue: which messages it takes, and how they are worked on.

The RFC's record holds the filter, the attempts, the retention of what is done, the bucket size and
the description; everything else stands in a companion record that is written with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from millstream.errors import InvalidInput, NotFound
from millstream.format.ids import CAPACITY_EXPONENT_MAX
from millstream.log.names import check_name, check_text
from millstream.queue.model.backoff import Backoff
from millstream.record import Seconds, to_ms

ATTEMPTS_MAX = 65_535
SOURCES_MAX = 100
DESCRIPTION_CHARS_MAX = 1_000
DAY_S = 24 * 3600
LEASE_MS_MAX = 7 * DAY_S * 1000
RETENTION_S_MAX = 2**32 - 1
DELAY_MS_MAX = 10 * 366 * DAY_S * 1000
KEY = "_key"
"""In place of a header's name: the record's key."""
PRIORITY_MAX = 9
PRIORITY_STEP_MS_MAX = 30 * DAY_S * 1000
DEDUP_WINDOW_MS_MAX = 7 * DAY_S * 1000
IN_FLIGHT_MAX = 10_000_000
ROUTERS = ("", "spark")
RATE_MIN, RATE_MAX = 1e-6, 1e9


class QueueSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """What a queue is. `sources` are names of logs or patterns with `*` and `?`."""

    sources: tuple[str, ...] = ()
    filter: str = ""
    start: str | int = "latest"
    """Where routing begins in a log that exists already: 'latest', 'earliest', or an offset."""
    start_ms: int | None = None
    """Instead of `start`: with the first record appended at or after this time."""
    max_attempts: int = 5
    lease_ms: int = 30_000
    lease_max_ms: int = 12 * 3600 * 1000
    backoff: Backoff = field(default_factory=Backoff)
    delay_ms: int = 0
    priority_by: str = ""
    """The header that holds a message's priority, 0 to 9; the higher, the sooner."""
    priority_step_ms: int = 60_000
    """One level of priority is worth so much waiting, so that no message starves."""
    group_by: str = ""
    """The header that names a message's group, or `_key`."""
    group_in_flight: int = 1
    """How many of a group may be in flight: 1 keeps its order, 0 is any number, shared fairly."""
    group_rate: float = 0.0
    """Claims per second of one group; 0 is any number."""
    max_in_flight: int = 0
    rate: float = 0.0
    """Claims per second of the whole queue; 0 is any number."""
    dedup_by: str = ""
    """The header, or `_key`, by which a message is known to be a repeat."""
    dedup_window_ms: int = 5 * 60 * 1000
    done_retention_s: int = 7 * DAY_S
    keep_payloads: bool = False
    """Whether the payloads of done messages are kept as long as these are."""
    bucket_exponent: int = 3
    dead_letter: str = ""
    """A log to which failed messages are published as well."""
    lossy: bool = False
    """Whether a log may forget records before this queue has looked at them; they are counted."""
    description: str = ""
    router: str = ""
    """Who routes: '' for the queue itself; 'spark' has messages assigned by a pipeline."""

    def check(self) -> None:
        """Refuse values outside their ranges, before anything is stored."""
        if len(self.sources) > SOURCES_MAX:
            raise InvalidInput(
                f"a queue has at most {SOURCES_MAX} sources, got {len(self.sources)}"
            )
        for source in self.sources:
            check_name(source, "source")
        if self.filter:
            from millstream.filters import parse  # only queues with a filter pay for its parser

            parse(self.filter)
        if isinstance(self.start, str) and self.start not in ("latest", "earliest"):
            raise InvalidInput(
                f"a queue starts at 'latest', 'earliest' or an offset, not {self.start!r}"
            )
        if self.dead_letter:
            check_name(self.dead_letter, "dead-letter log")
        if len(self.description) > DESCRIPTION_CHARS_MAX:
            raise InvalidInput(
                f"a description has at most {DESCRIPTION_CHARS_MAX} characters, "
                f"got {len(self.description)}"
            )
        if self.router not in ROUTERS:
            raise InvalidInput(f"a router is 'spark', or '' for none, not {self.router!r}")
        self.backoff.check()
        _within("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        _within("lease_max_ms", self.lease_max_ms, 1, LEASE_MS_MAX)
        _within("lease_ms", self.lease_ms, 1, self.lease_max_ms)
        _within("delay_ms", self.delay_ms, 0, DELAY_MS_MAX)
        for name in ("priority_by", "group_by", "dedup_by"):
            check_text(name, getattr(self, name))
        _within("priority_step_ms", self.priority_step_ms, 1, PRIORITY_STEP_MS_MAX)
        _within("group_in_flight", self.group_in_flight, 0, IN_FLIGHT_MAX)
        _within("max_in_flight", self.max_in_flight, 0, IN_FLIGHT_MAX)
        _within("dedup_window_ms", self.dedup_window_ms, 1, DEDUP_WINDOW_MS_MAX)
        for name in ("rate", "group_rate"):
            if getattr(self, name):
                _within(name, getattr(self, name), RATE_MIN, RATE_MAX)
        if self.priority_by == KEY:
            raise InvalidInput("a priority is an integer in a header, not the key")
        _within("done_retention_s", self.done_retention_s, 0, RETENTION_S_MAX)
        _within("bucket_exponent", self.bucket_exponent, 0, CAPACITY_EXPONENT_MAX)

    @property
    def ordered(self) -> bool:
        """Whether a group's messages are handed out in order, one at a time."""
        return bool(self.group_by) and self.group_in_flight == 1

    @cached_property
    def simple(self) -> bool:
        """Whether messages are claimed in their turn, without any cap."""
        return not (self.indexed or self.max_in_flight or self.rate)

    @property
    def indexed(self) -> bool:
        """Whether messages are chosen by more than their turn: then all of them are routed."""
        return bool(self.group_by or self.priority_by or self.delay_ms)

    @property
    def in_order(self) -> bool:
        """Whether messages of several logs are placed in the order in which they were appended."""
        return self.indexed or bool(self.dedup_by)

    @property
    def looks_at_headers(self) -> bool:
        """Whether routing needs to know more of a message than that it matches."""
        return bool(self.group_by or self.priority_by or self.dedup_by)

    def lease_for(self, asked_ms: int | None) -> int:
        """What a consumer asked for, up to the queue's most; or the queue's own."""
        if asked_ms is None:
            return self.lease_ms
        if asked_ms < 1:
            raise InvalidInput(f"lease must be positive, got {asked_ms} ms")
        return min(asked_ms, self.lease_max_ms)

    def takes_from(self, log: str) -> bool:
        """Whether a log is one of its sources."""
        return any(_pattern(source).match(log) is not None for source in self.sources)


def spec_of(
    *,
    sources: str | Iterable[str] = (),
    backoff: Backoff | Seconds | Sequence[Seconds] | None = None,
    done_retention: Seconds = 7 * DAY_S,
    **settings: Any,
) -> QueueSpec:
    """A spec from what users say: durations in seconds, one source or several.

    The other settings are fields of `QueueSpec`, with `lease` for `lease_ms` and so on.
    """
    said: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise TypeError(f"a queue has no setting {name!r}; docs/QUEUES.md lists them")
        said[_SETTINGS[name]] = to_ms(value) if name in _DURATIONS else value
    if backoff is None:
        backoff = Backoff()
    elif isinstance(backoff, Sequence):
        waits = tuple(to_ms(one) for one in backoff)
        backoff = Backoff(kind="list", waits_ms=waits, jitter=0.0)
    elif not isinstance(backoff, Backoff):
        backoff = Backoff(kind="fixed", first_ms=to_ms(backoff), jitter=0.0)
    spec = QueueSpec(
        sources=(sources,) if isinstance(sources, str) else tuple(sources),
        backoff=backoff,
        done_retention_s=-(-to_ms(done_retention) // 1000),
        **said,
    )
    return replace(spec, lease_max_ms=max(spec.lease_max_ms, spec.lease_ms))


_DURATIONS = {"lease", "lease_max", "delay", "priority_step", "dedup_window"}
_SETTINGS = {one: one for one in QueueSpec.__struct_fields__ if one != "done_retention_s"}
for _name in _DURATIONS:
    _SETTINGS[_name] = _SETTINGS.pop(f"{_name}_ms")
"""What users say, and the field that it is."""


def no_queue(name: str) -> NotFound:
    """What is said of a queue that is not there, and how it is made."""
    return NotFound(
        f"there is no queue {name!r}; make it first: `ms.create_queue({name!r})`, or "
        f"`millstream queue create` on the command line",
        name=name,
    )


@lru_cache(maxsize=1_024)
def _pattern(source: str) -> re.Pattern[str]:
    """A source as an expression; brackets mean themselves."""
    return re.compile(translate(source.replace("[", "[[]")))


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidInput(f"{name} is from {least:,} to {most:,}, not {value:,}")
