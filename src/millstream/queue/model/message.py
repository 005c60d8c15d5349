"""The values that consumers hold: a claimed message, its attempts, and the state of a queue.

Also the two exceptions by which a handler decides the fate of a message.
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
from millstream.queue.model.own_logs import put_id
from millstream.queue.model.slots import AVAILABLE, CANCELLED, DONE, FAILED, IN_FLIGHT, Trial
from millstream.queue.model.spec import DELAY_MS_MAX, QueueSpec
from millstream.record import Legible, Seconds, moment, to_ms, wall_ms_of

PeekState = Literal["available", "delayed", "in_flight", "done", "failed", "cancelled"]
"""The states in which a peek shows messages."""

State = Literal[PeekState, "unknown"]
"""The states of a message that was put."""

PurgeState = Literal["available", "failed"]
"""The states of messages that a purge deletes; delayed messages count as available there."""

Ending = Literal["ack", "nack", "fail"]
"""How a consumer ends an attempt."""

TryOutcome = Literal["in_flight", "again", "done", "failed", "cancelled"]
"""How an attempt ended; "again": the message is tried again. "cancelled": it ended after a cancel
request.
"""

CancelOutcome = bool | Literal["requested"]
"""True: the message is cancelled. "requested": its consumer is asked to stop. False: neither."""

Damage = Literal["", "value", "record"]
"""The unreadable parts of a message: none, its value, or key and headers as well."""


class Label(Struct, array_like=True, eq=False, dict=True):
    """The facts that the messages of a lot share, other than their values.

    Headers stay packed until their first use.
    """

    queue: str
    log: str
    claim_id: int
    """The claim id of the first message; the ids are consecutive."""
    offsets: int | list[int]
    """The offset of the first message if offsets are consecutive; else a list in ascending order.
    """
    attempt: int
    timestamps: int | list[int]
    """The common timestamp, or a list with the timestamp of each message."""
    keys: list[bytes | None] | None
    """The key of each message, or None if no message has a key."""
    packed_headers: bytes
    """A MessagePack array with a map for each message; empty if no message has headers."""
    until_ms: int = 0
    """In store time; 0 for no lease."""
    reason: str = ""
    epoch_ms: int = 0
    """The wall time of store time 0."""
    damage: Damage = ""

    @cached_property
    def headers(self) -> list[Headers]:
        """The headers of each message; an empty list if no message has headers."""
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
    """None for null: a tombstone, whose key has no value any more."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.label.queue

    @property
    def id(self) -> int | None:
        """The id that `put` returned; `queue.message`, `cancel` and `wait` take it.

        None for a record of a source: no `put` returned an id for it.
        """
        return put_id(self.queue, self.log, self.offset)

    @property
    def claim_id(self) -> int:
        """The number of the message in the queue; a redriven message gets a new number."""
        return self.label.claim_id + self.index

    @property
    def attempt(self) -> int:
        """The number of claims of the message, including the current one."""
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
        """The name of the message's log."""
        return self.label.log

    @property
    def offset(self) -> int:
        """The offset of the message in its log."""
        offsets = self.label.offsets
        return offsets + self.index if isinstance(offsets, int) else offsets[self.index]

    @property
    def until(self) -> datetime | None:
        """When the lease ends; in a peek, when the message is due, or ended. None if no time applies."""
        label = self.label
        return moment(label.epoch_ms + label.until_ms) if label.until_ms else None

    @property
    def reason(self) -> str:
        """Why the message failed. For an unreadable message, the damage comes first."""
        return self.label.reason

    @property
    def damage(self) -> Damage:
        """The parts that a peek could not read: "value", "record" (key and headers as well), or "".

        The value of a damaged message is empty.
        """
        return self.label.damage

    def _place(self) -> tuple[str, dict[str, Any]]:
        """Return what an error calls this message, and the facts that the error carries."""
        name = (
            f"the message at offset {self.offset} of log {self.log!r} (queue {self.queue!r}, claim id "
            f"{self.claim_id})"
        )
        return name, {"queue": self.queue, "log": self.log, "offset": self.offset}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and _facts(self) == _facts(other)

    def __hash__(self) -> int:
        return hash((self.queue, self.claim_id, self.attempt))

    def __repr__(self) -> str:
        return (
            f"Message({', '.join(f'{name}={fact!r}' for name, fact in _fields_of(self).items())})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (_fields_of(self),)


_FACTS = (
    *("queue", "claim_id", "attempt", "value", "key", "headers", "timestamp", "log", "offset"),
    *("until", "reason", "damage"),
)
_facts = attrgetter(*_FACTS)


def _fields_of(message: Message) -> dict[str, Any]:
    """Return the fields by name."""
    return dict(zip(_FACTS, _facts(message), strict=True))


def messages_of(lots: Sequence[Lot]) -> list[Message]:
    """Return the messages of lots as single messages."""
    if len(lots) == 1 and len(lots[0].values) == 1:
        return [Message(lots[0].label, 0, lots[0].values[0])]
    messages: list[Message] = []
    for lot in lots:
        messages += map(Message, repeat(lot.label), range(len(lot.values)), lot.values)
    return messages


def named_message(queue: str, claim_id: int, attempt: int) -> Message:
    """Return a claim of which only the name is known, to finish or renew it."""
    return Message(Label(queue, "", claim_id, 0, attempt, 0, None, b""), 0, b"")


def _restore(facts: dict[str, Any]) -> Message:
    """Return a single message, made from its fields by name."""
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
    """The new end of leases that were renewed."""

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
    """When the attempt ended; None while the attempt runs."""
    outcome: TryOutcome = "in_flight"
    reason: str = ""


_OUTCOMES: dict[int, TryOutcome] = {
    AVAILABLE: "again",
    IN_FLIGHT: "in_flight",
    DONE: "done",
    FAILED: "failed",
    CANCELLED: "cancelled",
}


def tries_of(history: Sequence[Trial], epoch_ms: int) -> list[Try]:
    """Return attempts in wall time; `epoch_ms` is the wall time of store time 0."""
    return [
        Try(
            moment(epoch_ms + trial.at_ms),
            trial.consumer,
            None if trial.ended_ms is None else moment(epoch_ms + trial.ended_ms),
            _OUTCOMES[trial.state],
            trial.reason,
        )
        for trial in history
    ]


class Fate(Struct, frozen=True, kw_only=True):
    """The fate of a message that was put."""

    state: State
    """The current state. `unknown`: the message was never put, was dropped as a repeat, was purged,
    or has ended and is forgotten.
    """
    claim_id: int | None = None
    """The id of the message in the queue once it is routed; `attempts` takes it."""
    attempts: int = 0
    """The number of claims."""
    until: datetime | None = None
    """When the message is due, its lease ends, or its last attempt ended; in UTC."""
    reason: str = ""
    """Why the message failed, or why its last attempt ended."""
    result: bytes | None = None
    """The result that came with the acknowledgement of a done message."""
    error: bytes | None = None
    """The error that the last attempt ended with; None for a done message."""
    progress: bytes | None = None
    """The last progress that a consumer noted; None for a done message."""
    is_cancel_requested: bool = False
    """Whether the message is in flight, and its consumer is asked to stop."""

    @property
    def is_over(self) -> bool:
        """Return whether the message has ended: it is done, failed or cancelled."""
        return self.state in ("done", "failed", "cancelled")


class FoundMessage(Struct, frozen=True):
    """A message that was found by its dedup id."""

    id: int
    """The id that `put` returned."""
    fate: Fate


class PutResult(Struct, frozen=True, kw_only=True):
    """The answer of `put(..., detail=True)`."""

    id: int | None
    """The id of the message; of a repeat, the id of the message that it repeats.

    None if the queue has forgotten that message, or if it is a record of a source.
    """
    repeated: bool = False
    """Whether the message is a repeat. A repeat is not stored."""


class Skipped(Struct, frozen=True):
    """Records of a log that routing skipped because they are unreadable: [start, stop)."""

    log: str
    """The log's name."""
    start: int
    """The first skipped offset."""
    stop: int
    """The first offset behind the skipped range."""


class QueueInfo(Struct, frozen=True, kw_only=True):
    """The state and the counters of a queue."""

    name: str
    spec: QueueSpec
    available: int
    """Messages that wait for a claim: routed messages that are due, and messages that were put."""
    unrouted: int
    """Records of source logs that the queue has not looked at; the filter may drop a part. For a queue
    with `dedup_by` also new messages that were put, because they may be repeats.
    """
    delayed: int
    """Routed messages that are not due yet: put for later, or waiting for the next attempt."""
    in_flight: int
    done: int
    failed: int
    duplicates: int
    """The number of dropped repeats."""
    lost: int
    """Records that a log deleted before the lossy queue routed them."""
    damaged: int
    """Unreadable records. Whether the records belonged to the queue is unknown."""
    skipped: list[Skipped]
    """The most recent ranges of unreadable records."""
    letters: int
    """Dead letters that could not be written yet: the log is held, or is written elsewhere."""
    paused: bool
    created: datetime
    """When the queue was made, in UTC."""
    oldest_s: float | None
    """The age in seconds of the message that has been claimable longest: since its append, or since
    it was due (a delay, a time, a backoff, a redrive). None if only delayed messages wait.
    """
    in_per_second: float
    """Messages routed and messages done per second, averaged over about a minute."""
    done_per_second: float
    set_back: int = 0
    """How often the queue was set back, because the tail of a log that it had routed was set aside.
    """
    withdrawn: int = 0
    """Unfinished messages in the tails that were set aside; the forks keep these records."""
    cancelled: int = 0
    """Messages that were cancelled since the queue was made."""

    @property
    def is_empty(self) -> bool:
        """Return whether no message waits, is delayed, or is in flight."""
        return not (self.available or self.unrouted or self.delayed or self.in_flight)


class Reject(Exception):  # not one of our errors: handlers raise it
    """Raised by a handler to fail the message at once, without another attempt."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):  # not one of our errors: handlers raise it
    """Raised by a handler: try the message again, after `after` or the queue's backoff.

    Every other exception of a handler also causes a retry, after the backoff.
    """

    def __init__(self, reason: str = "", *, after: Seconds | None = None) -> None:
        super().__init__(reason)
        if after is not None and not 0 <= to_ms(after) <= DELAY_MS_MAX:
            raise InvalidInput(
                f"after must be from 0 to {DELAY_MS_MAX / 1000:,.0f} seconds, got {after!r}"
            )
        self.reason = reason
        self.after = after
