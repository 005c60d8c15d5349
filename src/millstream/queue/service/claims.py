"""Claims without waiting: route, claim, read.

Only the claim itself runs under the write lock; routing and reading payloads happen outside.
`rules.claim_plan` decides the steps of a claim, and `lines` has the claims that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import MillstreamError, WriteFailed
from millstream.limits import MiB
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.grants import Grant, Granted, Routed
from millstream.queue.model.message import Lot
from millstream.queue.rules.arrivals import ARRIVALS_MAX
from millstream.queue.rules.claim_plan import (
    ARRIVALS,
    BLOCKED,
    DAMAGED,
    DONE,
    OVERTAKEN,
    PLACED_ONLY,
    ROUTE,
    ROUTED_AHEAD,
    UNROUTED,
    ClaimFacts,
    ClaimPlan,
    ClaimRound,
    NextStep,
    next_step,
    plan_claim,
)
from millstream.queue.rules.claims import Claiming, claim, claim_next
from millstream.queue.rules.endings import finish, give_back
from millstream.queue.rules.lookup import find_queue
from millstream.queue.rules.sources import Facts, facts_of, has_patterns
from millstream.queue.runs import lots_claimed, lots_within
from millstream.queue.service.backlog import advanced, behind, need_facts, route_to_end
from millstream.queue.service.payloads import (
    fail_damaged,
    read_granted,
    read_grants,
    read_inside,
)
from millstream.queue.service.router import route, route_inside
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store

POP_BYTES_MAX = 64 * MiB
"""The most bytes of values that a pop takes, unless one message has more. Popped messages are gone, so
that a server could not take them back if the answer were too large for a connection."""

FEW_RECORDS = 128
"""The most new records that an event loop routes for a claim by itself."""

TIME_LIMITS_S = {DAMAGED: 1.0, BLOCKED: 1.0}
"""How long a claim repeats a step before it answers with the messages it has."""


def claim_now(
    store: Store, query: c.ClaimMessages, grants: Sequence[Grant] = ()
) -> tuple[list[Lot], int]:
    """Route as needed and claim without waiting; return the messages and the number that remain.

    `grants` are the grants of an earlier commit of the same claim; `query` requests the missing
    messages. If a later commit fails, the claim answers with the messages of earlier commits. So
    `WriteFailed` means that nothing was done, and the caller may repeat the claim, also with `acked`
    or `pop`.
    """
    # A claim needs several commits only in rare cases: routing was overtaken, messages were damaged
    # or blocked, or memory about the queue was outdated. One long transaction would be simpler, but
    # would route and read logs under the write lock, for which all producers wait.
    claimed = _Claimed(read_grants(store, query.queue, grants) if grants else [], bool(grants))
    try:
        _claim_in_rounds(store, query, claimed)
    except MillstreamError as error:
        is_done = claimed.has_begun and isinstance(error, WriteFailed)
        if not (claimed.lots or is_done):
            raise
        claimed.remaining = 0  # popped messages are gone if the caller does not get them
    return claimed.lots, claimed.remaining


class _Claimed(Struct):
    """The result so far of a claim of several commits."""

    lots: list[Lot]
    has_begun: bool
    """Whether a commit of the claim was made."""
    remaining: int = 0


def _claim_in_rounds(store: Store, query: c.ClaimMessages, claimed: _Claimed) -> None:
    """Run rounds of plan, commit and next step until the claim is done; collect its messages."""
    acked, results, missing, overtaken = query.acked, query.results, query.count, 0
    deadlines_s: dict[NextStep, float] = {}
    memory = store.caches.of(ClaimMemory)
    while True:
        plan = _plan(memory, query, missing, overtaken)
        routed: list[Routed] = []
        is_ahead = plan is ROUTED_AHEAD
        if plan is ROUTE:
            routed, is_ahead = _route_for_claim(store, query.queue, missing)
        command = c.ClaimRouted(
            queue=query.queue,
            count=missing,
            lease_ms=query.lease_ms,
            consumer=query.consumer,
            routed=routed,
            acked=acked,
            results=results,
            group_runs=query.group_runs,
        )
        if query.pop:
            granted, lots = store.run(partial(pop_routed, command=command))
            claimed.has_begun = True
        else:
            granted = store.run(Claiming(command))
            claimed.has_begun = True
            lots = read_granted(store, query.queue, granted)
        memory.routed_ahead[query.queue] = granted.fresh
        claimed.lots = claimed.lots + lots if claimed.lots else lots
        acked, results = [], []
        if query.pop and lots and _count(lots) < granted.count:  # a pop has taken `POP_BYTES_MAX`
            claimed.remaining = granted.remaining
            return
        ended = ClaimRound(
            plan=plan,
            missing=missing - granted.count,
            granted=granted,
            relied_on_ahead=is_ahead,
            has_progress=granted.expired > 0 or (bool(routed) and advanced(routed)),
            is_all_damaged=bool(granted.grants) and not lots,
            has_messages=bool(claimed.lots),
        )
        step = next_step(ended)
        exhausted: tuple[NextStep, ...] = ()
        while step is not DONE and not _has_time(store, deadlines_s, step):
            exhausted = *exhausted, step
            step = next_step(ended, exhausted)
        if step is DONE:
            claimed.remaining = granted.remaining
            return
        if step is OVERTAKEN:
            overtaken += 1
        elif step is UNROUTED:
            memory.keeping_up.discard(query.queue)
        if step is not DAMAGED:
            missing -= granted.count


def _plan(memory: ClaimMemory, query: c.ClaimMessages, missing: int, overtaken: int) -> ClaimPlan:
    """Choose the plan of a claim; messages routed ahead count as claimed if the plan uses them.

    So parallel claims do not rely on the same messages.
    """
    check_integer("a claim's count", missing)
    queue = query.queue
    routed_ahead = memory.routed_ahead.get(queue, 0)
    keeps_up = not query.pop and queue in memory.keeping_up
    plan = plan_claim(ClaimFacts(missing, routed_ahead, keeps_up, overtaken))
    if plan is ROUTED_AHEAD:
        memory.routed_ahead[queue] = routed_ahead - missing
    return plan


def _route_for_claim(store: Store, queue: str, missing: int) -> tuple[list[Routed], bool]:
    """Route for a claim; also return whether enough fresh messages wait without this."""
    facts = need_facts(store, queue)
    memory = store.caches.of(ClaimMemory)
    if facts.spec.indexed and not facts.sources and not has_patterns(facts.spec):
        memory.placed.add(queue)
    else:
        memory.placed.discard(queue)
    if facts.spec.indexed:
        facts = route_to_end(store, facts)
    routed = route(store, facts, missing)
    if facts.spec.takes_all and behind(facts) <= ARRIVALS_MAX:
        memory.keeping_up.add(queue)
    return routed, not routed and facts.fresh > 0 and facts.can_claim_lane


def _has_time(store: Store, deadlines_s: dict[NextStep, float], step: NextStep) -> bool:
    """Return whether a step may be repeated; its time limit starts at the first call."""
    limit_s = TIME_LIMITS_S.get(step)
    if limit_s is None:
        return True
    now_s = store.clock.seconds()
    return now_s < deadlines_s.setdefault(step, now_s + limit_s)


def without_acks(query: c.ClaimMessages) -> c.ClaimMessages:
    """Return the claim for its next try, without the acknowledgements that the first try made."""
    return replace(query, acked=[], results=[]) if query.acked else query


class ClaimMemory(Struct):
    """Facts about queues that the last claims of this process have noted, for the plan of the next
    claim.
    """

    routed_ahead: dict[str, int] = {}
    """By queue: the number of fresh messages that the last claim left."""
    keeping_up: set[str] = set()
    """Queues whose consumers keep up: their claims place new records without routing first."""
    placed: set[str] = set()
    """Queues with an index of which the last look found all records routed, as after puts that place
    their messages. An event loop makes the next claim by itself, without a thread that looks again.
    """


def forget_keeping_up(store: Store, queue: str) -> None:
    """Route before the next claim, because the commit of a claim could not place all new records."""
    memory = store.caches.of(ClaimMemory)
    memory.keeping_up.discard(queue)
    memory.placed.discard(queue)


def prepare_claim(store: Store, query: c.ClaimMessages) -> tuple[c.ClaimRouted, bool] | None:
    """Return a claim for the event loop's own commit, and whether the loop has routed for it.

    None if a thread must make the claim by `claim_now`. The commit may grant fewer messages than
    requested, because other claims were faster: then `claim_now` looks for missing messages.
    """
    # Routing by the loop blocks its callbacks, so it is limited to a few new records of a fast store
    # while no commit is in flight. Waking a thread costs more than routing these.
    if query.pop:
        return None
    memory = store.caches.of(ClaimMemory)
    plan = _plan(memory, query, query.count, 0)
    routed: list[Routed] = []
    needs_routed = plan is ROUTE and query.queue in memory.placed
    if needs_routed:
        plan = PLACED_ONLY
    elif plan is ROUTE and store.is_fast and not store.is_committing:
        queue = store.view(partial(facts_of, name=query.queue))
        if queue is None or not (queue.can_claim_lane and _has_few_records(queue)):
            return None
        routed = route(store, queue, query.count)
    elif plan is not ROUTED_AHEAD and plan is not ARRIVALS:
        return None
    command = c.ClaimRouted(
        queue=query.queue,
        count=query.count,
        lease_ms=query.lease_ms,
        consumer=query.consumer,
        routed=routed,
        acked=query.acked,
        results=query.results,
        group_runs=query.group_runs,
        needs_routed=needs_routed,
    )
    return command, plan is ROUTE


def claim_in_commit(
    tx: WriteTransaction, query: c.ClaimMessages
) -> tuple[Granted, list[Lot]] | None:
    """Claim and read a few messages in the commit that appends them; None if the commit cannot."""
    granted = None if query.pop else claim_next(tx, query)
    if granted is not None:
        return granted, _read_claimed(tx, query.queue, granted)
    if has_patterns(find_queue(tx.view, query.queue).spec):
        return None  # only a reader may ask which logs a pattern matches
    facts = facts_of(tx.view, query.queue)
    if facts is None or not can_claim_in_commit(facts) or not _has_few_records(facts):
        return None
    routed = route_inside(tx.view, facts)
    command = c.ClaimRouted(
        queue=query.queue,
        count=query.count,
        lease_ms=query.lease_ms,
        consumer=query.consumer,
        routed=routed,
        acked=[],
    )
    if query.pop:
        return pop_routed(tx, command)
    granted = claim(tx, command)
    return granted, _read_claimed(tx, query.queue, granted)


def _read_claimed(tx: WriteTransaction, queue: str, granted: Granted) -> list[Lot]:
    """Read claimed messages inside the commit of the claim; damaged messages fail."""
    lots, damaged = read_inside(tx, queue, granted.grants)
    if damaged:
        fail_damaged(tx, queue=queue, damaged=damaged)
    return lots


def _has_few_records(facts: Facts) -> bool:
    """Return whether only a few messages wait, and their new records are all in a single log."""
    if facts.partial or facts.spec.filter or len(facts.sources) > 1:
        return False
    return 0 < behind(facts) + facts.fresh <= FEW_RECORDS


def can_claim_in_commit(facts: Facts) -> bool:
    """Return whether the commit that appends messages of a queue can claim them.

    Priorities are read from a few records inside the commit: a job starts 0.6 ms sooner than with a
    commit of its own for the claim, 1.2 instead of 1.8 ms after its put (2026-11).
    """
    spec = facts.spec
    return not (
        facts.paused
        or spec.filter
        or spec.router
        or spec.group_by
        or spec.dedup_by
        or spec.delay_ms
    )


def note_ahead(store: Store, queue: str, granted: Granted) -> None:
    """Remember the number of fresh messages that a claim left."""
    store.caches.of(ClaimMemory).routed_ahead[queue] = granted.fresh


def pop_routed(tx: WriteTransaction, command: c.ClaimRouted) -> tuple[Granted, list[Lot]]:
    """Claim, read and acknowledge in a single commit.

    The messages are read inside the commit, because done messages may be deleted at any time.
    """
    granted = claim(tx, command)
    lots, surplus = lots_within(_read_claimed(tx, command.queue, granted), POP_BYTES_MAX)
    if lots:
        finish(tx, c.FinishClaims(command.queue, lots_claimed(lots), "ack"))
    if surplus:
        give_back(tx, c.ReturnClaims(command.queue, lots_claimed(surplus)))
    return granted, lots


def _count(lots: list[Lot]) -> int:
    return sum(len(lot.values) for lot in lots)
