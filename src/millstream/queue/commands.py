"""What can be asked of queues."""

from __future__ import annotations

from msgspec import Struct

from millstream.command import Mutation, Query
from millstream.format.packing import Batch, Single
from millstream.queue.message import Lot, QueueInfo, Try
from millstream.queue.slots import Mark, Span
from millstream.queue.spec import QueueSpec

Run = tuple[int, int, int]
"""Claims side by side: the first claim id, how many, and the attempt that they were claimed for."""


class Routed(Struct, frozen=True):
    """What a look at a log found for a queue, between two offsets; slots are counted from 0."""

    log_id: int
    start: int
    stop: int
    spans: list[Span]
    marks: list[Mark] | None = None
    """One per message, for queues that look at more than whether it matches."""
    unknown: int = 0
    """Records of which the queue's filter could not say whether they match."""
    setbacks: int = 0
    """How often the log's end had gone back when it was looked at."""


class Grant(Struct, frozen=True, array_like=True):
    """Messages that were claimed: adjacent claims of adjacent records."""

    claim_id: int
    count: int
    attempt: int
    log_id: int
    offset: int
    until_ms: int


class Deal:
    """What several claims got together: who reads its message first reads those of all."""

    __slots__ = ("grants", "lots")

    def __init__(self, grants: list[list[Grant]]) -> None:
        self.grants = grants
        """Of each claim."""
        self.lots: list[list[Lot]] | None = None
        """The same, read; empty if each is to read its own."""


class Granted(Struct, frozen=True):
    """What a claim got, and how many messages the next one can take without routing more."""

    grants: list[Grant]
    ahead: int
    expired: int
    deal: Deal | None = None
    """Which it is part of, and which part."""
    turn: int = 0

    @property
    def count(self) -> int:
        """How many messages that are."""
        grants = self.grants
        return grants[0].count if len(grants) == 1 else sum([grant.count for grant in grants])


class SpecifyQueue(Mutation[bool], frozen=True):
    """Make a queue, or alter one; True if it was made. Altering asks for the spec as it was."""

    queue: str
    spec: QueueSpec
    expect: QueueSpec | None = None


class DeleteQueue(Mutation[bool], frozen=True):
    """Forget a queue and its messages; the logs stay. False if there was none."""

    queue: str


class PauseQueue(Mutation[None], frozen=True):
    """Hold claims back, or stop doing so."""

    queue: str
    paused: bool


class PlaceRouted(Mutation[int], frozen=True):
    """Take over what was routed, without claiming; answers how many messages were placed."""

    queue: str
    routed: list[Routed]


class PutLater(Mutation[int], frozen=True):
    """Append messages that are for later, and place them."""

    queue: str
    records: Single | Batch
    marks: list[Mark]
    """One per message, with its delay or the time at which it is due."""


class ClaimRouted(Mutation[Granted], frozen=True):
    """Finish what was worked on, take over what was routed, and claim: all in one commit."""

    queue: str
    count: int
    lease_ms: int | None
    consumer: str
    routed: list[Routed]
    acked: list[Run]
    pop: bool = False
    """Claim and acknowledge in one: at most once."""


class FinishClaims(Mutation[list[Run]], frozen=True):
    """End attempts: 'ack', 'nack' or 'fail'. Answers those whose lease was lost, if `each`."""

    queue: str
    claims: list[Run]
    outcome: str
    delay_ms: int | None = None
    reason: str = ""
    each: bool = False


class RenewClaims(Mutation[int], frozen=True):
    """Prolong leases; answers until when, in store time."""

    queue: str
    claims: list[Run]
    lease_ms: int | None = None


class PurgeQueue(Mutation[int], frozen=True):
    """Forget messages that are 'available' or 'failed'; answers how many."""

    queue: str
    state: str


class RedriveClaims(Mutation[int], frozen=True):
    """Make failed messages available again, under new claim ids; answers how many."""

    queue: str
    claims: list[int]
    rate: float | None = None
    """Messages per second that become due; None: all at once."""
    before: int = 0
    """How many are due before these."""


class ClaimMessages(Query[list[Lot]], frozen=True):
    """Route, claim and read: what a consumer asks for."""

    queue: str
    count: int
    lease_ms: int | None
    consumer: str
    wait_ms: int | None
    acked: list[Run]
    pop: bool = False


class PutForLater(Query[int], frozen=True):
    """Put messages to a queue for later; the offset of the first in the log that holds them."""

    queue: str
    records: Single | Batch
    marks: list[Mark]


class PeekMessages(Query[list[Lot]], frozen=True):
    """Messages in a state, without claiming them."""

    queue: str
    state: str
    count: int
    after: int = -1
    route: bool = True
    """Whether to look for available messages in the logs first, which changes the store."""


class GetAttempts(Query[list[Try]], frozen=True):
    """How a message's attempts went."""

    queue: str
    claim_id: int


class DescribeQueue(Query[QueueInfo | None], frozen=True):
    """How a queue stands."""

    queue: str


class ListQueues(Query[list[QueueInfo]], frozen=True):
    """Queues in the order of their names, after one name, at most so many."""

    after: str
    limit: int
