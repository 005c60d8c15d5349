"""What consumers ask for, in several steps: route, claim, read; `waiting` is how they wait.

Only the claim itself runs under the write lock; looking for messages and reading their payloads
happen outside it.
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
from millstream.queue.rules.claims import Claiming, claim, claim_next, place_routed
from millstream.queue.rules.endings import finish
from millstream.queue.rules.lookup import find_bucket, find_queue, need_queue
from millstream.queue.rules.sources import Facts, facts_of, find_facts, has_patterns, named_logs
from millstream.queue.service.info import change_in_s
from millstream.queue.service.reading import (
    fail_damaged,
    read_granted,
    read_grants,
    read_inside,
)
from millstream.queue.service.routing import PLACE_RECORDS, route, route_inside
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.hypothetical import Reading
from millstream.store.state.view import View
from millstream.store.store import Store

ROUTING_S_MAX = 1.0
"""How long a claim routes before it takes what there is; the rest is routed in the background."""

OVERTAKEN_MAX = 3
"""How often a claim routes again because others did so meanwhile; then it takes what there is."""

CLOSE_RECORDS = 128
"""Messages that a claim may have to look at if it is made by an event loop."""

PASSING_S_MAX = 1.0
"""How long a claim passes over messages whose groups are held up before it takes what there is."""

DAMAGED_S_MAX = 1.0
"""How long a claim goes on while it meets nothing but damaged messages."""


def claim_now(
    store: Store, query: c.ClaimMessages, grants: Sequence[c.Grant] = ()
) -> tuple[list[Lot], int]:
    """Route as far as is needed and claim what there is, without waiting; and how many are left.

    `grants` are those that a claim of what was routed has got already; `query` asks for the rest. If
    one of several commits fails, what those before it have done counts: so `WriteFailed` says that
    nothing at all was done, and the caller may ask again, also for `acked` and with `pop`.
    """
    claimed = _Claimed(read_grants(store, query.queue, grants) if grants else [], bool(grants))
    try:
        _claim_in_rounds(store, query, claimed)
    except WriteFailed:
        if not claimed.has_begun:
            raise
        claimed.left = 0
    return claimed.found, claimed.left


class _Claimed:
    """What a claim of several commits has got so far."""

    __slots__ = ("found", "has_begun", "left")

    def __init__(self, found: list[Lot], has_begun: bool) -> None:
        self.found, self.left = found, 0
        self.has_begun = has_begun
        """Whether one of its commits was made."""


def _claim_in_rounds(store: Store, query: c.ClaimMessages, claimed: _Claimed) -> None:
    """Route and claim until there is enough, or nothing more; note what was got."""
    acked, count = query.acked, query.count
    until_s = passing_s = 0.0
    overtaken = 0
    while True:
        routed = []
        trusted = _take_ahead(store, query.queue, count)
        at_once = not trusted and count > 0 and _is_level(store, query)
        if count > 0 and not (trusted or at_once) and overtaken < OVERTAKEN_MAX:
            facts = need_facts(store, query.queue)
            if facts.spec.indexed:
                facts = route_to_end(store, facts)
            routed = route(store, facts, count)
            trusted = not routed and facts.fresh > 0 and facts.can_claim_lane
            if facts.spec.takes_all and _behind(facts) <= ARRIVALS_MAX:
                store.caches.of(LevelQueues).add(query.queue)
        command = c.ClaimRouted(query.queue, count, query.lease_ms, query.consumer, routed, acked)
        if query.pop:
            granted, read = store.run(partial(pop_routed, command=command))
            claimed.has_begun = True
        else:
            granted = store.run(Claiming(command))
            claimed.has_begun = True
            read = read_granted(store, query.queue, granted)
        note_ahead(store, query.queue, granted)
        claimed.found = claimed.found + read if claimed.found else read
        acked = []
        if granted.is_overtaken:
            overtaken += 1
            continue
        if granted.grants and not read:  # all of these were damaged, and have failed
            now_s = store.clock.seconds()
            until_s = until_s or now_s + DAMAGED_S_MAX
            if now_s < until_s:
                continue
        count -= granted.count
        if count > 0 and at_once and not granted.is_fully_routed:
            forget_level(store, query.queue)  # look for what it did not find
            continue
        if granted.is_cut_short and count > 0:
            passing_s = passing_s or store.clock.seconds() + PASSING_S_MAX
            if store.clock.seconds() < passing_s:
                continue
        if count > 0 and not at_once:
            moved = granted.expired or any(some.stop > some.start for some in routed)
            short = trusted and not granted.fresh  # others were faster: look further
            if short or (moved and not claimed.found):
                continue
        claimed.left = granted.remaining
        return


def without_acks(query: c.ClaimMessages) -> c.ClaimMessages:
    """The claim for its next try, without the acknowledgements: the first try made them."""
    return replace(query, acked=[]) if query.acked else query


class RoutedAhead(dict[str, int]):
    """By queue: how many messages are known to be routed, so that a claim need not look."""


class LevelQueues(set[str]):
    """Queues whose consumers keep up: claims place what comes themselves, without a look before."""


def _is_level(store: Store, query: c.ClaimMessages) -> bool:
    return not query.pop and query.queue in store.caches.of(LevelQueues)


def forget_level(store: Store, queue: str) -> None:
    """A claim has not found all that a queue's logs may hold: the next one looks at them first."""
    store.caches.of(LevelQueues).discard(queue)


def claim_level(store: Store, query: c.ClaimMessages) -> c.ClaimRouted | None:
    """The claim on a queue whose consumers keep up; None if its logs have to be looked at first.

    If it gets fewer than it asks for and is not level, `claim_now` looks for the rest.
    """
    if query.count <= 0 or not _is_level(store, query):
        return None
    return c.ClaimRouted(query.queue, query.count, query.lease_ms, query.consumer, [], query.acked)


def claim_ahead(store: Store, query: c.ClaimMessages) -> c.ClaimRouted | None:
    """The claim of messages that are known to be routed; None if they have to be looked for.

    Others may be faster: if it gets fewer and none is left, `claim_now` looks for the rest.
    """
    if query.pop or not _take_ahead(store, query.queue, query.count):
        return None
    return c.ClaimRouted(query.queue, query.count, query.lease_ms, query.consumer, [], query.acked)


def claim_close(store: Store, query: c.ClaimMessages) -> c.ClaimRouted | None:
    """The claim of a few messages that came a moment ago, routed on the way; None if it is not that.

    It takes little time, so that an event loop may do it, while no commit is in flight.
    """
    if query.pop or query.count <= 0:
        return None
    facts = store.view(partial(facts_of, name=query.queue))
    if facts is None or not _is_close(facts):
        return None
    routed = route(store, facts, query.count)
    return c.ClaimRouted(
        query.queue, query.count, query.lease_ms, query.consumer, routed, query.acked
    )


def claim_arriving(
    tx: WriteTransaction, query: c.ClaimMessages
) -> tuple[c.Granted, list[Lot]] | None:
    """Claim and read a few messages in the commit that has brought them; None if it is not that."""
    granted = None if query.pop else claim_next(tx, query)
    if granted is not None:
        return granted, _read_claimed(tx, query.queue, granted)
    facts = facts_of(tx.view, query.queue)
    if facts is None or not _can_be_close(facts) or not _is_close(facts):
        return None
    routed = route_inside(tx.view, facts)
    command = c.ClaimRouted(query.queue, query.count, query.lease_ms, query.consumer, routed, [])
    if query.pop:
        return pop_routed(tx, command)
    granted = claim(tx, command)
    return granted, _read_claimed(tx, query.queue, granted)


def _read_claimed(tx: WriteTransaction, queue: str, granted: c.Granted) -> list[Lot]:
    """The messages that a claim got, read in its own commit; those that are damaged fail."""
    found, damaged = read_inside(tx, queue, granted.grants)
    if damaged:
        fail_damaged(tx, queue=queue, damaged=damaged)
    return found


def _is_close(facts: Facts) -> bool:
    """Whether all that waits came a moment ago: a few messages, in one log, to be taken in turn."""
    if facts.partial or not facts.can_claim_lane or facts.spec.filter or len(facts.sources) > 1:
        return False
    return 0 < _behind(facts) + facts.fresh <= CLOSE_RECORDS


def _can_be_close(facts: Facts) -> bool:
    """Whether messages of a queue can be claimed by the commit that appends them."""
    spec = facts.spec
    if spec.filter or spec.looks_at_headers or spec.router or has_patterns(spec):
        return False
    return facts.can_claim_lane


def note_ahead(store: Store, queue: str, granted: c.Granted) -> None:
    """Remember how many messages a claim has left that are routed and can be claimed at once."""
    store.caches.of(RoutedAhead)[queue] = granted.fresh


def _take_ahead(store: Store, queue: str, count: int) -> bool:
    """Whether so many are known to be routed; they are then counted as taken."""
    ahead = store.caches.of(RoutedAhead)
    known = ahead.get(queue, 0)
    check_integer("a claim's count", count)
    if not 0 < count <= known:
        return False
    ahead[queue] = known - count
    return True


def pop_routed(tx: WriteTransaction, command: c.ClaimRouted) -> tuple[c.Granted, list[Lot]]:
    """Claim, read and acknowledge in one commit: what is done may be forgotten at any time."""
    granted = claim(tx, command)
    found = _read_claimed(tx, command.queue, granted)
    popped = [(lot.label.claim_id, len(lot.values), lot.label.attempt) for lot in found]
    if popped:
        finish(tx, c.FinishClaims(command.queue, popped, "ack"))
    return granted, found


def route_to_end(store: Store, facts: Facts, *, waits: bool = True) -> Facts:
    """Place what the logs of an indexed queue hold, a commit at a time, but for the last stretch.

    Without `waits`, only until a commit of others is in flight.
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
        if not any(found.stop > found.start for found in routed):
            break
    return facts


def route_some(store: Store, name: str) -> bool:
    """Place a stretch of what waits in the logs of an indexed queue; True if more is left."""
    if not store.view(lambda view: find_queue(view, name).spec.indexed):
        return False
    facts = find_facts(store, name)
    if facts is None or not _behind(facts):
        return False
    routed = route(store, facts, 0)
    store.run(partial(place_routed, queue=name, routed=routed))
    ends = {source.log_id: source.end for source in facts.sources}
    done = sum(found.stop >= ends[found.log_id] for found in routed)
    return done < len(ends) and any(found.stop > found.start for found in routed)


def _behind(facts: Facts) -> int:
    return sum(source.behind for source in facts.sources)


def route_before(store: Store, queues: Iterable[str]) -> None:
    """Route what was put before messages for later: these are placed behind it, or are its repeats."""
    for name in queues:
        facts = find_facts(store, name)
        if facts is not None and facts.spec.looks_at_headers:
            route_ahead(Reading(store, waits=True), name, facts.fresh + 1)


class WatchedKeys(NamedTuple):
    """What changes when there may be something for a queue's consumers."""

    keys: list[bytes]
    """The queue, and the logs that it names."""
    bringing: list[bytes]
    """Of these, the names of logs whose records can be claimed by the commit that appends them."""


class KeysWatched(dict[str, WatchedKeys]):
    """By queue: what its consumers watched last."""


def watched_before(store: Store, name: str) -> WatchedKeys:
    """What consumers of a queue watched last, or would watch now: a glance tells if it has changed."""
    found = store.caches.of(KeysWatched).get(name)
    return glance(store, name)[0] if found is None else found


def glance(store: Store, name: str) -> tuple[WatchedKeys, float]:
    """What is to be watched for a queue; and for how long nothing else can bring something to claim.

    That is 0 if there is something now. Callers that wait for the queue are woken as well when a log
    changes that a pattern matches. It is one look at the store, as a rule: a consumer that keeps up
    waits for each message.
    """
    facts = None
    while facts is None or facts.partial:
        facts, ids, change_s = store.view(partial(_glance, name=name))
    names = [keys.log_name(log) for log in named_logs(name, facts.spec)]
    watched = WatchedKeys(
        [keys.queue(name), *names, *map(keys.head, ids)], names if _can_be_close(facts) else []
    )
    store.caches.of(KeysWatched)[name] = watched
    return watched, inf if change_s is None else change_s


def _glance(view: View, name: str) -> tuple[Facts, list[int], float | None]:
    """How a queue stands, the ids of the logs that it names, and when time alone brings something."""
    facts = facts_of(view, name)
    if facts is None:
        raise no_queue(name)
    logs = [view.entity(keys.log_name(log), Name) for log in named_logs(name, facts.spec)]
    unrouted = _behind(facts) > 0
    change_s = None if facts.paused else change_in_s(view, name, unrouted=unrouted)
    return facts, [log.log_id for log in logs if log.log_id], change_s


def patience(store: Store, name: str, most_s: float) -> float:
    """How long there can be nothing to claim unless something changes; 0 if there is something."""
    return min(most_s, glance(store, name)[1])


def need_facts(store: Store, name: str, *, all_logs: bool = False) -> Facts:
    """What routing needs to know of a queue; there must be one."""
    facts = find_facts(store, name, all_logs=all_logs)
    if facts is None:
        raise no_queue(name)
    return facts


def route_ahead(reading: Reading, name: str, count: int) -> None:
    """Route as many messages as are to be looked at.

    Of an indexed queue that is far behind, only the next stretch while a commit is in flight.
    """
    store = reading.store
    facts = need_facts(store, name)
    if facts.spec.indexed and not store.is_committing:
        facts = route_to_end(store, facts, waits=reading.waits)
    routed = route(store, facts, count)
    if routed:
        reading.run(partial(place_routed, queue=name, routed=routed))


def get_attempts(store: Store, query: c.GetAttempts) -> list[Try]:
    """How the attempts at a message went, in order."""

    def ask(view: View) -> list[Try]:
        queue = need_queue(view, query.queue)
        bucket_id = bucket_of(query.claim_id)
        slot = query.claim_id - bucket_id
        history = trials_of(find_bucket(view, queue, bucket_id), slot, slot + 1)[0]
        return tries_of(history, view.state.time.epoch_ms())

    return store.view(ask)
