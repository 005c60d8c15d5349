"""Claims without waiting: route, claim, read; and the watch for a queue's changes.

Only the claim itself runs under the write lock; routing and reading payloads happen outside.
`rules.claim_plan` decides the steps of a claim, and `lines` has the claims that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from millstream.errors import WriteFailed
from millstream.format import keys
from millstream.format.ids import bucket_of
from millstream.log.model.head import Name
from millstream.log.model.names import check_integer
from millstream.queue import commands as c
from millstream.queue.model.attempts import trials_of
from millstream.queue.model.message import Lot, Try, tries_of
from millstream.queue.model.spec import no_queue
from millstream.queue.rules.arrivals import ARRIVALS_MAX
from millstream.queue.rules.claim_plan import (
    ClaimFacts,
    ClaimPlan,
    ClaimRound,
    NextStep,
    next_step,
    plan_claim,
)
from millstream.queue.rules.claims import Claiming, claim, claim_next, place_routed
from millstream.queue.rules.endings import finish
from millstream.queue.rules.lookup import find_bucket, find_queue, need_queue
from millstream.queue.rules.sources import Facts, facts_of, find_facts, has_patterns, named_logs
from millstream.queue.service.info import change_in_s
from millstream.queue.service.payloads import (
    fail_damaged,
    read_granted,
    read_grants,
    read_inside,
)
from millstream.queue.service.router import PLACE_RECORDS, route, route_inside
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store

ROUTING_S_MAX = 1.0
"""How long a claim routes before it takes the placed messages; the upkeep routes the others."""

FEW_RECORDS = 128
"""The most new records that an event loop routes for a claim by itself."""

TIME_LIMITS_S = {NextStep.DAMAGED: 1.0, NextStep.BLOCKED: 1.0}
"""How long a claim repeats a step before it answers with the messages it has."""


def claim_now(
    store: Store, query: c.ClaimMessages, grants: Sequence[c.Grant] = ()
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
    except WriteFailed:
        if not claimed.has_begun:
            raise
        claimed.remaining = 0
    return claimed.lots, claimed.remaining


class _Claimed:
    """The result so far of a claim of several commits."""

    __slots__ = ("has_begun", "lots", "remaining")

    def __init__(self, lots: list[Lot], has_begun: bool) -> None:
        self.lots, self.remaining = lots, 0
        self.has_begun = has_begun
        """Whether a commit of the claim was made."""


def _claim_in_rounds(store: Store, query: c.ClaimMessages, claimed: _Claimed) -> None:
    """Run rounds of plan, commit and next step until the claim is done; collect its messages."""
    acked, missing, overtaken = query.acked, query.count, 0
    deadlines_s: dict[NextStep, float] = {}
    while True:
        facts = _facts_for(store, query, missing, overtaken)
        plan = plan_claim(facts)
        routed: list[c.Routed] = []
        is_ahead = plan is ClaimPlan.ROUTED_AHEAD
        if is_ahead:
            _use_ahead(store, query.queue, facts)
        elif plan is ClaimPlan.ROUTE:
            routed, is_ahead = _route_for_claim(store, query.queue, missing)
        command = c.ClaimRouted(query.queue, missing, query.lease_ms, query.consumer, routed, acked)
        granted, lots = _commit_claim(store, query, command, claimed)
        acked = []
        ended = ClaimRound(
            plan,
            missing - granted.count,
            granted,
            is_ahead,
            granted.expired > 0 or (bool(routed) and _advanced(routed)),
            bool(granted.grants) and not lots,
            bool(claimed.lots),
        )
        step = next_step(ended)
        exhausted: tuple[NextStep, ...] = ()
        while step is not NextStep.DONE and not _has_time(store, deadlines_s, step):
            exhausted = *exhausted, step
            step = next_step(ended, exhausted)
        if step is NextStep.DONE:
            claimed.remaining = granted.remaining
            return
        if step is NextStep.OVERTAKEN:
            overtaken += 1
        elif step is NextStep.UNROUTED:
            forget_keeping_up(store, query.queue)
        if step is not NextStep.DAMAGED:
            missing -= granted.count


def _facts_for(store: Store, query: c.ClaimMessages, missing: int, overtaken: int) -> ClaimFacts:
    check_integer("a claim's count", missing)
    caches, queue = store.caches, query.queue
    keeps_up = not query.pop and queue in caches.of(KeepingUp)
    return ClaimFacts(missing, caches.of(RoutedAhead).get(queue, 0), keeps_up, overtaken)


def _route_for_claim(store: Store, queue: str, missing: int) -> tuple[list[c.Routed], bool]:
    """Route for a claim; also return whether enough fresh messages wait without this."""
    facts = need_facts(store, queue)
    if facts.spec.indexed:
        facts = route_to_end(store, facts)
    routed = route(store, facts, missing)
    if facts.spec.takes_all and _behind(facts) <= ARRIVALS_MAX:
        store.caches.of(KeepingUp).add(queue)
    return routed, not routed and facts.fresh > 0 and facts.can_claim_lane


def _commit_claim(
    store: Store, query: c.ClaimMessages, command: c.ClaimRouted, claimed: _Claimed
) -> tuple[c.Granted, list[Lot]]:
    """Commit a round of a claim and read its messages."""
    if query.pop:
        granted, lots = store.run(partial(pop_routed, command=command))
        claimed.has_begun = True
    else:
        granted = store.run(Claiming(command))
        claimed.has_begun = True
        lots = read_granted(store, query.queue, granted)
    note_ahead(store, query.queue, granted)
    claimed.lots = claimed.lots + lots if claimed.lots else lots
    return granted, lots


def _has_time(store: Store, deadlines_s: dict[NextStep, float], step: NextStep) -> bool:
    """Return whether a step may be repeated; its time limit starts at the first call."""
    limit_s = TIME_LIMITS_S.get(step)
    if limit_s is None:
        return True
    now_s = store.clock.seconds()
    return now_s < deadlines_s.setdefault(step, now_s + limit_s)


def _advanced(routed: Sequence[c.Routed]) -> bool:
    return any(stretch.stop > stretch.start for stretch in routed)


def without_acks(query: c.ClaimMessages) -> c.ClaimMessages:
    """Return the claim for its next try, without the acknowledgements that the first try made."""
    return replace(query, acked=[]) if query.acked else query


class RoutedAhead(dict[str, int]):
    """By queue: the number of fresh messages that the last claim left."""


class KeepingUp(set[str]):
    """Queues whose consumers keep up: their claims place new records without routing first."""


def forget_keeping_up(store: Store, queue: str) -> None:
    """Route before the next claim, because the commit of a claim could not place all new records."""
    store.caches.of(KeepingUp).discard(queue)


def prepare_claim(store: Store, query: c.ClaimMessages) -> tuple[c.ClaimRouted, bool] | None:
    """Return a claim for the event loop's own commit, and whether the loop has routed for it.

    None if a thread must make the claim by `claim_now`. The commit may grant fewer messages than
    requested, because other claims were faster: then `claim_now` looks for missing messages.
    """
    # Routing by the loop blocks its callbacks, so it is limited to a few new records of a fast store
    # while no commit is in flight. Waking a thread costs more than routing these.
    if query.pop:
        return None
    facts = _facts_for(store, query, query.count, 0)
    plan = plan_claim(facts)
    routed: list[c.Routed] = []
    if plan is ClaimPlan.ROUTED_AHEAD:
        _use_ahead(store, query.queue, facts)
    elif plan is ClaimPlan.ROUTE and store.is_fast and not store.is_committing:
        queue = store.view(partial(facts_of, name=query.queue))
        if queue is None or not _has_few_records(queue):
            return None
        routed = route(store, queue, query.count)
    elif plan is not ClaimPlan.ARRIVALS:
        return None
    command = c.ClaimRouted(
        query.queue, query.count, query.lease_ms, query.consumer, routed, query.acked
    )
    return command, plan is ClaimPlan.ROUTE


def claim_in_commit(
    tx: WriteTransaction, query: c.ClaimMessages
) -> tuple[c.Granted, list[Lot]] | None:
    """Claim and read a few messages in the commit that appends them; None if the commit cannot."""
    granted = None if query.pop else claim_next(tx, query)
    if granted is not None:
        return granted, _read_claimed(tx, query.queue, granted)
    if has_patterns(find_queue(tx.view, query.queue).spec):
        return None  # only a reader may ask which logs a pattern matches
    facts = facts_of(tx.view, query.queue)
    if facts is None or not _can_claim_in_commit(facts) or not _has_few_records(facts):
        return None
    routed = route_inside(tx.view, facts)
    command = c.ClaimRouted(query.queue, query.count, query.lease_ms, query.consumer, routed, [])
    if query.pop:
        return pop_routed(tx, command)
    granted = claim(tx, command)
    return granted, _read_claimed(tx, query.queue, granted)


def _read_claimed(tx: WriteTransaction, queue: str, granted: c.Granted) -> list[Lot]:
    """Read claimed messages inside the commit of the claim; damaged messages fail."""
    lots, damaged = read_inside(tx, queue, granted.grants)
    if damaged:
        fail_damaged(tx, queue=queue, damaged=damaged)
    return lots


def _has_few_records(facts: Facts) -> bool:
    """Return whether only a few messages wait, in a single log, to be claimed in number order."""
    if facts.partial or not facts.can_claim_lane or facts.spec.filter or len(facts.sources) > 1:
        return False
    return 0 < _behind(facts) + facts.fresh <= FEW_RECORDS


def _can_claim_in_commit(facts: Facts) -> bool:
    """Return whether the commit that appends messages of a queue can claim them."""
    spec = facts.spec
    if spec.filter or spec.looks_at_headers or spec.router:
        return False
    return facts.can_claim_lane


def note_ahead(store: Store, queue: str, granted: c.Granted) -> None:
    """Remember the number of fresh messages that a claim left."""
    store.caches.of(RoutedAhead)[queue] = granted.fresh


def _use_ahead(store: Store, queue: str, facts: ClaimFacts) -> None:
    """Count messages routed ahead as claimed, so that parallel claims do not rely on them too."""
    store.caches.of(RoutedAhead)[queue] = facts.routed_ahead - facts.missing


def pop_routed(tx: WriteTransaction, command: c.ClaimRouted) -> tuple[c.Granted, list[Lot]]:
    """Claim, read and acknowledge in a single commit.

    The messages are read inside the commit, because done messages may be deleted at any time.
    """
    granted = claim(tx, command)
    lots = _read_claimed(tx, command.queue, granted)
    popped = [(lot.label.claim_id, len(lot.values), lot.label.attempt) for lot in lots]
    if popped:
        finish(tx, c.FinishClaims(command.queue, popped, "ack"))
    return granted, lots


def route_to_end(store: Store, facts: Facts, *, waits: bool = True) -> Facts:
    """Place the unrouted messages of an indexed queue in several commits, but for the last range.

    Without `waits`, it stops when another commit is in flight.
    """
    until = store.clock.seconds() + ROUTING_S_MAX
    while store.clock.seconds() < until and _behind(facts) > PLACE_RECORDS:
        routed = route(store, facts, 0)
        place = partial(place_routed, queue=facts.name, routed=routed)
        if waits:
            store.run(place)
        elif store.attempt(place) is None:
            break
        facts = need_facts(store, facts.name)
        if not _advanced(routed):
            break
    return facts


def route_some(store: Store, name: str) -> bool:
    """Place a range of unrouted messages of an indexed queue; return True if more remain."""
    if not store.view(lambda view: find_queue(view, name).spec.indexed):
        return False
    facts = find_facts(store, name)
    if facts is None or not _behind(facts):
        return False
    routed = route(store, facts, 0)
    store.run(partial(place_routed, queue=name, routed=routed))
    ends = {source.log_id: source.end for source in facts.sources}
    done = sum(stretch.stop >= ends[stretch.log_id] for stretch in routed)
    return done < len(ends) and _advanced(routed)


def _behind(facts: Facts) -> int:
    return sum(source.behind for source in facts.sources)


def route_before(store: Store, queues: Iterable[str]) -> None:
    """Route earlier messages before a put for later: later messages follow earlier ones, or repeat them."""
    for name in queues:
        facts = find_facts(store, name)
        if facts is not None and facts.spec.looks_at_headers:
            route_ahead(Reading(store, waits=True), name, facts.fresh + 1)


class WatchedKeys(NamedTuple):
    """The keys whose change may make messages of a queue claimable."""

    keys: list[bytes]
    """The keys of the queue and of its named logs."""
    claimable: list[bytes]
    """The names of logs whose new records the commit of an append can claim."""


class KeysWatched(dict[str, WatchedKeys]):
    """By queue: the keys that its consumers watched last."""


def watched_before(store: Store, name: str) -> WatchedKeys:
    """Return the keys that consumers of a queue watched last, or by a glance without a last watch."""
    watched = store.caches.of(KeysWatched).get(name)
    return glance(store, name)[0] if watched is None else watched


def glance(store: Store, name: str) -> tuple[WatchedKeys, float]:
    """Return the keys to watch for a queue, and the seconds until time alone makes a message due.

    The seconds are 0 if a message is claimable now. Watchers of the queue also wake when a log that
    matches a pattern changes. A glance usually reads the store once, because a consumer that keeps
    up glances before every message.
    """
    facts = None
    while facts is None or facts.partial:
        facts, ids, change_s = store.view(partial(_glance, name=name))
    names = [keys.log_name(log) for log in named_logs(name, facts.spec)]
    watched = WatchedKeys(
        [keys.queue(name), *names, *map(keys.head, ids)],
        names if _can_claim_in_commit(facts) else [],
    )
    store.caches.of(KeysWatched)[name] = watched
    return watched, inf if change_s is None else change_s


def _glance(view: View, name: str) -> tuple[Facts, list[int], float | None]:
    """Return the facts about a queue, the ids of its named logs, and the seconds until a due time."""
    facts = facts_of(view, name)
    if facts is None:
        raise no_queue(name)
    logs = [view.entity(keys.log_name(log), Name) for log in named_logs(name, facts.spec)]
    unrouted = _behind(facts) > 0
    change_s = None if facts.paused else change_in_s(view, name, unrouted=unrouted)
    return facts, [log.log_id for log in logs if log.log_id], change_s


def patience(store: Store, name: str, wait_max_s: float) -> float:
    """Return for how long no message becomes claimable without a change; 0 if a message is now."""
    return min(wait_max_s, glance(store, name)[1])


def need_facts(store: Store, name: str, *, all_logs: bool = False) -> Facts:
    """Return the facts about an existing queue, or raise."""
    facts = find_facts(store, name, all_logs=all_logs)
    if facts is None:
        raise no_queue(name)
    return facts


def route_ahead(reading: Reading, name: str, count: int) -> None:
    """Route until `count` messages are placed.

    While a commit is in flight, an indexed queue that is far behind is routed by a single range.
    """
    store = reading.store
    facts = need_facts(store, name)
    if facts.spec.indexed and not store.is_committing:
        facts = route_to_end(store, facts, waits=reading.waits)
    routed = route(store, facts, count)
    if routed:
        reading.run(partial(place_routed, queue=name, routed=routed))


def get_attempts(store: Store, query: c.GetAttempts) -> list[Try]:
    """Return the attempts at a message, oldest first."""

    def ask(view: View) -> list[Try]:
        queue = need_queue(view, query.queue)
        bucket_id = bucket_of(query.claim_id)
        slot = query.claim_id - bucket_id
        history = trials_of(find_bucket(view, queue, bucket_id), slot, slot + 1)[0]
        return tries_of(history, view.state.time.epoch_ms())

    return store.view(ask)
