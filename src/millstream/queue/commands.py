"""The commands of queues."""

from __future__ import annotations

from msgspec import field

from millstream.command import Operation, Procedure, Read, Signed, Traits, Wait, on_log, on_queue
from millstream.format.packing import Batch, Single
from millstream.format.rfc import RfcRecord
from millstream.queue.model.cancel_requests import RequestedCancels
from millstream.queue.model.grants import Granted, Routed
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.message import (
    CancelOutcome,
    Fate,
    FoundMessage,
    LeaseEnd,
    Lot,
    PutResult,
    QueueInfo,
    Try,
)
from millstream.queue.model.note import Result
from millstream.queue.model.routing_marks import Wishes
from millstream.queue.model.spec import QueueSpec
from millstream.record import Producer

Run = tuple[int, int, int]
"""Adjacent claims: the first claim id, the count, and the attempt number of all of them."""

CHANGES = "queue-changes"
"""The ability of servers that keep logs of changes."""

JOBS = "jobs"
"""The ability of the protocol that brought results, progress, cancel requests and limits of groups."""

GROUP_RUNS = "group-runs"
"""The ability of the protocol that brought claims of several messages of an ordered group."""

FRESH_PUTS = "fresh-puts"
"""The ability of servers that put messages in one commit if none of them is a repeat."""


class SpecifyQueue(Operation[bool], frozen=True):
    """Make a queue, or replace its spec. Returns True for a new queue.

    With `expect` the spec is replaced only if the current spec equals `expect`.
    """

    traits = Traits(
        needs=(
            on_queue("admin"),
            on_log("read", "spec.sources", is_pattern=True),
            on_log("write", "spec.dead_letter"),
            on_log("write", "spec.changes"),
        ),
        is_step=True,
        additions={"spec.group_order": JOBS, "spec.changes": CHANGES},
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

    traits = Traits(needs=(on_queue("admin"),), repeat="harmless", is_step=True, ability=JOBS)

    queue: str
    group: str
    limit: GroupLimit


class ListGroupLimits(Read[dict[str, GroupLimit]], frozen=True):
    """Return the groups of a queue that have limits of their own, by name."""

    traits = Traits(needs=(on_queue("read"),), ability=JOBS)

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
    group_runs: bool = False
    needs_routed: bool = False
    """Grant nothing from an indexed queue that has unrouted records: the best may be among these."""


class FinishClaims(Operation[list[Run]], frozen=True):
    """End attempts: 'ack', 'nack' or 'fail'. With `each` it returns the claims with a lost lease.

    An acknowledgement may carry results, and the other endings an error; both are stored by the same
    commit, for claims whose lease holds. An older server ignores an error: it is only shown.
    """

    traits = Traits(
        needs=(on_queue("write"),), is_step=True, holds=True, additions={"results": JOBS}
    )

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


class EndMember(Operation[bool], frozen=True):
    """Append the outcome of a member to the log of its group, once for each member.

    The commit that appends the last outcome puts the message that follows. Returns whether the outcome
    was appended: a repeat changes nothing. A deleted log takes no outcome.
    """

    traits = Traits(
        needs=(on_log("put"), on_queue("put", "queue")),
        repeat="harmless",
        is_step=True,
        ability=JOBS,
    )

    log: str
    outcome: Single
    member: int
    """The number of the member, from 0."""
    size: int
    """The number of members."""
    has_failed: bool = False
    queue: str | None = None
    """The queue of the message that follows; None: nothing follows."""
    following: Single | None = None
    follows_failures: bool = False
    """Whether the message is put although a member has failed."""


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
        additions={"results": JOBS, "group_runs": GROUP_RUNS},
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
    group_runs: bool = False
    """Whether the consumer takes several messages of an ordered group, and keeps their order. The
    group then waits until the attempts at all of them have ended."""


class PeekMessages(Read[list[Lot]], frozen=True):
    """Read messages in a state, without claiming them."""

    traits = Traits(
        needs=(on_queue("read"),),
        page="count",
        is_large=True,
        additions={"newest": JOBS, "state=cancelled": JOBS},
    )

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

    traits = Traits(
        needs=(on_queue("write"),),
        repeat="harmless",
        is_step=True,
        step_ability=JOBS,
        additions={"running": JOBS},
    )

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

    traits = Traits(
        needs=(on_queue("read"),), waits=Wait("timeout_ms", is_endless=True), ability=JOBS
    )

    queue: str
    seen: int = 0
    """The number of requests that the caller has seen: `total` of its last answer."""
    timeout_ms: int | None = None


class NoteProgress(Operation[None], frozen=True):
    """Store the progress of attempts whose lease holds, all or none."""

    traits = Traits(needs=(on_queue("write"),), repeat="harmless", is_step=True, ability=JOBS)

    queue: str
    claims: list[Run]
    progress: bytes


class FindMessages(Read[list[Fate]], frozen=True):
    """Return the fates of messages, by the ids that `put` returned, in the order of the ids."""

    traits = Traits(needs=(on_queue("read"),), is_large=True, ability=JOBS)

    queue: str
    ids: list[int]


class CancelWaiting(Operation[None], frozen=True):
    """Cancel a message that waits, or raise `Conflict`: so a transaction ends a message only once."""

    traits = Traits(needs=(on_queue("write"),), is_step=True, ability=JOBS)

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


class PutFresh(Operation[int | None], frozen=True):
    """Put messages that are no repeats, in one commit; return the id of the first, and ids are
    consecutive.

    None, and nothing is done, if a message repeats another, or if the queue must route earlier messages
    of its own logs before it can know. `PutReported` answers for each message then.
    """

    traits = Traits(needs=(on_queue("put"),), ability=FRESH_PUTS)

    queue: str
    records: Single | Batch


class FindMessage(Read[Fate], frozen=True):
    """Return the fate of a message, by the id that `put` returned."""

    traits = Traits(needs=(on_queue("read"),))

    queue: str
    id: int


class FindByDedup(Read[FoundMessage | None], frozen=True):
    """Find the message with a dedup id that has not ended, without a search; None without one."""

    traits = Traits(needs=(on_queue("read"),), ability=JOBS)

    queue: str
    dedup: str


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
