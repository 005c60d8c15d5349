"""Promise: messages that only wait for their turn are placed as all others are, by a shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream import Millstream
from millstream.format import keys
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.grants import Routed
from millstream.queue.model.slots import Span
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.claims import place_routed
from millstream.queue.service.assignment import Assignment, AssignMessages
from millstream.testing import Probe, SimulatedClock, memory_store

from .conftest import fold_all

RECORDS = 60
SIZES = (1, 20, 1, 1, 17, 20)
"""Of what is appended together; singles, too."""


def no_lane(spec: QueueSpec, routed: Routed) -> None:
    """Let no batch go the short way."""


def runs_of(start: int, chosen: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of what was chosen: 1 begins a run, 2 goes on with the last one if it is a neighbour."""
    runs: list[tuple[int, int]] = []
    for offset, how in enumerate(chosen, start):
        if how == 2 and runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        elif how:
            runs.append((offset, 1))
    return runs


def filled(store: Millstream, clock: SimulatedClock, chosen: list[list[int]]) -> list[Bucket]:
    """The buckets of a queue that was assigned some records of a log, in several commits."""
    at = 0
    for size in SIZES:
        store.log("jobs").append_many([b"%d" % n for n in range(at, at + size)])
        clock.advance(0.005)
        at += size
    assert at == RECORDS
    store.queue("q", sources=["jobs"], router="spark", start="earliest", bucket_exponent=1)
    start = 0
    for some in chosen:
        stop = min(RECORDS, start + len(some))
        runs = runs_of(start, some[: stop - start])
        store.session.execute(AssignMessages([Assignment("q", "jobs", start, stop, runs)]))
        start = stop
    fold_all(store)
    found = Probe(store).rows(keys.BUCKET)
    return [Bucket.decode(found[key]) for key in sorted(found)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=4))
def test_the_short_way_places_what_the_long_one_does(chosen: list[list[int]]) -> None:
    buckets: list[list[Bucket]] = []
    for way in ("short", "long"):
        clock = SimulatedClock()
        with pytest.MonkeyPatch.context() as patch:
            if way == "long":
                patch.setattr("millstream.queue.rules.placement._lane_of", no_lane)
            with millstream.open(":memory:", clock=clock) as store:
                buckets.append(filled(store, clock, chosen))
    short, long = buckets
    assert [one.spans for one in short] == [one.spans for one in long]
    assert [one.states for one in short] == [one.states for one in long]
    whole = [how for some in chosen for how in some][:RECORDS]
    assert sum(len(one.states) for one in short) == sum(how > 0 for how in whole)


def claimed_in_order(appends: list[list[str]], spec: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the keys of each claim, of a queue whose log got these keys in several commits."""
    with millstream.open(":memory:", clock=SimulatedClock()) as store:
        queue = store.queue("q", sources=["jobs"], start="earliest", **spec)
        claims: list[tuple[str, ...]] = []
        number = 0
        for names in appends:
            headers = [{"p": int(name[1])} for name in names]
            values = [b"%d" % (number + step) for step in range(len(names))]
            number += len(names)
            keys_of_names = [name[0] for name in names]
            store.log("jobs").append_many(values, keys=keys_of_names, headers=headers)
            messages = queue.claim(3)
            claims.append(tuple(message.value.decode() for message in messages))
            queue.ack(messages[:1])
        while messages := queue.claim(100):
            claims.append(tuple(message.value.decode() for message in messages))
            queue.ack(messages)
        return claims


@pytest.mark.parametrize(
    "spec",
    [
        {"group_by": "_key", "group_order": False, "group_in_flight": 1},
        {"group_by": "_key", "group_order": False, "group_in_flight": 2, "priority_by": "p"},
        {"group_by": "_key"},
        {"priority_by": "p"},
        {"group_by": "_key", "priority_by": "p"},
    ],
    ids=lambda spec: "-".join(spec),
)
@given(
    st.lists(
        st.lists(st.sampled_from(["a0", "a1", "b0", "b1", "c2"]), min_size=1, max_size=8),
        min_size=1,
        max_size=5,
    )
)
def test_groups_and_priorities_are_claimed_alike_by_both_ways(
    spec: dict[str, Any], appends: list[list[str]]
) -> None:
    short = claimed_in_order(appends, spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.queue.rules.placement._lane_of", no_lane)
        long = claimed_in_order(appends, spec)
    assert short == long


def test_what_two_have_routed_is_placed_once(clock: SimulatedClock) -> None:
    """Two processes look at a log at the same time; the commit of the second one comes too late."""
    ms = memory_store(clock=clock)
    Probe(ms).pause_keeper()
    ms.log("jobs").append_many([b"a", b"b", b"c"])
    queue = ms.queue("q", sources=["jobs"], start="earliest")
    store = Probe(ms).store
    log_id = int(store.seen(keys.log_name("jobs")))
    routed = Routed(log_id, 0, 3, [Span(0, 3, log_id, 0, 0, clock.wall_ms())])

    placed = [store.run(lambda tx: place_routed(tx, "q", [routed])) for _ in range(2)]

    assert placed == [3, 0]
    assert [message.value for message in queue.claim(10)] == [b"a", b"b", b"c"]
    ms.close()


def test_a_message_that_was_put_is_delayed_if_its_queue_delays(clock: SimulatedClock) -> None:
    """The message is not routed yet: it can be claimed neither now nor right after the routing."""
    ms = memory_store(clock=clock)
    queue = ms.queue("q", delay=3)
    queue.put(b"x")
    info = queue.info()
    assert (info.available, info.delayed) == (0, 1)
    assert queue.claim() == []
    clock.advance(3)
    assert [message.value for message in queue.claim()] == [b"x"]
