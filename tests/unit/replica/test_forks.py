"""Forks: isolated copies that cost nothing, and hold what they need."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
)
from millstream.replica.commands import SetAside
from millstream.testing import Probe
from tests.unit.replica.stores import (
    drop_bytes,
    filled,
    payload_rows,
    store_of,
    values,
)


@pytest.mark.parametrize("folded", [False, True])
def test_a_fork_reads_its_parent_and_its_own_and_neither_sees_the_other(
    ms: Millstream, folded: bool
) -> None:
    log = filled(ms)
    fork = log.fork("b")
    if folded:
        ms.fold()
    fork.append(b"own")
    log.append(b"parent")
    fork.append_many([b"more", b"and more"])
    if folded:
        ms.fold()

    assert values(fork) == [b"0", b"1", b"2", b"3", b"4", b"5", b"own", b"more", b"and more"]
    assert values(log) == [b"0", b"1", b"2", b"3", b"4", b"5", b"parent"]
    assert [fork.get(n).value for n in (0, 4, 6, 8)] == [b"0", b"4", b"own", b"and more"]
    assert values(fork, 5) == [b"5", b"own", b"more", b"and more"]
    assert (fork.start_offset(), fork.end_offset()) == (0, 9)


def test_singles_that_are_joined_across_the_fork_point_belong_to_the_right_log(
    ms: Millstream,
) -> None:
    log = ms.log("a")
    log.append(b"0")
    fork = log.fork("b")
    for n in range(1, 6):
        log.append(b"%d" % n)
        fork.append(b"f%d" % n)
    ms.fold()
    assert values(fork) == [b"0", b"f1", b"f2", b"f3", b"f4", b"f5"]
    assert values(log) == [b"%d" % n for n in range(6)]


def test_a_fork_costs_no_copy(ms: Millstream) -> None:
    log = ms.log("a")
    for _ in range(20):
        log.append_many([b"x" * 5_000] * 10)
    ms.fold()
    before = payload_rows(ms)
    log.fork("b")
    ms.fold()
    assert payload_rows(ms) == before
    info = ms.log("b").info()
    assert info is not None
    assert (info.bytes, info.end_offset) == (0, 200)


def test_a_fork_takes_metadata_along_and_not_cursors(ms: Millstream) -> None:
    log = filled(ms)
    log.metadata["colour"] = "blue"
    log.cursor("r")
    fork = log.fork()
    assert dict(fork.metadata) == {"colour": "blue"}
    assert fork.cursors() == []
    fork.metadata["colour"] = "red"
    assert dict(log.metadata) == {"colour": "blue"}


def test_a_fork_without_a_name_gets_one(ms: Millstream) -> None:
    log = filled(ms)
    one, other = log.fork(), log.fork()
    assert one.name.startswith("a~fork-")
    assert one.name != other.name
    long = ms.log("l" * 255)
    long.append(b"x")
    assert len(long.fork().name) == 255


def test_forks_that_cannot_be_made(ms: Millstream) -> None:
    filled(ms)
    with pytest.raises(NotFound):
        ms.log("nowhere").fork("b")
    with pytest.raises(AlreadyExists):
        ms.log("a").fork("a")
    with pytest.raises(InvalidInput):
        ms.log("a").fork("")
    assert [info.name for info in ms.logs()] == ["a"]


def test_an_empty_log_can_be_forked(ms: Millstream) -> None:
    log = ms.log("a")
    log.append(b"gone")
    log.truncate(before=5, past_end=True)
    fork = log.fork("b")
    assert (fork.start_offset(), fork.end_offset()) == (5, 5)
    assert fork.append(b"first") == 5
    assert values(fork) == [b"first"]
    assert fork.merge().adopted == 1
    assert values(log) == [b"first"]


@pytest.mark.parametrize("delete", [False, True])
def test_a_fork_holds_what_it_needs_of_its_parent(ms: Millstream, delete: bool) -> None:
    log = filled(ms)
    fork = log.fork("b")
    log.append_many([b"x"] * 10)
    if delete:
        log.delete()
    else:
        log.truncate(before=log.end_offset())
    drop_bytes(ms)
    assert values(fork) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert payload_rows(ms) == 2  # the block, and that of three singles
    fork.truncate(before=4)
    drop_bytes(ms)
    assert values(fork) == [b"4", b"5"]
    assert payload_rows(ms) == 1  # the singles share a block
    fork.delete()
    drop_bytes(ms)
    assert payload_rows(ms) == 0


def test_forks_of_forks_outlive_whoever_they_came_from(ms: Millstream) -> None:
    log = filled(ms)
    one = log.fork("one")
    one.append(b"6")
    two = one.fork("two")
    two.append(b"7")
    expected = [b"%d" % n for n in range(8)]
    assert values(two) == expected

    one.delete()
    drop_bytes(ms)
    assert values(two) == expected
    log.delete()
    drop_bytes(ms)
    assert values(two) == expected
    two.truncate(before=7)
    drop_bytes(ms)
    assert values(two) == [b"7"]
    assert payload_rows(ms) == 1


def test_a_fork_of_a_fork_that_has_nothing_of_its_own(ms: Millstream) -> None:
    log = filled(ms)
    two = log.fork("one").fork("two")
    ms.log("one").delete()
    drop_bytes(ms)
    assert values(two) == [b"%d" % n for n in range(6)]
    assert two.append(b"6") == 6
    assert two.merge().parent == "a"
    assert values(log)[-1] == b"6"


def test_queues_and_cursors_work_on_a_fork(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append(b"6")
    queue = ms.queue("q", sources="b", start="earliest")
    log.truncate(before=6)
    fork.truncate(before=7)
    drop_bytes(ms)
    assert [message.value for message in queue.claim(10)] == [b"%d" % n for n in range(7)]
    other = fork.fork("c")
    other.append_many([b"7", b"8"])
    reader = other.cursor("r")
    assert [record.value for record in reader.take(5)] == [b"7", b"8"]


def test_a_queue_with_a_pattern_takes_no_forks_that_nobody_named(ms: Millstream) -> None:
    log = filled(ms, "jobs/1")
    queue = ms.queue("q", sources="jobs/*", start="earliest")
    log.fork()
    log.fork("jobs/2")
    assert len(queue.claim(100)) == 12


def test_readers_are_not_disturbed_by_merges_and_folds(tmp_path: Path) -> None:
    """A read takes no lock: entries change hands, and move home, while it looks for them."""
    stop, wrong = threading.Event(), []

    def watch(name: str) -> None:
        while not stop.is_set():
            try:
                found = [int(record.value) for record in ms.log(name).read()]
                assert found == list(range(len(found)))
            except Exception as error:
                wrong.append(error)
                return

    with millstream.open(tmp_path / "s.db", durability="relaxed") as ms:
        log, at = ms.log("a"), 0
        log.append(b"0")
        fork, other = log.fork("b"), log.fork("c")
        threads = [threading.Thread(target=watch, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for turn in range(40):
            for _ in range(3):
                at += 1
                fork.append(b"%d" % at)
            at += 2
            fork.append_many([b"%d" % (at - 1), b"%d" % at])
            if turn % 3 == 0:
                ms.fold()
            fork.merge()
            other.append_many([b"%d" % n for n in range(len(other), at + 1)])
            if turn % 4 == 0:
                ms.session.execute(SetAside("c", at - turn % 5, 0))
                other.append_many([b"%d" % n for n in range(at - turn % 5, at + 9)])
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(log) == at + 1


def test_two_processes_see_the_same_forks(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as one, millstream.open(path) as other:
        filled(one)
        one.log("a").fork("b").append(b"6")
        assert values(other.log("b")) == [b"%d" % n for n in range(7)]
        other.log("a").append(b"p6")
        other.log("b").append(b"7")
        one.log("b").merge(on_fork="longest")
        assert values(other.log("a")) == [b"%d" % n for n in range(8)]
        one.fold()
        assert values(other.log("a")) == [b"%d" % n for n in range(8)]
    assert examine(path).healthy


# What they may forget.


def test_a_fork_forgets_by_rules_of_its_own(ms: Millstream) -> None:
    Probe(ms).pause_keeper()  # it would join the new record with the block at some moment
    log = filled(ms)
    log.retain(count=2)
    fork = log.fork("b")
    assert not fork.retention()
    log.enforce_retention()
    assert values(log) == [b"4", b"5"]
    drop_bytes(ms)
    assert values(fork) == [b"%d" % n for n in range(6)]
    fork.retain(count=3)
    fork.append(b"6")
    fork.enforce_retention()
    assert values(fork) == [b"4", b"5", b"6"]
    assert payload_rows(ms) == 2  # the three singles of the parent share a block, and one is new
    log.retain()  # all, so that the background leaves what is merged
    assert fork.merge().adopted == 1
    assert values(log) == [b"4", b"5", b"6"]


def test_retention_by_age_looks_at_what_lies_in_the_parent(ms: Millstream) -> None:
    clock = store_of(ms).clock
    log = ms.log("a")
    log.append(b"old")
    clock.advance(100)  # type: ignore[attr-defined]
    log.append(b"young")
    fork = log.fork("b")
    fork.append(b"own")
    fork.retain(age=50)
    fork.enforce_retention()
    assert values(fork) == [b"young", b"own"]
    clock.advance(100)  # type: ignore[attr-defined]
    fork.enforce_retention()
    assert values(fork) == []
    assert values(log) == [b"old", b"young"]


def test_retention_by_bytes_counts_what_is_the_forks_own(ms: Millstream) -> None:
    log = ms.log("a")
    for _ in range(5):
        log.append_many([b"x" * 100] * 10)
    fork = log.fork("b")
    fork.retain(bytes=2_000)
    fork.enforce_retention()
    assert len(fork) == 50
    for _ in range(5):
        fork.append_many([b"y" * 100] * 10)
    fork.enforce_retention()
    assert set(values(fork)) == {b"y" * 100}
    assert len(fork) <= 20
    drop_bytes(ms)
    info = fork.info()
    assert info is not None
    assert info.bytes <= 2_500
    assert len(log) == 50


def test_a_fork_can_be_staged_and_written_in_transactions(ms: Millstream) -> None:
    fork = filled(ms).fork("b")
    with fork.stage() as stage:
        stage.append(b"6")
        stage.commit()
    with ms.transaction() as tx:
        tx.append("a", b"a6")
        tx.append("b", b"7")
    assert values(fork)[6:] == [b"6", b"7"]
    assert values(ms.log("a"))[6:] == [b"a6"]
