"""Copies of logs: summaries, marks, hashes and blocks on one side, adopting on the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream
from millstream.command import Command
from millstream.doctor import examine
from millstream.errors import (
    Conflict,
    CorruptionError,
    EndMoved,
    Fenced,
    InvalidInput,
    Locked,
    NotFound,
    NotOwner,
    OutOfRange,
    TooLarge,
    Truncated,
)
from millstream.format import keys
from millstream.limits import Limits
from millstream.log import retention
from millstream.log.block import Block
from millstream.replica import commands as r
from millstream.replica.chain import ZERO, Chain, Mark, Run
from millstream.store.store import Store
from millstream.testing import SimulatedClock, memory_store


@pytest.fixture
def ms() -> Millstream:
    return memory_store()


@pytest.fixture
def other() -> Millstream:
    return memory_store(clock=SimulatedClock(5_000_000))


def ask(ms: Millstream, command: Command[object]) -> object:
    return ms._session.execute(command)


def store_of(ms: Millstream) -> Store:
    store: Store = ms._session.store  # type: ignore[attr-defined]
    return store


def summary(ms: Millstream, log: str = "a") -> r.Summary:
    found = ms._session.execute(r.SummarizeLog(log))
    assert found is not None
    return found


def drop_bytes(ms: Millstream) -> None:
    store = store_of(ms)
    ms.fold()
    heads = store.look(
        lambda state, snapshot: state.find(
            *keys.range_of(keys.prefix(keys.HEAD)), snapshot, limit=99
        )
    )
    for key in heads:
        while retention.tend(store, keys.number(key)):
            pass


def blocks(ms: Millstream, start: int = 0, stop: int = 2**40, size: int = 2**20) -> list[Block]:
    return ms._session.execute(r.TransferBlocks("a", start, stop, size))


def adopt(
    ms: Millstream, found: list[Block], *, digest: bytes, end: int = 0, epoch: int = 0
) -> int:
    return ms._session.execute(r.AdoptBlocks("a", found, end, digest, epoch))


def start(source: Millstream, target: Millstream) -> r.Summary:
    found = summary(source)
    assert target._session.execute(r.StartReplica("a", found.base, found.owner, found.epoch))
    return found


def copy(source: Millstream, target: Millstream) -> None:
    """All that a sync does for one log that grows."""
    found = summary(source)
    target._session.execute(r.StartReplica("a", found.base, found.owner, found.epoch))
    while (end := target.log("a").end_offset()) < found.end:
        some = blocks(source, end, size=100)
        digest = source._session.execute(r.GetChain("a", some[-1].offsets.stop))
        adopt(target, some, digest=digest, end=end, epoch=found.epoch)


def fill(ms: Millstream, count: int = 3_000) -> None:
    """A log of blocks and singles."""
    log = ms.log("a")
    log.append(b"single", key="k", headers={"n": 1}, timestamp=9)
    log.append(b"another")
    log.append_many(
        [b"%d" % n for n in range(count)], keys=[b"k" if n % 3 else None for n in range(count)]
    )
    log.append_many([b"last", b"block"], headers=[{"a": 1}, None], timestamps=[4, 5])


def rows(ms: Millstream, kind: int) -> int:
    store = store_of(ms)
    start, stop = keys.range_of(keys.prefix(kind))
    return store.look(lambda state, snapshot: len(state.scan(start, stop, snapshot, limit=999)))


# Hashes and marks.


def test_a_log_that_nobody_asks_for_has_no_chain(ms: Millstream) -> None:
    fill(ms)
    assert rows(ms, keys.MARKS) == 0
    summary(ms)
    assert rows(ms, keys.MARKS) == 1


def test_a_summary_says_how_a_log_stands(ms: Millstream) -> None:
    fill(ms)
    ms.log("a").metadata["m"] = 1
    found = summary(ms)
    assert (found.name, found.start, found.end, found.epoch) == ("a", 0, 3_004, 0)
    assert found.base == Mark(0, ZERO)
    assert found.owner == ms._session.execute(r.GetStoreId()) == ms.log("a").owner().store
    assert found.stamp is not None
    assert found.metadata
    chain = Chain(Mark(0, ZERO))
    for block in ms.log("a").read_blocks():
        chain.extend(block)
    assert found.digest == chain.digest()
    assert ms._session.execute(r.SummarizeLog("b")) is None


def test_folding_does_not_change_a_hash(ms: Millstream) -> None:
    log = ms.log("a")
    for n in range(700):
        log.append(b"%d" % n)
    before = summary(ms)
    ms.fold()
    store_of(ms).scratch.clear()
    assert summary(ms) == before
    assert ms._session.execute(r.GetChain("a", 500)) != ms._session.execute(r.GetChain("a", 501))


def test_the_chain_goes_on_as_the_log_grows(ms: Millstream) -> None:
    log = ms.log("a")
    seen = [summary_after(ms, n) for n in (10, 1_000, 20, 2_500)]
    marks = ms._session.execute(r.GetMarks("a", 0, 2**40, 99))
    assert [mark.offset for mark in marks] == [0, 1_024, 2_048, 3_072]
    whole = Chain(Mark(0, ZERO))
    digests = {}
    for block in log.read_blocks():
        whole.extend(block)
        digests[whole.end] = whole.digest()
    assert [digests[end] for end in (10, 1_010, 1_030, 3_530)] == seen
    assert ms._session.execute(r.GetMarks("a", 1, 3_072, 99)) == marks[1:3]
    assert ms._session.execute(r.GetMarks("a", 0, 2**40, 2)) == marks[:2]


def summary_after(ms: Millstream, count: int) -> bytes:
    ms.log("a").append_many([b"x"] * count)
    return summary(ms).digest


def test_more_marks_than_one_row_holds(ms: Millstream, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.replica import copying, marks

    monkeypatch.setattr(marks, "MARKS_PER_ROW", 2)
    monkeypatch.setattr(copying, "MARKS_PER_COMMIT", 3)
    for _ in range(10):
        ms.log("a").append_many([b"x"] * 1_024)
    before = summary(ms)
    assert rows(ms, keys.MARKS) == 6
    store_of(ms).scratch.clear()
    ms.fold()
    assert summary(ms) == before
    assert len(ms._session.execute(r.GetMarks("a", 0, 2**40, 99))) == 11
    ms.log("a").truncate(before=7_500)
    drop_bytes(ms)
    ms.log("a").append_many([b"x"] * 2_000)
    after = summary(ms)
    assert (after.start, after.base.offset) == (7_500, 7_168)
    assert rows(ms, keys.MARKS) < 7


def test_hashes_of_offsets_and_ranges(ms: Millstream) -> None:
    fill(ms)
    found = summary(ms)
    assert ms._session.execute(r.GetChain("a", 0)) == ZERO
    assert ms._session.execute(r.GetChain("a", 3_004)) == found.digest
    run = Run()
    for block in blocks(ms, 5, 2_000):
        run.add(block)
    assert ms._session.execute(r.DigestRange("a", 5, 2_000)) == run.digest()
    assert ms._session.execute(r.DigestRange("a", 7, 7)) == Run().digest()
    for command in (r.GetChain("a", 3_005), r.DigestRange("a", 0, 4_000)):
        with pytest.raises(OutOfRange):
            ask(ms, command)
    with pytest.raises(NotFound):
        ask(ms, r.GetChain("b", 0))


def test_logs_are_summarized_by_pattern_and_page(ms: Millstream) -> None:
    for name in ("a/1", "a/2", "b", "c"):
        ms.log(name).append(b"x")
    listed = ms._session.execute(r.SummarizeLogs("", 10))
    assert [found.name for found in listed] == ["a/1", "a/2", "b", "c"]
    some = ms._session.execute(r.SummarizeLogs("a/1", 1))
    assert [found.name for found in some] == ["a/2"]
    matched = ms._session.execute(r.SummarizeLogs("", 10, "a/*"))
    assert [found.name for found in matched] == ["a/1", "a/2"]


# Truncation.


def test_below_the_start_a_chain_keeps_no_more_than_a_piece(ms: Millstream) -> None:
    for _ in range(30):
        ms.log("a").append_many([b"x"] * 100)
    before = summary(ms)
    ms.log("a").truncate(before=2_500)
    drop_bytes(ms)
    after = summary(ms)
    assert (after.start, after.end, after.digest) == (2_500, 3_000, before.digest)
    assert after.base == ms._session.execute(r.GetMarks("a", 0, 2**40, 1))[0]
    assert after.base.offset == 2_048
    assert blocks(ms, 2_048, 2_049)[0].offsets == range(2_048, 2_049)
    assert ms.log("a").info().bytes < 100 * 1_100
    with pytest.raises(Truncated):
        blocks(ms, 2_047)
    with pytest.raises(Truncated):
        ask(ms, r.GetChain("a", 2_047))
    with pytest.raises(Truncated):
        next(ms.log("a").read(2_499))


def test_a_log_that_lost_its_beginning_before_it_had_a_chain_begins_with_zero(
    ms: Millstream,
) -> None:
    fill(ms)
    ms.log("a").truncate(before=100)
    drop_bytes(ms)
    assert summary(ms).base == Mark(100, ZERO)
    assert ms._session.execute(r.GetChain("a", 100)) == ZERO


def test_a_log_that_is_truncated_past_its_end_begins_anew(ms: Millstream) -> None:
    fill(ms)
    summary(ms)
    ms.log("a").truncate(before=5_000)
    assert summary(ms).base == Mark(5_000, ZERO)
    drop_bytes(ms)
    ms.log("a").append(b"x")
    assert (summary(ms).base, summary(ms).end) == (Mark(5_000, ZERO), 5_001)
    ms.log("a").delete()
    drop_bytes(ms)
    assert rows(ms, keys.MARKS) == 0


# Copies.


def test_a_copy_has_the_same_records_times_and_hash(ms: Millstream, other: Millstream) -> None:
    fill(ms)
    copy(ms, other)
    own, theirs = summary(ms), summary(other)
    assert replace(theirs, timestamp_ms=own.timestamp_ms) == own
    assert list(other.log("a").read()) == list(ms.log("a").read())
    store_of(other).scratch.clear()
    other.fold()
    assert summary(other).digest == own.digest

    ms.log("a").append(b"more")
    copy(ms, other)
    assert other.log("a").last() == ms.log("a").last()


def test_a_copy_of_a_log_that_was_truncated(ms: Millstream, other: Millstream) -> None:
    fill(ms)
    summary(ms)
    ms.log("a").truncate(before=2_900)
    drop_bytes(ms)
    copy(ms, other)
    assert other.log("a").start_offset() == 2_048
    other.log("a").truncate(before=2_900)
    assert list(other.log("a").read()) == list(ms.log("a").read())
    assert summary(other).digest == summary(ms).digest
    assert summary(other).base == summary(ms).base


def test_a_copy_refuses_appends_and_says_who_may(ms: Millstream, other: Millstream) -> None:
    fill(ms, 5)
    copy(ms, other)
    log, owner = other.log("a"), ms.log("a").owner()
    assert log.owner() == replace(owner, here=False)
    with pytest.raises(NotOwner) as caught:
        log.append(b"x")
    assert (caught.value.owner, caught.value.epoch, caught.value.log) == (owner.store, 0, "a")
    with pytest.raises(NotOwner):
        log.append_many([b"x", b"y"])
    with pytest.raises(NotOwner):
        log.stage()
    tx = other.transaction()
    tx.append("b", b"never")
    tx.append("a", b"x")
    with pytest.raises(NotOwner), tx:
        pass
    with pytest.raises(NotOwner):
        log.truncate(before=1_000)
    assert other.log("b").info() is None
    assert log.truncate(before=3) == 3
    log.cursor("r").ack(3)


def test_a_copy_that_ends_before_the_other_begins_begins_anew(
    ms: Millstream, other: Millstream
) -> None:
    fill(ms)
    copy(ms, other)
    ms.log("a").append_many([b"x"] * 3_000)
    summary(ms)
    ms.log("a").truncate(before=5_999)
    drop_bytes(ms)
    start(ms, other)
    assert (other.log("a").start_offset(), other.log("a").end_offset()) == (5_120, 5_120)
    copy(ms, other)
    drop_bytes(other)
    assert summary(other).digest == summary(ms).digest
    assert not other._session.execute(r.StartReplica("a", summary(ms).base, "x", 0))


# What is refused, without a trace.


def refused(other: Millstream, found: list[Block], error: type[Exception], **facts: object) -> None:
    before = summary(other)
    with pytest.raises(error):
        adopt(other, found, **{"digest": ZERO, "end": before.end, **facts})  # type: ignore[arg-type]
    assert summary(other) == before
    assert rows(other, keys.PAYLOAD_BLOCK) == 0


def test_blocks_that_are_not_what_they_should_be_are_refused(
    ms: Millstream, other: Millstream
) -> None:
    fill(ms, 50)
    digest = start(ms, other).digest
    good = blocks(ms)
    refused(other, good, CorruptionError)  # of another hash
    refused(other, good[:-1], CorruptionError, digest=digest)
    refused(other, [good[1], good[0]], InvalidInput, digest=digest)
    refused(other, [], InvalidInput, digest=digest)
    refused(other, good, InvalidInput, digest=b"short")
    for index in range(0, len(good[-1].payload), 7):
        broken = bytearray(good[-1].payload)
        broken[index] ^= 4
        bad = [*good[:-1], replace(good[-1], payload=bytes(broken))]
        refused(other, bad, CorruptionError, digest=digest)
    for cut in range(0, len(good[-1].metadata), 7):
        bad = [*good[:-1], replace(good[-1], metadata=good[-1].metadata[:cut])]
        refused(other, bad, CorruptionError, digest=digest)
    refused(other, [replace(good[0], count=10**9), *good[1:]], InvalidInput, digest=digest)
    assert adopt(other, good, digest=digest) == 54


def test_an_end_that_moved_an_epoch_that_is_over_and_a_log_that_is_held(
    ms: Millstream, other: Millstream
) -> None:
    fill(ms, 5)
    found = start(ms, other)
    shifted = [replace(one, first_offset=one.first_offset + 1) for one in blocks(ms)]
    refused(other, shifted, EndMoved, end=1)
    other._session.execute(r.AdoptOwner("a", found.owner, 3))
    refused(other, blocks(ms), Fenced, digest=found.digest, epoch=2)
    assert adopt(other, blocks(ms), digest=found.digest, epoch=3) == 9
    other.log("a").take_over()
    with other.log("a").stage(), pytest.raises(Locked):
        _adopt_next(ms, other)


def _adopt_next(ms: Millstream, other: Millstream) -> int:
    ms.log("a").append(b"next")
    return adopt(other, blocks(ms, 9), digest=summary(ms).digest, end=9, epoch=9)


def test_blocks_larger_than_what_is_stored_here_are_refused(ms: Millstream) -> None:
    fill(ms, 50)
    other = memory_store(limits=Limits(value_bytes_max=3))
    digest = start(ms, other).digest
    refused(other, blocks(ms), TooLarge, digest=digest)


def test_marks_and_owners_that_cannot_be(ms: Millstream) -> None:
    for command in (
        r.StartReplica("a", Mark(-1, ZERO), "s", 0),
        r.StartReplica("a", Mark(2**70, ZERO), "s", 0),
        r.StartReplica("a", Mark(0, b"short"), "s", 0),
        r.StartReplica("a", Mark(0, ZERO), "", 0),
        r.StartReplica("a", Mark(0, ZERO), "s", -1),
        r.StartReplica("", Mark(0, ZERO), "s", 0),
    ):
        with pytest.raises(InvalidInput):
            ask(ms, command)
    assert list(ms.logs()) == []


# Owners.


def test_a_log_is_handed_over_and_taken_over(ms: Millstream, other: Millstream) -> None:
    fill(ms, 5)
    copy(ms, other)
    here, there = (one._session.execute(r.GetStoreId()) for one in (ms, other))
    found = ms.log("a").hand_over(there)
    assert (found.store, found.epoch, found.here) == (there, 1, False)
    with pytest.raises(NotOwner):
        ms.log("a").append(b"x")
    with pytest.raises(NotOwner):
        ms.log("a").hand_over(here)
    assert other._session.execute(r.AdoptOwner("a", there, 1))
    assert not other._session.execute(r.AdoptOwner("a", there, 1))
    assert other.log("a").owner().here
    assert other.log("a").append(b"x") == 9
    with pytest.raises(Fenced):
        other._session.execute(r.AdoptOwner("a", here, 0))
    assert ms.log("a").take_over().epoch == 2
    assert ms.log("a").take_over().epoch == 2
    assert ms.log("a").append(b"y") == 9


def test_owners_that_cannot_be(ms: Millstream) -> None:
    with pytest.raises(NotFound):
        ms.log("a").owner()
    with pytest.raises(NotFound):
        ms.log("a").take_over()
    fill(ms, 1)
    with pytest.raises(InvalidInput):
        ms.log("a").hand_over("")
    with pytest.raises(InvalidInput):
        ms.log("a").hand_over(ms.log("a").owner().store)
    assert ms.log("a").owner().epoch == 0


# Setting aside.


@pytest.mark.parametrize("at", [0, 1, 2, 3, 1_500, 3_002, 3_003, 3_004])
@pytest.mark.parametrize("folded", [True, False])
def test_a_tail_is_set_aside_wherever_it_begins(ms: Millstream, at: int, folded: bool) -> None:
    fill(ms)
    if folded:
        ms.fold()
    before, whole = summary(ms), list(ms.log("a").read())
    name = ms._session.execute(r.SetAside("a", at, 0))
    assert name.startswith("a~fork-0-")
    aside = ms.log(name)
    assert list(ms.log("a").read()) == whole[:at]
    assert [one.value for one in aside.read()] == [one.value for one in whole]
    assert replace(summary(ms, name), name="a", timestamp_ms=before.timestamp_ms) == before
    assert summary(ms).end == at
    assert ms.log("a").append(b"other") == at
    ms.fold()
    assert ms.log("a").get(at).value == b"other"
    assert [one.value for one in aside.read()] == [one.value for one in whole]
    assert summary(ms, name).digest == before.digest


def test_a_tail_that_cannot_be_set_aside(ms: Millstream) -> None:
    fill(ms, 10)
    log = ms.log("a")
    with pytest.raises(OutOfRange):
        ask(ms, r.SetAside("a", 15, 0))
    log.truncate(before=3)
    with pytest.raises(Truncated):
        ask(ms, r.SetAside("a", 2, 0))
    log.cursor("r").ack_up_to(8)
    with pytest.raises(Conflict, match="cursor 'r'"):
        ask(ms, r.SetAside("a", 7, 0))
    log.hand_over("elsewhere")
    with pytest.raises(Fenced):
        ask(ms, r.SetAside("a", 9, 0))
    assert ask(ms, r.SetAside("a", 8, 1))
    assert (log.end_offset(), len(list(ms.logs()))) == (8, 2)


def test_a_tail_of_a_fork_that_begins_in_its_parent(ms: Millstream) -> None:
    fill(ms, 10)
    log = ms.log("a")
    fork = log.fork("f")
    fork.append(b"own")
    child = fork.fork("child")
    name = ask(ms, r.SetAside("f", 5, 0))
    assert fork.append(b"new") == 5
    whole = [record.value for record in log.read()]
    assert [record.value for record in fork.read()] == [*whole[:5], b"new"]
    for log_of in (ms.log(str(name)), child):
        assert [record.value for record in log_of.read()] == [*whole, b"own"]


# The doctor.


def test_the_doctor_knows_chains_and_copies(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms)
        summary(ms)
        ms.log("a").fork("b").append_many([b"x"] * 2_000)
        summary(ms, "b")
        ask(ms, r.SetAside("a", 1_500, 0))
        assert examine(path).healthy
        ms.log("a").truncate(before=1_400)
        ms.fold()
        drop_bytes(ms)
        summary(ms)
    assert examine(path).problems == []


def test_the_doctor_finds_records_that_are_not_those_of_their_hash(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms)
        summary(ms)
        store = store_of(ms)
        from millstream.replica.marks import add_marks

        store.run(lambda tx: add_marks(tx, 1, [Mark(3_000, b"w" * 32)]))
    report = examine(path)
    assert not report.healthy
    assert "3000" in report.problems[0].message


def test_the_doctor_finds_a_fork_whose_parent_lost_records(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms, 10)
        ms.log("a").fork("b").append(b"x")
        ms.fold()
        ms.log("a").append(b"y")
        ms.fold()
        store_of(ms).run(lambda tx: tx.drop(keys.entry(1, 2)))
    report = examine(path)
    assert {(one.log, one.lost) for one in report.problems if one.lost} == {
        ("a", (2, 12)),
        ("b", (2, 12)),
    }


def test_the_doctor_finds_a_fork_point_that_vanished(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        fill(ms, 10)
        ms.log("a").fork("b").append(b"x")
        store_of(ms).run(lambda tx: tx.drop(keys.fork(2)))
    report = examine(path)
    assert not report.healthy
    assert any("listed as a fork of log 1" in one.message for one in report.problems)
