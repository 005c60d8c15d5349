"""Merging a fork into its parent: what is adopted, refused, appended again or set aside."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.errors import (
    Conflict,
    ForkDetected,
    InvalidInput,
    Locked,
    NotFound,
    NotOwner,
    TooLarge,
    Truncated,
)
from millstream.limits import Limits
from millstream.testing import memory_store
from millstream.threads.log import Log
from tests.unit.replica.stores import (
    drop_bytes,
    filled,
    payload_rows,
    store_of,
    values,
)


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
    fork.truncate(before=20, past_end=True)
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
    from millstream.replica.forks import fork as forks
    from millstream.replica.forks import transfer as transfer_module

    monkeypatch.setattr(transfer_module, "ENTRIES_PER_SLICE", 2)
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


def append_during_merge(ms: Millstream, monkeypatch: pytest.MonkeyPatch, *, to: Log) -> None:
    """Let a merge move an entry per commit, and append after its first."""
    from millstream.replica.forks import transfer as transfer_module

    monkeypatch.setattr(transfer_module, "ENTRIES_PER_SLICE", 1)
    store = store_of(ms)
    run, seen = store.run, []

    def interrupted(operation: object) -> object:
        answer = run(operation)  # type: ignore[arg-type]
        if not seen:
            seen.append(1)
            to.append(b"meanwhile")
        return answer

    monkeypatch.setattr(store, "run", interrupted)


def grown(ms: Millstream) -> tuple[Log, Log]:
    """A log, and a fork of it with two batches of its own."""
    log = filled(ms)
    fork = log.fork("b")
    fork.append_many([b"6", b"7"])
    fork.append_many([b"8", b"9"])
    return log, fork


def test_what_is_written_during_a_merge_survives(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, fork = grown(ms)
    append_during_merge(ms, monkeypatch, to=fork)
    fork.merge()
    assert values(log)[6:] == [b"6", b"7", b"8", b"9", b"meanwhile"]


def test_a_parent_that_moves_during_a_merge_has_forked(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, fork = grown(ms)
    append_during_merge(ms, monkeypatch, to=log)
    with pytest.raises(ForkDetected):
        fork.merge()
    assert values(log)[6:] == [b"6", b"7", b"meanwhile"]
    assert values(fork)[6:] == [b"6", b"7", b"8", b"9"]
    fork.merge(on_fork="rebase")
    assert values(log)[6:] == [b"6", b"7", b"meanwhile", b"8", b"9"]


def test_metadata_that_would_be_too_large_together_keeps_a_merge_from_happening() -> None:
    with memory_store(limits=Limits(metadata_entries_max=3)) as ms:
        log = filled(ms)
        fork = log.fork("b")
        fork.append(b"6")
        for name in "xy":
            log.metadata[name] = 1
            fork.metadata[name.upper()] = 2
        with pytest.raises(TooLarge):
            fork.merge()
        assert (len(log), len(log.metadata)) == (6, 2)
        del fork.metadata["X"]
        assert fork.merge().adopted == 1
        assert dict(log.metadata) == {"x": 1, "y": 1, "Y": 2}
