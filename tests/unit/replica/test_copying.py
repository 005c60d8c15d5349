"""Copies of logs: summaries, marks, hashes and blocks on one side, adopting on the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import (
    CorruptionError,
    EndMoved,
    Fenced,
    InvalidInput,
    Locked,
    NotFound,
    OutOfRange,
    TooLarge,
    Truncated,
)
from millstream.format import keys
from millstream.limits import Limits
from millstream.log.model.block import RecordBlock
from millstream.replica import commands as r
from millstream.replica.chain import ZERO, Chain, Mark, Run
from millstream.store.store import Store
from millstream.testing import Probe, memory_store
from tests.unit.replica.stores import (
    adopt,
    ask,
    blocks,
    copy,
    drop_bytes,
    fill,
    marks_of,
    rows,
    start,
    store_of,
    summary,
)


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
    assert found.owner == ms.session.execute(r.GetStoreId()) == ms.log("a").owner().store
    assert found.metadata
    chain = Chain(Mark(0, ZERO))
    for block in ms.log("a").read_blocks():
        chain.extend(block)
    assert found.digest == chain.digest()
    assert ms.session.execute(r.SummarizeLog("b")) is None


def test_folding_does_not_change_a_hash(ms: Millstream) -> None:
    log = ms.log("a")
    for n in range(700):
        log.append(b"%d" % n)
    before = summary(ms)
    ms.fold()
    store_of(ms).caches.clear()
    assert summary(ms) == before
    assert ms.session.execute(r.GetChain("a", 500)) != ms.session.execute(r.GetChain("a", 501))


def test_the_chain_goes_on_as_the_log_grows(ms: Millstream) -> None:
    log = ms.log("a")
    seen = [summary_after(ms, n) for n in (10, 1_000, 20, 2_500)]
    assert [mark.offset for mark in marks_of(ms)] == [0, 1_024, 2_048, 3_072]
    whole = Chain(Mark(0, ZERO))
    digests = {}
    for block in log.read_blocks():
        whole.extend(block)
        digests[whole.end] = whole.digest()
    assert [digests[end] for end in (10, 1_010, 1_030, 3_530)] == seen


def summary_after(ms: Millstream, count: int) -> bytes:
    ms.log("a").append_many([b"x"] * count)
    return summary(ms).digest


def test_more_marks_than_one_row_holds(ms: Millstream, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.replica.copies import giver, marks

    monkeypatch.setattr(marks, "MARKS_PER_ROW", 2)
    monkeypatch.setattr(giver, "MARKS_PER_COMMIT", 3)
    for _ in range(10):
        ms.log("a").append_many([b"x"] * 1_024)
    before = summary(ms)
    assert rows(ms, keys.MARKS) == 6
    store_of(ms).caches.clear()
    ms.fold()
    assert summary(ms) == before
    assert len(marks_of(ms)) == 11
    ms.log("a").truncate(before=7_500)
    drop_bytes(ms)
    ms.log("a").append_many([b"x"] * 2_000)
    after = summary(ms)
    assert (after.start, after.base.offset) == (7_500, 7_168)
    assert rows(ms, keys.MARKS) < 7


def test_hashes_of_offsets_and_ranges(ms: Millstream) -> None:
    fill(ms)
    found = summary(ms)
    assert ms.session.execute(r.GetChain("a", 0)) == ZERO
    assert ms.session.execute(r.GetChain("a", 3_004)) == found.digest
    run = Run()
    for block in blocks(ms, 5, 2_000):
        run.add(block)
    assert ms.session.execute(r.DigestRange("a", 5, 2_000)) == run.digest()
    assert ms.session.execute(r.DigestRange("a", 7, 7)) == Run().digest()
    for command in (r.GetChain("a", 3_005), r.DigestRange("a", 0, 4_000)):
        with pytest.raises(OutOfRange):
            ask(ms, command)
    with pytest.raises(NotFound):
        ask(ms, r.GetChain("b", 0))
    for wrong in (-1, 2**70):
        for command in (
            r.GetChain("a", wrong),
            r.DigestRange("a", wrong, 5),
            r.SendBlocks("a", wrong, 5, 100),
        ):
            with pytest.raises((InvalidInput, OutOfRange)):
                ask(ms, command)


def test_a_log_that_grows_all_the_time_is_summarized_as_it_was(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.replica.copies import giver

    fill(ms, 5)
    expected = summary(ms)
    advance = giver.advance

    def overtaken(store: Store, name: str) -> object:
        found = advance(store, name)
        ms.log(name).append(b"meanwhile")
        return found

    monkeypatch.setattr(giver, "advance", overtaken)
    assert replace(summary(ms), timestamp_ms=expected.timestamp_ms) == expected


def test_logs_are_summarized_by_pattern_and_page(ms: Millstream) -> None:
    for name in ("a/1", "a/2", "b", "c"):
        ms.log(name).append(b"x")
    listed = ms.session.execute(r.SummarizeLogs("", 10))
    assert [found.name for found in listed] == ["a/1", "a/2", "b", "c"]
    some = ms.session.execute(r.SummarizeLogs("a/1", 1))
    assert [found.name for found in some] == ["a/2"]
    matched = ms.session.execute(r.SummarizeLogs("", 10, "a/*"))
    assert [found.name for found in matched] == ["a/1", "a/2"]


def test_below_the_start_a_chain_keeps_no_more_than_a_piece(ms: Millstream) -> None:
    for _ in range(30):
        ms.log("a").append_many([b"x"] * 100)
    before = summary(ms)
    ms.log("a").truncate(before=2_500)
    drop_bytes(ms)
    after = summary(ms)
    assert (after.start, after.end, after.digest) == (2_500, 3_000, before.digest)
    assert after.base in marks_of(ms)
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
    assert ms.session.execute(r.GetChain("a", 100)) == ZERO


def test_a_log_that_is_truncated_past_its_end_begins_anew(ms: Millstream) -> None:
    fill(ms)
    summary(ms)
    ms.log("a").truncate(before=5_000, past_end=True)
    assert summary(ms).base == Mark(5_000, ZERO)
    drop_bytes(ms)
    ms.log("a").append(b"x")
    assert (summary(ms).base, summary(ms).end) == (Mark(5_000, ZERO), 5_001)
    ms.log("a").delete()
    drop_bytes(ms)
    assert rows(ms, keys.MARKS) == 0


def test_a_copy_has_the_same_records_times_and_hash(ms: Millstream, other: Millstream) -> None:
    fill(ms)
    copy(ms, other)
    own, theirs = summary(ms), summary(other)
    assert replace(theirs, timestamp_ms=own.timestamp_ms) == own
    assert list(other.log("a").read()) == list(ms.log("a").read())
    store_of(other).caches.clear()
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
    assert not other.session.execute(r.StartReplica("a", summary(ms).base, "x", 0))


def refused(
    other: Millstream, found: list[RecordBlock], error: type[Exception], **facts: object
) -> None:
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
    other.session.execute(r.AdoptOwner("a", found.owner, 3))
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


def test_a_chain_that_many_advance_at_once_while_the_log_grows(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with (
        millstream.open(path, durability="relaxed") as ms,
        millstream.open(path, durability="relaxed") as second,
    ):
        log = ms.log("a")
        log.append(b"0")

        def summarize(handle: Millstream) -> list[r.Summary]:
            return [summary(handle) for _ in range(15)]

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(summarize, handle) for handle in (ms, second, ms, second)]
            for n in range(30):
                log.append_many([b"%d" % n] * 300)
            found = [one for future in asked for one in future.result()]
        with Probe(ms).pause_keeper():  # the last question may have come before the last append
            found.append(summary(ms))
        whole, digests = Chain(Mark(0, ZERO)), {}
        for record in log.read_blocks():
            whole.extend(record)
            digests[whole.end] = whole.digest()
        assert all(digests[one.end] == one.digest for one in found)
        assert [mark.offset for mark in marks_of(ms)] == list(range(0, 9_000, 1_024))
    assert examine(path).healthy


@pytest.mark.parametrize("cut", [1, 2, 3, 500, 1_024, 1_500, 3_002, 3_003])
def test_a_copy_goes_on_in_the_middle_of_a_block(
    ms: Millstream, other: Millstream, cut: int
) -> None:
    fill(ms)
    ms.fold()
    found = start(ms, other)
    adopt(other, blocks(ms, 0, cut), digest=ask(ms, r.GetChain("a", cut)))
    adopt(other, blocks(ms, cut), digest=found.digest, end=cut)
    assert list(other.log("a").read()) == list(ms.log("a").read())
    store_of(other).caches.clear()
    assert summary(other).digest == found.digest
