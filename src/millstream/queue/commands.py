"""The commands of queues."""

from __future__ import annotations

from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from millstream.command import Operation, Procedure, Read, Signed, Traits, Wait, on_log, on_queue
from millstream.format.packing import Batch, Single
from millstream.format.rfc import RfcRecord
from millstream.queue.model.cancel_requests import RequestedCancels
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.message import (
    CancelOutcome,
    Fate,
    LeaseEnd,
    Lot,
    PutResult,
    QueueInfo,
    Try,
)
from millstream.queue.model.note import Result
from millstream.queue.model.routing_marks import Wishes
from millstream.queue.model.slots import RoutingMark, Span
from millstream.queue.model.spec import QueueSpec
from millstream.record import Producer

Run = tuple[int, int, int]
"""Adjacent claims: the first claim id, the count, and the attempt number of all of them."""


class Routed(Struct, frozen=True):
    """The messages of a queue that routing read from a log between two offsets; slots count from 0."""

    log_id: int
    start: int
    stop: int
    spans: list[Span]
    marks: list[RoutingMark] | None = None
    """The mark of each message, for queues that read keys or headers."""
    unknown: int = 0
    """Records for which the queue's filter had no answer."""
    skipped: list[tuple[int, int]] = []  # msgspec copies it
    """Ranges of records that routing skipped as unreadable."""


class Grant(Struct, frozen=True, array_like=True, gc=False):
    """Claimed messages with adjacent claim ids: of adjacent records, or of scattered records."""

    claim_id: int
    count: int
    attempt: int
    log_id: int
    offset: int
    """The offset of the first message."""
    until_ms: int
    offsets: list[int] | None = None
    """The offset of each message in ascending order, for scattered records."""

    def singly(self) -> list[Self]:
        """Return grants of adjacent records only: scattered messages become a grant each."""
        if self.offsets is None:
            return [self]
        return [
            replace(self, claim_id=self.claim_id + index, count=1, offset=offset, offsets=None)
            for index, offset in enumerate(self.offsets)
        ]


class Deal(Struct, eq=False):
    """The grants of all claims in a commit. The first claimant to read fetches the payloads of all.

    Measured with 32 threads that claim single messages: without a deal a claim costs 25 µs instead
    of 20 (2026-11).
    """

    grants: list[list[Grant]]
    """The grants of each claim."""
    lots: list[list[Lot]] | None = None
    """The messages of each claim once read; empty if every claimant reads for itself."""


class Granted(Struct, frozen=True):
    """The result of a claim: the grants, and the messages that remain for later claims."""

    grants: list[Grant]
    fresh: int
    """The number of routed messages that the next claim can take in number order."""
    expired: int
    remaining: int
    """The number of messages that further claims can get now: routed, ready, and within the caps.
    """
    deal: Deal | None = None
    """The deal with this claim's grants, and this claim's index in the deal."""
    turn: int = 0
    is_overtaken: bool = False
    """Whether another consumer or the upkeep has routed since this claim routed. A queue that hands
    out the best message first then grants nothing: the best one may be among the records not
    placed.
    """
    is_cut_short: bool = False
    """Whether the claim stopped early because it passed over too many messages."""
    is_fully_routed: bool = False
    """Whether all records of the queue's logs were routed when the claim was made."""

    @property
    def count(self) -> int:
        """The number of granted messages."""
        grants = self.grants
        return grants[0].count if len(grants) == 1 else sum([grant.count for grant in grants])


class SpecifyQueue(Operation[bool], frozen=True):
    """Make a queue, or replace its spec. Returns True for a new queue.

    With `expect` the spec is replaced only if the current spec equals `expect`.
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
    """Delete a queue with its messages and inbox; its sources stay. Returns False for a missing
    queue.
    """

    traits = Traits(needs=(on_queue("admin"),), is_step=True, tidies=True)

    queue: str


class PauseQueue(Operation[None], frozen=True):
    """Pause claims, or resume them."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    paused: bool


class LimitGroup(Operation[bool], frozen=True):
    """Give a group limits of its own, instead of the queue's; an empty limit removes them.

    Returns whether anything changed.
    """

    traits = Traits(needs=(on_queue("admin"),), repeat="harmless", is_step=True)

    queue: str
    group: str
    limit: GroupLimit


class ListGroupLimits(Read[dict[str, GroupLimit]], frozen=True):
    """Return the groups of a queue that have limits of their own, by name."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


class PutMessages(Operation[int], frozen=True):
    """Put messages straight into a queue; returns the id of the first, and ids are consecutive.

    The same commit places messages with a delay or a time, behind all messages routed by then.
    """

    traits = Traits(
        needs=(on_queue("put"),), repeat="sequence", is_step=True, may_be_for_later=True
    )

    queue: str
    records: Single | Batch
    wishes: list[Wishes] = field(default_factory=list)
    """Empty, or the wishes of each message."""
    delay_ms: int | None = None
    due_ms: int | None = None
    """The wall time at which the messages are due, instead of a delay."""
    producer: Producer | None = None

    @property
    def is_for_later(self) -> bool:
        """Whether the messages become claimable at a later time."""
        return self.delay_ms is not None or self.due_ms is not None


class ClaimRouted(Operation[Granted], frozen=True):
    """Acknowledge finished claims, place routed messages, and claim, in a single commit."""

    traits = Traits(needs="internal")

    queue: str
    count: int
    lease_ms: int | None
    consumer: str
    routed: list[Routed]
    acked: list[Run]
    results: list[Result] = field(default_factory=list)
    """Results of acknowledged claims; a claim without a result is not listed."""


class FinishClaims(Operation[list[Run]], frozen=True):
    """End attempts: 'ack', 'nack' or 'fail'. With `each` it returns the claims with a lost lease.

    An acknowledgement may carry results, and the other endings an error; both are stored by the same
    commit, for claims whose lease holds.
    """

    traits = Traits(needs=(on_queue("write"),), is_step=True, holds=True)

    queue: str
    claims: list[Run]
    outcome: str
    delay_ms: int | None = None
    reason: str = ""
    each: bool = False
    results: list[Result] = field(default_factory=list)
    """Results of acknowledged claims; a claim without a result is not listed."""
    error: bytes | None = None
    """The error of every attempt that is given back or fails."""


class ReturnClaims(Operation[None], frozen=True):
    """Give back messages that never reached their consumer.

    The messages are claimable again at once, even after their last attempt. Claims without a valid
    lease are ignored.
    """

    traits = Traits(needs=(on_queue("write"),), repeat="harmless", holds=True)

    queue: str
    claims: list[Run]


class RenewClaims(Operation[LeaseEnd], frozen=True):
    """Renew leases; returns their new end."""

    traits = Traits(needs=(on_queue("write"),), is_step=True, holds=True)

    queue: str
    claims: list[Run]
    lease_ms: int | None = None


class PurgeQueue(Operation[int], frozen=True):
    """Delete the 'available' or the 'failed' messages; returns their number."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    state: str


REDRIVE_PER_COMMIT = 1_000
"""The most failed messages made available again by a commit."""


class RedriveClaims(Operation[int], frozen=True):
    """Make failed messages available again, under new claim ids; returns their number."""

    traits = Traits(needs=(on_queue("admin"),), is_step=True)

    queue: str
    claims: list[int]
    rate: float | None = None
    """Messages per second that become due; None makes all messages due now."""
    before: int = 0
    """The number of redriven messages that are due before these."""


class ReplaceFailed(Operation[int], frozen=True):
    """Replace a failed message by a new message, in a single commit; returns the new id.

    Raises `Conflict` if the message is not failed any more: only the first of two callers succeeds.
    """

    traits = Traits(needs=(on_queue("admin"),), is_step=True, may_be_for_later=True)

    queue: str
    claim_id: int
    record: Single

    @property
    def is_for_later(self) -> bool:
        """True: the new message is placed by the commit, behind all messages routed by then."""
        return True


class ClaimMessages(Procedure[list[Lot]], frozen=True):
    """Route, claim and read messages, as a consumer requests."""

    traits = Traits(
        needs=(on_queue("write"),),
        waits=Wait("wait_ms", once=("acked", "results"), count="count"),
        holds=True,
    )

    queue: str
    count: int
    lease_ms: int | None
    consumer: str
    wait_ms: int | None
    acked: list[Run]
    pop: bool = False
    """Claim and acknowledge in a single commit: delivery at most once."""
    results: list[Result] = field(default_factory=list)
    """Results of acknowledged claims; a claim without a result is not listed."""


class PeekMessages(Read[list[Lot]], frozen=True):
    """Read messages in a state, without claiming them."""

    traits = Traits(needs=(on_queue("read"),), page="count", is_large=True)

    queue: str
    state: str
    count: int
    after: Signed = -1
    route: bool = True
    """Whether to route first, to see new records of the logs. Routing changes the store."""
    newest: bool = False
    """Whether to read the last messages instead of the first, still in claim id order; `after` then
    names the claim id before which the messages are; -1: up to the last."""


class CancelMessage(Procedure[CancelOutcome], frozen=True):
    """Cancel a message that waits: available, delayed, or scheduled.

    Returns True if the message is cancelled, also by an earlier call. Returns False if the message is
    in flight, has ended, or is unknown. With `running`, the consumer of a message in flight is asked
    to stop: the answer is "requested", and the message is cancelled as soon as its attempt is given
    back or its lease ends.
    """

    traits = Traits(needs=(on_queue("write"),), repeat="harmless", is_step=True)

    queue: str
    id: int | None
    """The id that `put` returned."""
    claim_id: int | None = None
    """Instead of `id`: the number of the message in the queue, for records of sources."""
    running: bool = False


class WaitForCancels(Read[RequestedCancels | None], frozen=True):
    """Wait for cancel requests beyond the first `seen`, and return the open ones; None after the
    timeout.
    """

    traits = Traits(needs=(on_queue("read"),), waits=Wait("timeout_ms", is_endless=True))

    queue: str
    seen: int = 0
    """The number of requests that the caller has seen: `total` of its last answer."""
    timeout_ms: int | None = None


class NoteProgress(Operation[None], frozen=True):
    """Store the progress of attempts whose lease holds, all or none."""

    traits = Traits(needs=(on_queue("write"),), repeat="harmless", is_step=True)

    queue: str
    claims: list[Run]
    progress: bytes


class FindMessages(Read[list[Fate]], frozen=True):
    """Return the fates of messages, by the ids that `put` returned, in the order of the ids."""

    traits = Traits(needs=(on_queue("read"),), is_large=True)

    queue: str
    ids: list[int]


class CancelWaiting(Operation[None], frozen=True):
    """Cancel a message that waits, or raise `Conflict`: so a transaction ends a message only once."""

    traits = Traits(needs=(on_queue("write"),), is_step=True)

    queue: str
    claim_id: int | None
    """The number of the message in the queue; None: the commit looks for the message by its id."""
    id: int
    """The id that `put` returned."""


class WaitForMessage(Read[Fate | None], frozen=True):
    """Wait until a message has ended, and return its fate; None after the timeout.

    Raises `NotFound` if the queue does not know the message, or forgets it meanwhile.
    """

    traits = Traits(needs=(on_queue("read"),), waits=Wait("timeout_ms", is_endless=True))

    queue: str
    id: int
    """The id that `put` returned."""
    timeout_ms: int | None = None


class PutReported(Procedure[PutResult], frozen=True):
    """Put one message and report whether it is a repeat. A repeat is not stored.

    The queue routes all earlier messages of its inbox first, so the answer is exact.
    """

    traits = Traits(needs=(on_queue("put"),))

    queue: str
    records: Single | Batch
    """One message."""
    wishes: list[Wishes] = field(default_factory=list)
    """Empty, or the wishes of the message."""
    delay_ms: int | None = None
    due_ms: int | None = None
    """The wall time at which the message is due, instead of a delay."""


class FindMessage(Read[Fate], frozen=True):
    """Return the fate of a message, by the id that `put` returned."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    id: int


class GetAttempts(Read[list[Try]], frozen=True):
    """Return the attempts at a message."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    claim_id: int


class ListRecords(Read[list[RfcRecord]], frozen=True):
    """Return up to `count` of the RFC's records of a queue with keys after `after`; empty at the
    end.
    """

    traits = Traits(needs=(on_queue("read"),), page="count", is_large=True)

    queue: str
    after: bytes = b""
    count: int = 1_000


class DescribeQueue(Read[QueueInfo | None], frozen=True):
    """Return the state of a queue, or None."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str


class ListQueues(Read[list[QueueInfo]], frozen=True):
    """Return up to `limit` queues in name order, after a name."""

    traits = Traits(needs="seen", page="limit")

    after: str
    limit: int
