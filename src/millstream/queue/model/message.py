"""The values that consumers hold: a claimed message, how its attempts went, how a queue stands.

And the two exceptions by which a handler says what is to become of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.header import NO_HEADERS, Headers
from millstream.log.model.block import pack_headers, unpack_headers
from millstream.queue.model.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT, Trial
from millstream.queue.model.spec import DELAY_MS_MAX, QueueSpec
from millstream.record import Legible, Seconds, moment, to_ms, wall_ms_of

Damage = Literal["", "value", "record"]
"""What of a message cannot be read: nothing, its value, or its key and headers as well."""


class Label(Struct, array_like=True, eq=False, dict=True):
    """What is known of the messages of a lot besides their values.

    Their headers stay packed until they are first used.
    """

    queue: str
    log: str
    claim_id: int
    """Of the first; those of the others follow."""
    offsets: int | list[int]
    """That of the first, and those of the others follow; or one for each, in ascending order."""
    attempt: int
    timestamps: int | list[int]
    """One for all, or one for each."""
    keys: list[bytes | None] | None
    """None if none has one."""
    packed_headers: bytes
    """A MessagePack array with a map for each; nothing if none has any."""
    until_ms: int = 0
    """In store time; 0 for none."""
    reason: str = ""
    epoch_ms: int = 0
    """The wall time of store time 0."""
    damage: Damage = ""

    @cached_property
    def headers(self) -> list[Headers]:
        """The headers of each; empty if none has any."""
        return unpack_headers(self.packed_headers) if self.packed_headers else []


class Lot(Struct, array_like=True, frozen=True):
    """Messages of one log that were handed out together: neighbours in their claim ids."""

    label: Label
    values: list[bytes | None]


class Message(Legible, Struct, frozen=True, eq=False, gc=False):
    """A record of a log as one queue sees it; claimed, unless it was only peeked at."""

    label: Label
    index: int
    value: bytes | None
    """None for null: a tombstone, which says that its key has no value any more."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.label.queue

    @property
    def claim_id(self) -> int:
        """What names it in the queue."""
        return self.label.claim_id + self.index

    @property
    def attempt(self) -> int:
        """How often it was claimed, this time included."""
        return self.label.attempt

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        keys = self.label.keys
        return None if keys is None else keys[self.index]

    @property
    def headers(self) -> Headers:
        """The record's headers."""
        headers = self.label.headers
        return headers[self.index] if headers else NO_HEADERS

    @property
    def timestamp(self) -> int:
        """The producer's timestamp, or when it was appended: milliseconds since the epoch."""
        timestamps = self.label.timestamps
        return timestamps if isinstance(timestamps, int) else timestamps[self.index]

    @property
    def log(self) -> str:
        """The log that it lies in."""
        return self.label.log

    @property
    def offset(self) -> int:
        """Where it lies in its log."""
        offsets = self.label.offsets
        return offsets + self.index if isinstance(offsets, int) else offsets[self.index]

    @property
    def until(self) -> datetime | None:
        """When the lease ends; in a peek, when the message is due, or ended. None for no time."""
        label = self.label
        return moment(label.epoch_ms + label.until_ms) if label.until_ms else None

    @property
    def reason(self) -> str:
        """Of a failed message: why. Of one that cannot be read: the damage first."""
        return self.label.reason

    @property
    def damage(self) -> Damage:
        """What a peek could not read: "value", or "record" for key and headers as well; else "".

        The value of a damaged message is empty, whatever it was.
        """
        return self.label.damage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and _facts(self) == _facts(other)

    def __hash__(self) -> int:
        return hash((self.queue, self.claim_id, self.attempt))

    def __repr__(self) -> str:
        return f"Message({', '.join(f'{name}={fact!r}' for name, fact in _told(self).items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (_told(self),)


_FACTS = (
    *("queue", "claim_id", "attempt", "value", "key", "headers", "timestamp", "log", "offset"),
    *("until", "reason", "damage"),
)
_facts = attrgetter(*_FACTS)


def _told(message: Message) -> dict[str, Any]:
    """Its fields by name."""
    return dict(zip(_FACTS, _facts(message), strict=True))


def messages_of(lots: Sequence[Lot]) -> list[Message]:
    """The messages of lots, one by one."""
    if len(lots) == 1 and len(lots[0].values) == 1:
        return [Message(lots[0].label, 0, lots[0].values[0])]
    found: list[Message] = []
    for lot in lots:
        found += map(Message, repeat(lot.label), range(len(lot.values)), lot.values)
    return found


def named_message(queue: str, claim_id: int, attempt: int) -> Message:
    """A claim of which no more is known than its name: to finish or renew it."""
    return Message(Label(queue, "", claim_id, 0, attempt, 0, None, b""), 0, b"")


def _restore(facts: dict[str, Any]) -> Message:
    """A message by itself, from its fields by name."""
    key, headers, until = facts["key"], facts["headers"], facts["until"]
    label = Label(
        facts["queue"],
        facts["log"],
        facts["claim_id"],
        facts["offset"],
        facts["attempt"],
        facts["timestamp"],
        None if key is None else [key],
        pack_headers([headers]),
        0 if until is None else wall_ms_of(until),
        facts["reason"],
        damage=facts.get("damage", ""),
    )
    return Message(label, 0, facts["value"])


class LeaseEnd(Struct, frozen=True, array_like=True):
    """When leases end that were prolonged."""

    until_ms: int
    """In store time."""
    epoch_ms: int
    """The wall time of store time 0."""

    @property
    def until(self) -> datetime:
        """The end of the leases as an aware time, in UTC."""
        return moment(self.epoch_ms + self.until_ms)


class Try(Struct, frozen=True, gc=False):
    """One attempt at a message."""

    claimed: datetime
    """When it began, in UTC."""
    consumer: str
    ended: datetime | None = None
    """When it ended; None while it runs."""
    outcome: str = "in_flight"
    reason: str = ""


_OUTCOMES = {AVAILABLE: "again", IN_FLIGHT: "in_flight", DONE: "done", FAILED: "failed"}


def tries_of(history: Sequence[Trial], epoch_ms: int) -> list[Try]:
    """Attempts in wall time; `epoch_ms` is the wall time of store time 0."""
    return [
        Try(
            moment(epoch_ms + one.at_ms),
            one.consumer,
            None if one.ended_ms is None else moment(epoch_ms + one.ended_ms),
            _OUTCOMES[one.state],
            one.reason,
        )
        for one in history
    ]


State = Literal["available", "delayed", "in_flight", "done", "failed", "unknown"]


class Fate(Struct, frozen=True, kw_only=True):
    """What became of a message that was put."""

    state: State
    """How it stands. It is `unknown` if it was never put, was dropped as a repeat, was purged, or
    was done and is forgotten."""
    claim_id: int | None = None
    """What names it in the queue, once it was routed: `attempts` takes it."""
    attempts: int = 0
    """How often it was claimed."""
    until: datetime | None = None
    """When it is due, when its lease ends, or when it ended; in UTC."""
    reason: str = ""
    """Why it failed, or why its last attempt ended."""


class Skipped(Struct, frozen=True):
    """Records of a log that routing passed over because they cannot be read: [start, stop)."""

    log: str
    """The log's name."""
    start: int
    """The first offset that was passed over."""
    stop: int
    """The first offset behind it."""


class QueueInfo(Struct, frozen=True, kw_only=True):
    """How a queue stands."""

    name: str
    spec: QueueSpec
    available: int
    """Routed and claimable now."""
    unrouted: int
    """In the logs, beyond where routing has come; some may not match the filter."""
    delayed: int
    """Routed, and not due yet: put for later, or waiting for the next attempt."""
    in_flight: int
    done: int
    failed: int
    duplicates: int
    """Repeats that were dropped."""
    lost: int
    """Records that a log forgot before this queue, a lossy one, had looked at them."""
    damaged: int
    """Records that cannot be read: whether they belong to this queue is unknown."""
    skipped: list[Skipped]
    """Which those are: the last ranges of them."""
    letters: int
    """Dead letters that could not be written yet: the log is held, or is written elsewhere."""
    paused: bool
    created: datetime
    """When it was made, in UTC."""
    oldest_s: float | None
    """For how many seconds the message that waits longest could have been claimed: since it was
    appended or was due (a delay, a time, a backoff, a redrive); None if none waits but delayed ones."""
    in_per_second: float
    """Messages routed to it, and done, lately: over about a minute."""
    done_per_second: float
    set_back: int = 0
    """How often it was set back, because the end of a log that it had passed was set aside."""
    withdrawn: int = 0
    """Messages that it had not finished and that went with these ends; the forks have them."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, is delayed, or is in flight anywhere."""
        return not (self.available or self.unrouted or self.delayed or self.in_flight)


class Reject(Exception):  # not one of our errors: handlers raise it
    """Raised by a handler: the message can never be worked on, so it fails at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):  # not one of our errors: handlers raise it
    """Raised by a handler: try the message again, `after` a while of its own or the queue's backoff.

    Any other error is tried again as well, after the backoff.
    """

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        if after is not None and not 0 <= to_ms(after) <= DELAY_MS_MAX:
            raise InvalidInput(
                f"after must be from 0 to {DELAY_MS_MAX / 1000:,.0f} seconds, got {after!r}"
            )
        self.reason = reason
        self.after = after
