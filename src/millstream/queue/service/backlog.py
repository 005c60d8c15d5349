"""The unrouted backlog of a queue: how far its logs are ahead, and routing outside a claim.

Indexed queues must place all messages before a claim can choose among them, so long backlogs are placed
in several commits, by claims and by the upkeep. Peeks and puts for later route as well. A queue with a
log of changes is routed in the background too, so that the log tells of its messages soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from millstream.errors import Overloaded
from millstream.queue.model.grants import Routed
from millstream.queue.model.spec import no_queue
from millstream.queue.rules.claims import place_routed
from millstream.queue.rules.lookup import find_queue
from millstream.queue.rules.sources import Facts, find_facts
from millstream.queue.service.router import PLACE_RECORDS, route
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.hypothetical import Reading
from millstream.store.store import Store

ROUTING_S_MAX = 1.0
"""How long a claim routes before it takes the placed messages; the upkeep routes the others."""


def need_facts(store: Store, name: str, *, all_logs: bool = False) -> Facts:
    """Return the facts about an existing queue, or raise."""
    facts = find_facts(store, name, all_logs=all_logs)
    if facts is None:
        raise no_queue(name)
    return facts


def behind(facts: Facts) -> int:
    """Return the number of records that a queue's logs hold and the queue has not routed."""
    return sum(source.behind for source in facts.sources)


def advanced(routed: Sequence[Routed]) -> bool:
    """Return whether routing passed any record."""
    return any(stretch.stop > stretch.start for stretch in routed)


def route_to_end(store: Store, facts: Facts, *, waits: bool = True) -> Facts:
    """Place the unrouted messages of an indexed queue in several commits, but for the last range.

    Without `waits`, it stops when another commit is in flight.
    """
    until = store.clock.seconds() + ROUTING_S_MAX
    while store.clock.seconds() < until and behind(facts) > PLACE_RECORDS:
        routed = route(store, facts, 0)
        place = partial(place_routed, queue=facts.name, routed=routed)
        if waits:
            store.run(place)
        elif store.attempt(place) is None:
            break
        facts = need_facts(store, facts.name)
        if not advanced(routed):
            break
    return facts


def route_some(store: Store, name: str) -> bool:
    """Place a range of unrouted messages of an indexed queue, or of a queue with a log of changes;
    return True if more remain.
    """
    spec = store.view(lambda view: find_queue(view, name).spec)
    if not (spec.indexed or spec.changes):
        return False
    facts = find_facts(store, name)
    if facts is None or not behind(facts):
        return False
    routed = route(store, facts, 0 if spec.indexed else facts.fresh + PLACE_RECORDS)
    store.run(partial(place_routed, queue=name, routed=routed))
    ends = {source.log_id: source.end for source in facts.sources}
    done = sum(stretch.stop >= ends[stretch.log_id] for stretch in routed)
    return done < len(ends) and advanced(routed)


def route_before(store: Store, queues: Iterable[str]) -> None:
    """Route earlier messages before a put for later: later messages follow earlier ones, or repeat them.

    Another caller may route a part of them meanwhile, and then the own result is void. So this looks
    again until all messages that were there at the call have their place, for up to one second.
    """
    for name in queues:
        facts = find_facts(store, name)
        if facts is None or not facts.spec.looks_at_headers:
            continue
        ends = {source.log_id: source.end for source in facts.sources}
        missing, until_s = behind(facts), store.clock.seconds() + ROUTING_S_MAX
        while missing and store.clock.seconds() < until_s:
            route_ahead(Reading(store, waits=True), name, _count_with(facts, missing))
            facts = need_facts(store, name)
            before, missing = missing, _behind(facts, ends)
            if missing >= before:
                break


def _behind(facts: Facts, ends: Mapping[int, int]) -> int:
    """Return the number of unrouted records before the given ends of logs."""
    sources = [source for source in facts.sources if source.position < ends.get(source.log_id, 0)]
    return sum(replace(source, end=ends[source.log_id]).behind for source in sources)


def _count_with(facts: Facts, missing: int) -> int:
    """Return how many messages wait in order once missing messages are routed, as far as one commit goes."""
    return facts.fresh + min(missing, PLACE_RECORDS)


def placements_before(
    store: Store, queues: Iterable[str]
) -> list[Callable[[WriteTransaction], object]]:
    """Return operations that do what `route_before` does, for a caller that holds the writer's turn."""
    placements: list[Callable[[WriteTransaction], object]] = []
    for name in queues:
        facts = find_facts(store, name)
        if facts is not None and facts.spec.looks_at_headers:
            routed = route(store, facts, _count_with(facts, behind(facts)))
            if routed:
                placements.append(partial(place_routed, queue=name, routed=routed))
    return placements


def route_through(store: Store, name: str, log: str, offset: int | None = None) -> None:
    """Route one of a queue's own logs through an offset, or to its present end."""
    stop = None if offset is None else offset + 1
    while True:
        facts = need_facts(store, name, all_logs=True)
        source = next((source for source in facts.sources if source.name == log), None)
        if source is None:
            return
        stop = source.end if stop is None else min(stop, source.end)
        if source.position >= stop:
            return
        routed = route(store, facts, facts.fresh + stop - source.position)
        store.run(partial(place_routed, queue=name, routed=routed))
        if not advanced(routed):
            raise Overloaded(
                f"queue {name!r} could not look at its earlier messages; try again", name=name
            )


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
