"""The settings of a room: how long it keeps messages, what it retains, and limits for clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, TypedDict, get_type_hints

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.limits import KiB, MiB
from millstream.log.model.names import did_you_mean
from millstream.record import Seconds, to_ms
from millstream.rooms.names import JOINED, LEFT, RESERVED_TYPES, check_type

TYPES_MAX = 100
"""Types in a setting."""

TTL_S_MAX = 10 * 366 * 24 * 3600
TICK_S_MIN, TICK_S_MAX = 0.001, 60.0
BYTES_MAX = 16 * MiB


class RoomSettings(Struct, frozen=True, kw_only=True, dict=True):
    """The settings of a room. Durations are seconds."""

    ttl: float = 60.0
    """How long a message can be read again, in seconds; 0: unlimited."""
    conflated: tuple[str, ...] = ("pointer", "cursor")
    """Types of which, within one tick, only the latest message of each sender counts."""
    tick: float = 0.05
    """How long messages of these types are collected, in seconds."""
    retained: tuple[str, ...] = ()
    """Types whose latest value of each key is kept until it is deleted."""
    priority: tuple[str, ...] = ("pointer", "cursor", JOINED, LEFT)
    """Types that overtake others on the way to a slow listener."""
    messages_per_second: float = 200.0
    """How many messages one connection may send; 0: unlimited."""
    message_bytes_max: int = 64 * KiB
    """How large the data of one message may be."""
    waiting_bytes_max: int = MiB
    """How much may wait for one slow listener before it is told of a gap."""

    def check(self) -> None:
        """Refuse values outside their ranges, before anything is stored."""
        if self.ttl:
            _within("ttl", self.ttl, 0.001, TTL_S_MAX, "seconds, or 0 for no end")
        _within("tick", self.tick, TICK_S_MIN, TICK_S_MAX)
        _within("messages_per_second", self.messages_per_second, 0, 1e9)
        _within("message_bytes_max", self.message_bytes_max, 1, BYTES_MAX)
        _within("waiting_bytes_max", self.waiting_bytes_max, 1, 64 * BYTES_MAX)
        for name in ("conflated", "retained", "priority"):
            self._check_types(name)
        both = sorted({*self.conflated} & {*self.retained})
        if both:
            raise InvalidInput(
                f"a type is conflated or retained, not both: {', '.join(map(repr, both))}"
            )

    def _check_types(self, name: str) -> None:
        kinds: tuple[str, ...] = getattr(self, name)
        if len(kinds) > TYPES_MAX:
            raise InvalidInput(f"{name}: at most {TYPES_MAX} types are named, got {len(kinds)}")
        for kind in kinds:
            if name != "priority" or kind not in RESERVED_TYPES:
                check_type(kind)

    @cached_property
    def retained_types(self) -> frozenset[str]:
        """Return the retained types as a set."""
        return frozenset(self.retained)

    @cached_property
    def conflated_types(self) -> frozenset[str]:
        """Return the conflated types as a set."""
        return frozenset(self.conflated)

    @property
    def ttl_ms(self) -> int:
        """Return how long a message can be read again; 0: unlimited."""
        return to_ms(self.ttl)


DEFAULTS = RoomSettings()
"""The settings of a room without settings of its own."""


class RoomOptions(TypedDict, total=False):
    """The keyword arguments of callers: the fields of the settings, in convenient forms."""

    ttl: Seconds
    conflated: str | Iterable[str]
    tick: Seconds
    retained: str | Iterable[str]
    priority: str | Iterable[str]
    messages_per_second: float
    message_bytes_max: int
    waiting_bytes_max: int


_HINTS = get_type_hints(RoomSettings)


def altered(settings: RoomSettings, options: Mapping[str, Any]) -> RoomSettings:
    """Return settings with changed values. An error names the wrong setting."""
    fields = {name: _field_of(name, value) for name, value in options.items()}
    return replace(settings, **fields)


def _field_of(name: str, value: Any) -> Any:
    if name not in _HINTS:
        raise InvalidInput(f"a room has no setting {name!r}{did_you_mean(name, _HINTS)}")
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if name in ("conflated", "retained", "priority"):
        if isinstance(value, str):
            value = (value,)
        elif isinstance(value, Iterable):
            value = tuple(value)
    try:
        return convert(value, _HINTS[name])
    except ValidationError as error:
        reason = str(error)
        raise InvalidInput(f"{name}: {reason[:1].lower()}{reason[1:]}: {value!r:.100}") from None


def _within(name: str, value: float, lower: float, upper: float, unit: str = "") -> None:
    if not lower <= value <= upper:
        words = f" {unit}" if unit else ""
        raise InvalidInput(f"{name} is from {lower:,} to {upper:,}{words}, not {value:,}")
