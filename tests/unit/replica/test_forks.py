"""Forks: isolated copies that cost nothing, and how they are merged."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream, Producer
from millstream.doctor import examine
from millstream.errors import (
    AlreadyExists,
    Conflict,
    ForkDetected,
    InvalidInput,
    Locked,
    NotFound,
    NotOwner,
    Truncated,
)
from millstream.format import keys
from millstream.log import retention
from millstream.store.store import Store
from millstream.testing import memory_store


@pytest.fixture
def ms() -> Millstream:
    return memory_store()


def store_of(ms: Millstream) -> Store:
    store: Store = ms._session.store  # type: ignore[attr-defined]
    return store


def values(log: object, start: int | None = None) -> list[bytes]:
    return [record.value for record in log.read(start)]  # type: ignore[attr-defined]


def drop_bytes(ms: Millstream) -> None:
    """Let every log forget what it may."""
    store = store_of(ms)
    ms.fold()
    for _ in range(3):
        heads = store.look(
            lambda state, snapshot: state.find(
                *keys.range_of(keys.prefix(keys.HEAD)), snapshot, limit=99
            )
        )
        for key in heads:
            while retention.tend(store, keys.number(key)):
                pass


def filled(ms: Millstream, name: str = "a") -> object:
    """A log with a block, and singles that the fold has joined."""
    log = ms.log(name)
    log.append_many([b"0", b"1", b"2"])
    for value in (b"3", b"4", b"5"):
        log.append(value)
    return log


def payload_rows(ms: Millstream) -> int:
    with store_of(ms).engine.read() as snapshot:
        rows = 0
        for kind in (keys.PAYLOAD, keys.PAYLOAD_BLOCK):
            rows += len(snapshot.scan(*keys.range_of(keys.prefix(kind)), limit=9_999))
        return rows


# Isolation.


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
    log.truncate(before=5)
    fork = log.fork("b")
    assert (fork.start_offset(), fork.end_offset()) == (5, 5)
    assert fork.append(b"first") == 5
    assert values(fork) == [b"first"]
    assert fork.merge().adopted == 1
    assert values(log) == [b"first"]


# What is held.


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
    assert payload_rows(ms) == 4  # the block, and three singles
    fork.truncate(before=4)
    drop_bytes(ms)
    assert values(fork) == [b"4", b"5"]
    assert payload_rows(ms) == 3  # the singles share an entry
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


# Queues and cursors on forks.


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


# Merging.


def test_a_fork_is_merged_into_a_parent_that_has_not_moved(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append(b"6")
    fork.append_many([b"7", b"8"])
    before = payload_rows(ms)
    found = fork.merge()
    assert (found.parent, found.adopted, found.start, found.end) == ("a", 3, 0, 9)
    assert values(log) == values(fork) == [b"%d" % n for n in range(9)]
    ms.fold()
    assert payload_rows(ms) == before or before == 0

    fork.append(b"9")
    assert values(log)[-1] == b"8"
    assert fork.merge().adopted == 1
    assert fork.merge().adopted == 0
    assert values(log) == values(fork) == [b"%d" % n for n in range(10)]
    log.append(b"10")
    assert values(fork) == [b"%d" % n for n in range(10)]


def test_merging_moves_entries_without_copying_payloads(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append_many([b"x" * 5_000] * 10)
    ms.fold()
    before = payload_rows(ms)
    fork.merge()
    ms.fold()
    assert payload_rows(ms) == before
    assert [ms.log(name).info().bytes > 50_000 for name in "ab"] == [True, False]


def test_a_fork_is_refused_by_a_parent_that_has_moved_and_nothing_is_changed(
    ms: Millstream,
) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append(b"own")
    fork.metadata["m"] = 1
    log.append(b"parent")
    with pytest.raises(ForkDetected) as caught:
        fork.merge()
    assert caught.value.offset == 6
    assert values(log)[6:] == [b"parent"]
    assert values(fork)[6:] == [b"own"]
    assert not dict(log.metadata)


def test_a_parent_that_moved_with_the_same_records_has_not_forked(ms: Millstream) -> None:
    log = filled(ms)
    shorter, longer = log.fork("shorter"), log.fork("longer")
    for fork in (shorter, longer):
        fork.append(b"6")  # at the same moment: the clock stands still
    longer.append_many([b"7", b"8"])
    shorter.merge()
    assert longer.merge().adopted == 2
    assert shorter.merge().adopted == 0
    assert values(log) == values(longer) == [b"%d" % n for n in range(9)]

    late, later = log.fork("late"), log.fork("later")
    late.append(b"9")
    store_of(ms).clock.advance(1)  # type: ignore[attr-defined]
    later.append(b"9")
    late.merge()
    with pytest.raises(ForkDetected):
        later.merge()


def test_rebase_appends_the_forks_records_again(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append(b"own", key="k", headers={"h": 1}, timestamp=5)
    fork.append_many([b"x", b"y"])
    log.append(b"parent")
    found = fork.merge(on_fork="rebase")
    assert (found.adopted, found.end) == (3, 10)
    assert values(log)[6:] == [b"parent", b"own", b"x", b"y"]
    own = log.get(7)
    assert (own.key, own.headers, own.timestamp) == (b"k", {"h": 1}, 5)
    assert values(fork)[6:] == [b"own", b"x", b"y"]

    assert fork.merge(on_fork="rebase").adopted == 0
    fork.append(b"later")
    with pytest.raises(ForkDetected):
        fork.merge()
    assert fork.merge(on_fork="rebase").adopted == 1
    assert values(log)[6:] == [b"parent", b"own", b"x", b"y", b"later"]


def test_longest_lets_the_longer_one_count_and_keeps_the_other(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    sibling = log.fork("c")
    fork.append_many([b"f6", b"f7"])
    log.append(b"p6")
    late = log.fork("late")
    found = fork.merge(on_fork="longest")
    assert found.set_aside is not None
    aside = ms.log(found.set_aside)
    assert values(log)[6:] == [b"f6", b"f7"]
    assert values(fork)[6:] == [b"f6", b"f7"]
    assert values(aside)[6:] == values(late)[6:] == [b"p6"]
    assert values(sibling)[6:] == []
    assert log.append(b"p8") == 8
    late.append(b"l7")
    assert values(late)[5:] == [b"5", b"p6", b"l7"]


def test_longest_leaves_a_longer_parent_alone(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append(b"f6")
    log.append_many([b"p6", b"p7"])
    found = fork.merge(on_fork="longest")
    assert (found.adopted, found.set_aside) == (0, None)
    assert values(log)[6:] == [b"p6", b"p7"]
    assert values(fork)[6:] == [b"f6"]


def test_longest_is_refused_where_somebody_has_seen_what_would_be_replaced(
    ms: Millstream,
) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append_many([b"f6", b"f7"])
    log.append(b"p6")
    reader = log.cursor("r")
    reader.ack(6)
    with pytest.raises(Conflict, match="cursor 'r'"):
        fork.merge(on_fork="longest")
    log.delete_cursor("r")
    queue = ms.queue("q", sources="a", start="earliest")
    queue.claim(7)
    with pytest.raises(Conflict, match="queue 'q'"):
        fork.merge(on_fork="longest")
    assert values(log)[6:] == [b"p6"]
    assert len(list(ms.logs())) == 2


@pytest.mark.parametrize("single", [True, False])
def test_a_queue_that_stands_at_the_difference_gets_what_takes_its_place(
    ms: Millstream, single: bool
) -> None:
    log = ms.log("a")
    log.append_many([b"0", b"1"])
    fork = log.fork("b")
    fork.append_many([b"f2", b"f3", b"f4"])
    if single:
        log.append(b"p2")
    else:
        log.append_many([b"p2", b"p3"])
    queue = ms.queue("q", sources="a", start="earliest", lossy=True)
    fork.merge(on_fork="longest")
    claimed = queue.claim(10)
    assert [message.value for message in claimed] == [b"0", b"1", b"f2", b"f3", b"f4"]
    queue.ack(claimed)
    ms.fold()


def test_a_log_that_was_set_back_knows_its_producers_no_further(ms: Millstream) -> None:
    log = ms.log("a")
    log.append(b"0", producer=Producer("p", 0))
    fork = log.fork("b")
    fork.append_many([b"f1", b"f2"])
    log.append(b"p1", producer=Producer("p", 1))
    fork.merge(on_fork="longest")
    assert log.append(b"0", producer=Producer("p", 0)) == 0
    assert log.append(b"p1", producer=Producer("p", 1)) == 3
    assert values(log) == [b"0", b"f1", b"f2", b"p1"]


def test_metadata_and_starts_are_joined(ms: Millstream) -> None:
    log = filled(ms)
    log.metadata["a"] = 1
    fork = log.fork("b")
    fork.metadata["a"] = 2
    fork.metadata["b"] = 3
    log.metadata["c"] = 4
    fork.append(b"6")
    fork.truncate(before=2)
    fork.merge()
    assert dict(log.metadata) == {"a": 2, "b": 3, "c": 4}
    assert log.start_offset() == 2


@pytest.mark.parametrize("dropped", [True, False])
def test_a_fork_that_has_forgotten_its_first_own_records(ms: Millstream, dropped: bool) -> None:
    log = filled(ms)
    fork = log.fork("b")
    for n in range(6, 12):
        fork.append(b"%d" % n)
    ms.fold()
    fork.truncate(before=9)
    if dropped:
        drop_bytes(ms)
    fork.merge()
    assert (log.start_offset(), values(log)) == (9, [b"9", b"10", b"11"])
    assert values(fork) == values(log)
    with pytest.raises(Truncated):
        values(log, 3)


def test_a_fork_that_was_truncated_past_its_end(ms: Millstream) -> None:
    log = filled(ms)
    fork = log.fork("b")
    fork.append(b"6")
    fork.truncate(before=20)
    fork.append(b"20")
    fork.merge()
    assert (log.start_offset(), log.end_offset(), values(log)) == (20, 21, [b"20"])


def test_merges_that_cannot_be(ms: Millstream) -> None:
    log = filled(ms)
    with pytest.raises(InvalidInput, match="no fork"):
        log.merge()
    with pytest.raises(NotFound):
        ms.log("nowhere").merge()
    fork = log.fork("b")
    fork.append(b"6")
    with pytest.raises(InvalidInput):
        fork.merge(on_fork="force")
    with log.stage(), pytest.raises(Locked):
        fork.merge()
    log.hand_over("elsewhere")
    with pytest.raises(NotOwner):
        fork.merge()
    log.delete()
    drop_bytes(ms)
    with pytest.raises(Conflict, match="deleted"):
        fork.merge()
    assert values(fork)[-1] == b"6"


def test_many_entries_are_merged_in_several_commits(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.replica import fork as forks
    from millstream.replica import moving

    monkeypatch.setattr(moving, "ENTRIES_PER_SLICE", 2)
    monkeypatch.setattr(forks, "REBASE_BYTES", 10)
    log = filled(ms)
    fork, other = log.fork("b"), log.fork("c")
    for n in range(6, 15):
        fork.append_many([b"%d" % n, b"x"])
        other.append_many([b"c%d" % n, b"y"])
    commits = store_of(ms).stats()["commits"]
    assert fork.merge().adopted == 18
    assert store_of(ms).stats()["commits"] == commits + 5
    assert values(log) == values(fork)
    assert other.merge(on_fork="rebase").adopted == 18
    assert store_of(ms).stats()["commits"] > commits + 13
    assert len(log) == 6 + 36


def test_what_is_written_during_a_merge_survives(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.replica import moving

    monkeypatch.setattr(moving, "ENTRIES_PER_SLICE", 1)
    log = filled(ms)
    fork = log.fork("b")
    fork.append_many([b"6", b"7"])
    fork.append_many([b"8", b"9"])
    store = store_of(ms)
    run, seen = store.run, []

    def interrupted(operation: object) -> object:
        answer = run(operation)  # type: ignore[arg-type]
        if not seen:
            seen.append(1)
            fork.append(b"meanwhile")
        return answer

    monkeypatch.setattr(store, "run", interrupted)
    fork.merge()
    assert values(log)[6:] == [b"6", b"7", b"8", b"9", b"meanwhile"]


def test_a_parent_that_moves_during_a_merge_has_forked(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.replica import moving

    monkeypatch.setattr(moving, "ENTRIES_PER_SLICE", 1)
    log = filled(ms)
    fork = log.fork("b")
    fork.append_many([b"6", b"7"])
    fork.append_many([b"8", b"9"])
    store = store_of(ms)
    run, seen = store.run, []

    def interrupted(operation: object) -> object:
        answer = run(operation)  # type: ignore[arg-type]
        if not seen:
            seen.append(1)
            log.append(b"meanwhile")
        return answer

    monkeypatch.setattr(store, "run", interrupted)
    with pytest.raises(ForkDetected):
        fork.merge()
    assert values(log)[6:] == [b"6", b"7", b"meanwhile"]
    assert values(fork)[6:] == [b"6", b"7", b"8", b"9"]
    fork.merge(on_fork="rebase")
    assert values(log)[6:] == [b"6", b"7", b"meanwhile", b"8", b"9"]


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
