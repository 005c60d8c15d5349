"""Which records become messages of a queue, in which order, and from where on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import InvalidFilter, InvalidInput, NotFound
from millstream.log.reading.reader import joined_entries_of
from millstream.queue.commands import SpecifyQueue
from millstream.queue.model.spec import QueueSpec
from millstream.queue.service import claims, decoded_entries, router
from millstream.replica.commands import SetAside
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, counts, values


def test_a_message_put_can_be_claimed_once(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=30)
    queue.put({"n": 1}, key="k", headers={"kind": "x"})
    (message,) = queue.claim(5)
    assert message.json() == {"n": 1}
    assert (message.key, message.headers["kind"]) == (b"k", "x")
    assert (message.log, message.offset, message.attempt) == ("queue:jobs", 0, 1)
    assert queue.claim(5) == []


def test_only_matching_records_become_messages_in_the_order_of_the_log(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", filter="n > 2")
    headers = [{"n": n} for n in (3, 1, 4, 1, 5, 9, 2, 6)]
    ms.log("events").append_many([b"%d" % one["n"] for one in headers], headers=headers)
    assert values(queue.claim(3)) == [b"3", b"4", b"5"]
    assert values(queue.claim(9)) == [b"9", b"6"]
    assert counts(queue) == {"in_flight": 5}


def test_queues_on_one_log_read_each_of_its_entries_once(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(*args: Any, **more: Any) -> Iterator[tuple[int, bytes]]:
        for found in joined_entries_of(*args, **more):
            read.append(found[0])
            yield found

    monkeypatch.setattr(decoded_entries, "joined_entries_of", counted)
    headers = [{"kind": f"k{n % 3}", "n": n} for n in range(12)]
    for at in range(0, 12, 4):
        some = headers[at : at + 4]
        ms.log("events").append_many([b"%d" % one["n"] for one in some], headers=some)
    found = {}
    for name, wanted in (
        ("text", "kind = 'k1'"),
        ("texts", "kind IN ('k0', 'k2') AND n > 2"),
        ("number", "n >= 9"),
        ("own", "_log = 'events' AND kind = 'k2' AND n < 6"),
    ):
        queue = ms.queue(name, sources="events", start="earliest", filter=wanted)
        found[name] = [int(message.text) for message in queue.claim(20)]
    assert found == {
        "text": [1, 4, 7, 10],
        "texts": [3, 5, 6, 8, 9, 11],
        "number": [9, 10, 11],
        "own": [2, 5],
    }
    assert read == [0, 4, 8]


def test_what_was_read_of_a_log_before_it_was_set_back_is_not_routed(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"a", b"b", b"c"], headers=[{"kind": "x"}, {"kind": "x"}, {"kind": "y"}])
    assert values(ms.queue("one", sources="events", start="earliest", filter="kind = 'x'").claim(9))
    ms.session.execute(SetAside("events", 1, 0))
    log.append_many([b"d", b"e"], headers=[{"kind": "y"}, {"kind": "x"}])
    queue = ms.queue("two", sources="events", start="earliest", filter="kind = 'x'")
    assert values(queue.claim(9)) == [b"a", b"e"]


def test_decoded_entries_are_kept_up_to_a_bound(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded_entries, "ENTRIES_KEPT", 2)
    for n in range(9):
        ms.log("events").append_many([b"%d" % n, b"-"], headers=[{"n": n}, {}])
    for name in ("one", "two"):
        queue = ms.queue(name, sources="events", start="earliest", filter="n IS NOT NULL")
        assert values(queue.claim(20)) == [b"%d" % n for n in range(9)]


def test_a_message_put_passes_by_the_filter(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", filter="n > 2")
    queue.put(b"direct")
    assert values(queue.claim(5)) == [b"direct"]


def test_a_pattern_takes_logs_that_come_later_from_their_beginning(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources=["a.*", "b?", "plain"])
    for name in ("a.x", "b1", "plain", "b12", "ab", "xplain"):
        ms.log(name).append(name.encode())
    assert sorted(values(queue.claim(10))) == [b"a.x", b"b1", b"plain"]


def test_brackets_in_a_source_mean_themselves(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources=["a[1]*"])
    for name in ("a[1]x", "a1x"):
        ms.log(name).append(name.encode())
    assert values(queue.claim(10)) == [b"a[1]x"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("latest", []), ("earliest", [b"2", b"3"]), (3, [b"3"]), (0, [b"2", b"3"]), (4, [])],
)
def test_routing_begins_where_the_spec_says(
    ms: Millstream, start: str | int, expected: list[bytes]
) -> None:
    log = ms.log("events")
    log.append_many([b"0", b"1", b"2", b"3"])
    log.truncate(before=2)
    queue = ms.queue("jobs", sources="events", start=start)
    log.append(b"new")
    assert values(queue.claim(10)) == [*expected, b"new"]


def test_routing_begins_at_a_time(ms: Millstream, clock: SimulatedClock) -> None:
    log = ms.log("events")
    log.append(b"before")
    clock.advance(10)
    log.append(b"after")
    queue = ms.queue("jobs", sources="events", start_ms=clock.wall_ms() - 5_000)
    assert values(queue.claim(10)) == [b"after"]


def test_more_messages_than_a_window_come_in_order(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", bucket_exponent=2)
    expected = [b"%d" % n for n in range(2_500)]
    ms.log("events").append_many(expected)
    found = values(queue.claim(1_300)) + values(queue.claim(7)) + values(queue.claim(5_000))
    assert found == expected


def test_a_filter_that_matches_late_is_followed_to_the_end(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", filter="take = TRUE")
    log = ms.log("events")
    for _ in range(5):
        log.append_many([b"no"] * 9_000)
    log.append(b"yes", headers={"take": True})
    assert values(queue.claim(1)) == [b"yes"]


def test_two_queues_on_one_log_do_not_disturb_each_other(ms: Millstream) -> None:
    one, two = ms.queue("one", sources="events"), ms.queue("two", sources="events")
    ms.log("events").append_many([b"a", b"b"])
    one.ack(one.claim(2))
    assert values(two.claim(2)) == [b"a", b"b"]


def test_a_queue_with_the_same_spec_is_found_and_with_another_altered(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=30)
    assert queue.specify(QueueSpec(lease=30)) is False
    assert queue.specify(QueueSpec(lease=31)) is False
    assert ms.queue("jobs").info().spec == QueueSpec(lease=31)  # type: ignore[union-attr]


def test_who_loses_the_race_to_make_a_queue_finds_it(ms: Millstream) -> None:
    command = SpecifyQueue("jobs", QueueSpec())
    assert ms.session.execute(command) is True
    assert ms.session.execute(command) is False


def test_a_queue_that_does_not_exist_cannot_be_claimed_from(ms: Millstream) -> None:
    assert not ms.queue("jobs").exists()
    for ask in (ms.queue("jobs").claim, ms.queue("jobs").peek, ms.queue("jobs").purge):
        with pytest.raises(NotFound):
            ask()


@pytest.mark.parametrize(
    "spec",
    [
        {"filter": "n >"},
        {"max_attempts": 0},
        {"max_attempts": 70_000},
        {"bucket_exponent": 5},
        {"start": "middle"},
        {"lease": 0},
        {"delay": -1},
        {"backoff": -1},
        {"backoff": []},
        {"sources": ["a"] * 101},
    ],
)
def test_a_spec_without_sense_is_refused_and_nothing_made(
    ms: Millstream, spec: dict[str, object]
) -> None:
    with pytest.raises((InvalidInput, InvalidFilter)):
        ms.queue("jobs", **spec)
    assert not ms.queue("jobs").exists()


def test_sources_that_are_added_later_are_taken_from(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="a")
    queue.alter(sources=("a", "b"))
    ms.log("b").append(b"x")
    assert values(queue.claim(5)) == [b"x"]


def test_a_source_with_dropped_records_can_be_added(ms: Millstream) -> None:
    log = ms.log("events")
    log.append_many([b"a", b"b"])
    log.truncate(before=2)
    log.enforce_retention()
    log.append(b"c")
    queue = ms.queue("jobs", sources="other", start="earliest")
    queue.alter(sources=("events",))
    assert claim_or_hang(ms, values_only=True) == [b"c"]


def test_a_source_that_is_added_begins_where_the_spec_says(ms: Millstream) -> None:
    ms.log("events").append(b"before")
    queue = ms.queue("jobs", sources="other")
    queue.alter(sources=("events",))
    ms.log("events").append(b"after")
    assert [message.value for message in queue.claim(5)] == [b"after"]


def claim_or_hang(ms: Millstream, *, values_only: bool) -> list[bytes]:
    """Claim, but give up after some steps rather than go round for ever."""
    store = Probe(ms).store
    run, steps = store.run, []

    def counted(operation: object) -> object:
        steps.append(operation)
        assert len(steps) < 50, "a claim goes round for ever"
        return run(operation)

    store.run = counted
    try:
        return values(ms.queue("jobs").claim(5))
    finally:
        store.run = run


def test_routing_goes_on_where_it_stood_after_a_reopen(reopen: Reopen) -> None:
    ms = reopen()
    queue = ms.queue("jobs", sources="events", bucket_exponent=0)
    ms.log("events").append_many([b"a", b"b", b"c"])
    queue.ack(queue.claim(2))
    ms = reopen()
    ms.log("events").append(b"d")
    assert values(ms.queue("jobs").claim(5)) == [b"c", b"d"]


def test_a_pattern_does_not_take_the_inboxes_of_other_queues(ms: Millstream) -> None:
    everything, other = ms.queue("all", sources="*"), ms.queue("other", lease=30)
    other.put(b"private")
    assert everything.claim(5) == []


@pytest.mark.embedded
def test_a_claim_that_others_overtook_looks_further(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ms.queue("work", sources="events", start="earliest")
    ms.log("events").append_many([b"%d" % number for number in range(2_000)])
    held = queue.claim(900)  # 100 more are routed, and wait in their turn
    others = []

    def route_late(*arguments: Any) -> Any:
        found = router.route(*arguments)
        monkeypatch.setattr(claims, "route", router.route)
        others.extend(queue.claim(100))
        return found

    monkeypatch.setattr(claims, "route", route_late)
    Probe(ms).store.caches.clear()
    assert len(queue.claim(50)) == 50
    assert len(held) + len(others) == 1_000


@pytest.mark.parametrize("folded", [False, True])
def test_a_filter_knows_which_values_are_null(ms: Millstream, reopen: Reopen, folded: bool) -> None:
    ms.create_queue("gone", sources="users", filter="_value IS NULL")
    ms.create_queue("there", sources="users", filter="_value IS NOT NULL AND kind IN ('a', 'b')")
    users = ms.log("users")
    values = [b"", None, b"x", None, b"y"]
    users.append_many(values, headers=[{"kind": kind} for kind in "abcba"])
    for value in values:  # single records lie in another form
        users.append(value, headers={"kind": "a"})
    users.append_many([b"all", b"there"])
    if folded:
        ms.fold()
        ms = reopen()
    assert [one.value for one in ms.queue("gone").claim(100)] == [None] * 4
    assert [one.value for one in ms.queue("there").claim(100)] == [b"", b"y", b"", b"x", b"y"]
