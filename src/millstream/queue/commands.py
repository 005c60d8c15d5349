"""What can be asked of queues."""

from __future__ import annotations

from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from millstream.command import Operation, Procedure, Read, Signed, Traits, Wait, on_log, on_queue
from millstream.format.packing import Batch, Single
from millstream.format.rfc import RfcRecord
from millstream.queue.model.marking import Wishes
from millstream.queue.model.message import Fate, LeaseEnd, Lot, QueueInfo, Try
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import QueueSpec
from millstream.record import Producer

Run = tuple[int, int, int]
"""Claims side by side: the first claim id, how many, and the attempt that they were claimed for."""


class Routed(Struct, frozen=True):
    """What a look at a log found for a queue, between two offsets; slots are counted from 0."""

    log_id: int
    start: int
    stop: int
    spans: list[Span]
    marks: list[RoutingMark] | None = None
    """One per message, for queues that look at more than whether it matches."""
    unknown: int = 0
    """Records of which the queue's filter could not say whether they match."""
    setbacks: int = 0
    """How often the log's end had gone back when it was looked at."""
    skipped: list[tuple[int, int]] = []  # msgspec copies it
    """Ranges of records that were passed over because they cannot be read."""


class Grant(Struct, frozen=True, array_like=True, gc=False):
    """Messages that were claimed: adjacent claims of adjacent records, or of records that lie apart."""

    claim_id: int
    count: int
    attempt: int
    log_id: int
    offset: int
    """Of the first."""
    until_ms: int
    offsets: list[int] | None = None
    """Of each, ascending, if they lie apart."""

    def singly(self) -> list[Self]:
        """The same messages; those that lie apart one by one."""
        if self.offsets is None:
            return [self]
        return [
            replace(self, claim_id=self.claim_id + at, count=1, offset=offset, offsets=None)
            for at, offset in enumerate(self.offsets)
        ]


class Deal(Struct, eq=False):
    """Grants of claims made in one commit; the first claimant to read fetches the payloads of all.

    With 32 threads that claim one message each, a claim without it costs a quarter more: 25 µs
    instead of 20 (2026-11).
    """

    grants: list[list[Grant]]
    """What each claim was granted."""
    lots: list[list[Lot]] | None = None
    """The messages of each claim once they are read; empty if each claimant reads its own."""


class Granted(Struct, frozen=True):
    """What a claim got, and what it left for the next ones."""

    grants: list[Grant]
    ahead: int
    """How many messages the next one can take in their turn, without routing more."""
    expired: int
    left: int
    """How many messages others can get at once: routed, ready, and within the queue's caps."""
    deal: Deal | None = None
    """The deal that this claim is part of, and its place there."""
    turn: int = 0
    is_overtaken: bool = False
    """Whether another consumer or the background has routed meanwhile. A queue that hands out the
    best first has granted nothing then: the best may be in what it did not place."""
    is_cut_short: bool = False
    """Whether so much had to be passed over that it did not get to all that may be claimed."""
    is_level: bool = False
    """Whether everything that the queue's logs hold was routed when the claim was made."""

    @property
    def count(self) -> int:
        """How many messages that are."""
        grants = self.grants
        return grants[0].count if len(grants) == 1 else sum([grant.count for grant in grants])


class SpecifyQueue(Operation[bool], frozen=True):
    """Make a queue, or make it what the spec says; True if there was none.

    With `expect` it is altered only if its spec is still that one.
    """

    traits = Traits(
        needs=(
            on_queue("admin"),
            on_log("read", "spec.sources", is_pattern=True),
            on_log("write", "spec.dead_letter"),
        ),
        is_step=True,
    )

    queue: str
    spec: QueueSpec
    expect: QueueSpec | None = None


class DeleteQueue(Operation[bool], frozen=True):
    """Forget a queue, its messages and its inbox; its sources stay. False if there was none."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True, tidies=True)

    queue: str


class PauseQueue(Operation[None], frozen=True):
    """Hold claims back, or stop doing so."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    paused: bool


class PutMessages(Operation[int], frozen=True):
    """Put messages straight to a queue; the id of the first, those of the others follow.

    Those with a delay or a time are placed by the same commit, behind what is routed by then.
    """

    traits = Traits(needs=(on_queue("write"),), repeat="sequence", is_step=True)

    queue: str
    records: Single | Batch
    wishes: list[Wishes] = field(default_factory=list)
    """None, or one for each message."""
    delay_ms: int | None = None
    due_ms: int | None = None
    """The wall time at which they are due, instead of a delay."""
    producer: Producer | None = None

    @property
    def is_for_later(self) -> bool:
        """Whether they are not to be claimed at once."""
        return self.delay_ms is not None or self.due_ms is not None


class ClaimRouted(Operation[Granted], frozen=True):
    """Finish what was worked on, take over what was routed, and claim: all in one commit."""

    traits = Traits(needs="internal")

    queue: str
    count: int
    lease_ms: int | None
    consumer: str
    routed: list[Routed]
    acked: list[Run]


class FinishClaims(Operation[list[Run]], frozen=True):
    """End attempts: 'ack', 'nack' or 'fail'. Answers those whose lease was lost, if `each`."""

    traits = Traits(needs=(on_queue("write"),), is_step=True, holds=True)

    queue: str
    claims: list[Run]
    outcome: str
    delay_ms: int | None = None
    reason: str = ""
    each: bool = False


class ReturnClaims(Operation[None], frozen=True):
    """Give back messages that never reached the consumer they were claimed for.

    They can be claimed again at once, also if no attempt is left. What is not held is passed over.
    """

    traits = Traits(needs=(on_queue("write"),), repeat="harmless", holds=True)

    queue: str
    claims: list[Run]


class RenewClaims(Operation[LeaseEnd], frozen=True):
    """Prolong leases; answers until when."""

    traits = Traits(needs=(on_queue("write"),), is_step=True, holds=True)

    queue: str
    claims: list[Run]
    lease_ms: int | None = None


class PurgeQueue(Operation[int], frozen=True):
    """Forget messages that are 'available' or 'failed'; answers how many."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    state: str


REDRIVE_PER_COMMIT = 1_000
"""Failed messages that one commit makes available again."""


class RedriveClaims(Operation[int], frozen=True):
    """Make failed messages available again, under new claim ids; answers how many."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    claims: list[int]
    rate: float | None = None
    """Messages per second that become due; None: all at once."""
    before: int = 0
    """How many are due before these."""


class ReplaceFailed(Operation[int], frozen=True):
    """Put another message in the place of a failed one, in one commit; answers its id.

    Raises `Conflict` if that message is not failed any more: of two callers one replaces it.
    """

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    claim_id: int
    record: Single


class ClaimMessages(Procedure[list[Lot]], frozen=True):
    """Route, claim and read: what a consumer asks for."""

    traits = Traits(
        needs=(on_queue("write"),),
        waits=Wait("wait_ms", once="acked", count="count"),
        holds=True,
    )

    queue: str
    count: int
    lease_ms: int | None
    consumer: str
    wait_ms: int | None
    acked: list[Run]
    pop: bool = False
    """Claim and acknowledge in one: at most once."""


class PeekMessages(Read[list[Lot]], frozen=True):
    """Messages in a state, without claiming them."""

    traits = Traits(needs=(on_queue("read"),), page="count", is_large=True)

    queue: str
    state: str
    count: int
    after: Signed = -1
    route: bool = True
    """Whether to look for available messages in the logs first, which changes the store."""


class FindMessage(Read[Fate], frozen=True):
    """What became of a message, by the id that putting it has answered."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    id: int


class GetAttempts(Read[list[Try]], frozen=True):
    """How a message's attempts went."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    claim_id: int


class ListRecords(Read[list[RfcRecord]], frozen=True):
    """The RFC's records of a queue whose keys follow `after`, at most so many; none at the end."""

    traits = Traits(needs=(on_queue("read"),), page="count", is_large=True)

    queue: str
    after: bytes = b""
    count: int = 1_000


class DescribeQueue(Read[QueueInfo | None], frozen=True):
    """How a queue stands."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


class ListQueues(Read[list[QueueInfo]], frozen=True):
    """Queues in the order of their names, after one name, at most so many."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
