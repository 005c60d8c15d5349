"""Promise: a task finds for each queue exactly the records that its filter is true of."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

import millstream
from millstream import Item
from millstream.errors import CorruptionError
from millstream.filters import parse
from millstream.format import keys
from millstream.queue.service.assignment import AssignMessages
from millstream.record import Record
from millstream.spark.options import ReadOptions, read_options
from millstream.spark.pipelines import queue_matches
from millstream.spark.pipelines.queue_matches import (
    Interest,
    RoundMatches,
    Runs,
    match_ranges,
    one_ahead,
)
from millstream.spark.source.bins import Range
from millstream.testing import Probe

pytestmark = pytest.mark.requires("spark")

FILTERS = (
    "",
    "region = 'eu'",
    "region IN ('eu', 'us') AND amount >= 10",
    "region IN ('none')",
    "amount / 3 > 4.5 OR region IS NULL",
    "region = 'us' AND NOT express",
    "_key = 'k3' OR _timestamp > 1700000000090",
    "region = 'eu' AND _key <> 'k0' AND _timestamp < 1700000000080",
    "_log = 'orders' AND amount IN (1, 2, 30)",
    "_value IS NULL",
    "_value IS NOT NULL AND region = 'eu'",
)
COUNT = 120


def item(n: int) -> Item:
    headers = {"region": ("eu", "us", 7, None)[n % 4], "amount": n, "express": n % 3 == 0}
    return Item(
        None if n % 7 == 6 else b"%d" % n,
        key=f"k{n % 5}",
        headers=headers if n % 11 else None,
        timestamp=1_700_000_000_000 + n,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of blocks of several sizes, and of records that were appended singly."""
    with millstream.open(tmp_path / "store.db") as store:
        log = store.log("orders")
        at = 0
        for size in (50, 1, 1, 1, 7, 60):
            log.append_many([item(n) for n in range(at, at + size)])
            at += size
    return tmp_path / "store.db"


def options(path: Path, **more: str) -> ReadOptions:
    return read_options({"path": str(path), "subscribePattern": ".*", **more})


def takes(text: str, record: Record) -> bool:
    if not text:
        return True
    has_value = record.value is not None
    condition = parse(text)
    return condition.matches(
        record.headers, record.key, record.timestamp, record.log, has_value=has_value
    )


def offsets(found: Runs | None) -> list[int]:
    return [] if found is None else [first + i for first, n in found.pairs() for i in range(n)]


@pytest.mark.parametrize("kept", [1, 8_192])
@pytest.mark.parametrize("wanted", [(0, COUNT), (13, 14), (48, 55), (20, 111)])
def test_a_queue_takes_what_its_filter_is_true_of(
    path: Path, wanted: tuple[int, int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.spark.pipelines.queue_matches.OFFSETS_KEPT", kept)
    with millstream.open(path) as store:
        records = list(store.log("orders").read())
    interests = {"orders": [Interest(text, text) for text in FILTERS]}
    answer = match_ranges(options(path), [Range("orders", *wanted)], interests)
    ((log, taken),) = [(one.log, one.taken) for one in answer.ranges_matched]
    assert log == "orders"
    for text in FILTERS:
        expected = [n for n in range(*wanted) if takes(text, records[n])]
        assert offsets(taken.get(text)) == expected, text
        assert (text in taken) == bool(expected)


def test_neighbours_are_one_run(path: Path) -> None:
    interests = {"orders": [Interest("all", ""), Interest("late", "amount >= 56")]}
    answer = match_ranges(options(path), [Range("orders", 0, COUNT)], interests)
    (looked,) = answer.ranges_matched
    assert looked.taken["all"].pairs() == [(0, COUNT)]
    late = looked.taken["late"].pairs()
    assert late == [(56, 10), (67, 10), (78, 10), (89, 10), (100, 10), (111, 9)]


def test_damage_ends_a_look_or_is_told(path: Path) -> None:
    with millstream.open(path) as store:
        store.fold()
        probe = Probe(store)
        probe.damage(sorted(probe.rows(keys.ENTRY))[1])
    interests = {"orders": [Interest("all", "")]}
    wanted = [Range("orders", 0, COUNT)]
    with pytest.raises(CorruptionError, match="failOnDataLoss=false leaves it out"):
        match_ranges(options(path), wanted, interests)
    answer = match_ranges(options(path, failOnDataLoss="false"), wanted, interests)
    (loss,) = answer.lost
    (looked,) = answer.ranges_matched
    found = offsets(looked.taken["all"])
    assert found == [n for n in range(COUNT) if not loss.start <= n < loss.stop]


@pytest.mark.parametrize("most", [1, 7, 40, 10_000])
def test_a_large_look_is_assigned_in_several_commits(
    path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_matches, "ASSIGNED_MAX", most)
    texts = {"all": "", "some": "amount > 30", "none": "amount < 0", "odd": "region = 'us'"}
    wanted = [Range("orders", 0, COUNT)]
    interests = {"orders": [Interest(name, text) for name, text in texts.items()]}
    answer = match_ranges(options(path), wanted, interests)
    with millstream.open(path) as store:
        records = list(store.log("orders").read())
        for name in texts:
            store.queue(name, sources=["orders"], router="spark", start="earliest")
        for _ in range(2):  # the second time nothing is new
            for one in RoundMatches(wanted, interests, answer.ranges_matched, []).assignments():
                assert sum(count for _, count in one.runs) <= most
                store.session.execute(AssignMessages([one]))
        for name, text in texts.items():
            claimed = [message.offset for message in store.queue(name).claim(1_000)]
            assert claimed == [n for n in range(COUNT) if takes(text, records[n])], name
            assert store.queue(name).info().unrouted == 0


def test_the_next_is_worked_on_while_the_caller_has_the_last() -> None:
    began = [Event() for _ in range(4)]

    def work(number: int) -> int:
        began[number].set()
        return number * 10

    found = []
    for result in one_ahead(work, range(4)):
        found.append(result)
        assert began[min(len(found), 3)].wait(60), "the next was not begun"
    assert found == [0, 10, 20, 30]
    assert list(one_ahead(work, [])) == []


def test_nobody_waits_for_what_was_begun_ahead_and_is_not_wanted() -> None:
    begun, released, ended = Event(), Event(), Event()

    def work(number: int) -> int:
        if number:
            begun.set()
            released.wait(60)
            ended.set()
        return number

    ahead = one_ahead(work, range(3))
    assert next(ahead) == 0
    assert begun.wait(60)
    ahead.close()  # type: ignore[attr-defined]
    assert not ended.is_set()
    released.set()
    assert ended.wait(60)


def test_a_damaged_value_goes_to_its_queues_by_its_metadata(path: Path) -> None:
    with millstream.open(path) as store:
        store.fold()
        probe = Probe(store)
        probe.damage(sorted(probe.rows(keys.PAYLOAD_BLOCK))[0])
    interests = {"orders": [Interest("filled", "_value IS NOT NULL"), Interest("all", "")]}
    answer = match_ranges(
        options(path, failOnDataLoss="false"), [Range("orders", 0, COUNT)], interests
    )
    assert not answer.lost  # a claim tells of it, and the message has failed
    (looked,) = answer.ranges_matched
    assert offsets(looked.taken["filled"]) == [n for n in range(COUNT) if n % 7 != 6]
    assert offsets(looked.taken["all"]) == list(range(COUNT))


def test_what_fails_ahead_is_raised_when_it_is_its_turn() -> None:
    def work(number: int) -> int:
        return 6 // (2 - number)

    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend(one_ahead(work, range(5)))
    ahead = one_ahead(work, range(5))
    assert [next(ahead), next(ahead)] == [3, 6]
    with pytest.raises(ZeroDivisionError):
        next(ahead)
