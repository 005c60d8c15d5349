"""Two stores after a sync: what travels, what stays, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Item, Millstream
from millstream.errors import ForkDetected, InvalidInput, NotOwner, TooLarge, Truncated
from millstream.limits import Limits
from millstream.log.model.metadata import Meta, Stamp
from millstream.replica.commands import AdoptState, GetStampedMetadata, SendBlocks
from millstream.replica.copies import parcel
from millstream.replica.sync import shipment as shipping
from millstream.replica.sync.outcome import Progress
from millstream.testing import SimulatedClock, memory_store
from tests.unit.replica.copies import records, seen, store_id, summaries, through, values


def test_a_pull_brings_records_as_they_are(
    a: Millstream, b: Millstream, clock: SimulatedClock
) -> None:
    log = a.log("x")
    log.append_many([Item(b"%d" % n, key=b"k" if n % 2 else None, timestamp=n) for n in range(50)])
    clock.advance(5)
    log.append("text", key="ü", headers={"n": 1, "none": None}, timestamp=7)
    log.append(b"")
    log.append_many([{"n": n} for n in range(3)])
    outcome = b.sync(a, direction="pull")
    assert (outcome.pulled, outcome.pushed, outcome.looked_at) == (55, 0, 1)
    assert records(b, "x") == records(a, "x")
    assert summaries(b)[0].digest == summaries(a)[0].digest


def test_a_push_brings_them_the_other_way(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"1", b"2"])
    outcome = a.sync(b, direction="push")
    assert (outcome.pulled, outcome.pushed) == (0, 2)
    assert values(b, "x") == [b"1", b"2"]


def test_both_ways_at_once(a: Millstream, b: Millstream) -> None:
    a.log("x").append(b"1")
    b.log("y").append_many([b"2", b"3"])
    outcome = a.sync(b)
    assert (outcome.pulled, outcome.pushed, outcome.looked_at) == (2, 1, 2)
    assert values(a, "y") == [b"2", b"3"]
    assert values(b, "x") == [b"1"]


def test_a_direction_changes_one_side_only(a: Millstream, b: Millstream) -> None:
    a.log("x").append(b"1")
    a.log("x").metadata["k"] = 1
    b.log("y").append(b"2")
    before = seen(a)
    a.sync(b, direction="push")
    assert seen(a) == before
    assert b.sync(a, direction="push").pushed == 1
    before = seen(b)
    a.log("x").append(b"3")
    a.log("x").truncate(before=1)
    assert a.sync(b, direction="pull").logs == []
    assert seen(b) == before


def test_with_nothing_new_next_to_nothing_is_said(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"v"] * 3_000)
    a.log("x").metadata["k"] = "v"
    b.sync(a)
    outcome = b.sync(a)
    assert outcome.logs == []
    assert 0 < outcome.bytes < 1_000


def test_only_what_is_missing_is_sent(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"v" * 100] * 5_000)
    b.sync(a)
    a.log("x").append_many([b"w"] * 3)
    peer, line = through(a)
    outcome = b.sync(peer)
    assert outcome.pulled == 3
    assert outcome.bytes < 1_000
    (asked,) = [one for one in line.asked if isinstance(one, SendBlocks)]
    assert (asked.start, asked.stop) == (5_000, 5_003)


def test_it_does_not_matter_how_records_were_batched(
    a: Millstream, b: Millstream, c: Millstream
) -> None:
    for n in range(30):
        a.log("x").append(b"%d" % n)
    b.sync(a)
    for n in range(30, 40):
        a.log("x").append(b"%d" % n)
    a.fold()
    b.sync(a)
    c.sync(b)
    assert len({summaries(ms)[0].digest for ms in (a, b, c)}) == 1
    assert records(a, "x") == records(b, "x") == records(c, "x")


def test_a_copy_can_be_copied_on(a: Millstream, b: Millstream, c: Millstream) -> None:
    a.log("x").append(b"1")
    b.sync(a)
    c.sync(b)
    assert values(c, "x") == [b"1"]
    with pytest.raises(NotOwner) as caught:
        c.log("x").append(b"2")
    assert caught.value.owner == store_id(a)


def test_large_logs_travel_in_parcels(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "PARCEL_BYTES", 1_000)
    for first in range(0, 500, 50):
        a.log("x").append_many([b"%d" % n for n in range(first, first + 50)])
    told: list[Progress] = []
    outcome = b.sync(a, progress=told.append)
    assert records(a, "x") == records(b, "x")
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert len(told) > 3
    assert (told[-1].done, told[-1].total, told[-1].direction) == (500, 500, "pull")
    assert outcome.logs[0].bytes == told[-1].bytes


@pytest.mark.requires("zstd")
def test_what_is_compressed_is_the_same_and_smaller(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"the same again and again" * 10] * 1_000)
    outcome = a.sync(b, direction="push", compress=True)
    assert outcome.bytes < 50_000
    assert records(a, "x") == records(b, "x")


def test_without_zstandard_one_is_told_what_to_install(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.log("x").append(b"1")
    monkeypatch.setattr(parcel, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install 'millstream\[zstd\]'"):
        b.sync(a, compress=True)
    assert b.sync(a).pulled == 1


def test_a_large_block_is_sent_in_parts(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcel, "BLOCK_BYTES_MAX", 2_000)
    items = [
        Item(b"%d" % n * 100, key=b"k" if n % 2 else None, headers={"n": n} if n % 3 else None)
        for n in range(100)
    ]
    a.log("x").append_many(items)
    a.log("x").append_many([b"one that alone is too large" * 200, b"small"])
    told: list[Progress] = []
    b.sync(a, progress=told.append)
    assert len(told) > 10
    assert records(a, "x") == records(b, "x")
    assert b.sync(a).logs == []


# Patterns.


def test_a_pattern_says_which_logs(a: Millstream, b: Millstream) -> None:
    for name in ("device/1", "device/2", "other", "dev"):
        a.log(name).append(b"1")
    assert a.sync(b, logs="device/*").pushed == 2
    assert [info.name for info in b.logs()] == ["device/1", "device/2"]
    assert a.sync(b, logs="other", direction="push").pushed == 1


def test_what_belongs_to_queues_and_forks_stays(a: Millstream, b: Millstream) -> None:
    a.queue("mail", lease=5).put(b"m")
    a.log("x").append(b"1")
    a.log("x").fork()
    a.sync(b)
    assert [info.name for info in b.logs()] == ["x"]
    a.sync(b, logs="queue:mail", direction="push")
    assert values(b, "queue:mail") == [b"m"]


def test_a_fork_travels_if_it_is_named(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"1", b"2"])
    a.log("x").fork("trial").append(b"3")
    fork = a.log("x").fork()
    fork.append(b"4")
    assert a.sync(b).pushed == 5
    assert records(b, "trial") == records(a, "trial")
    assert a.sync(b, logs="x~fork-*").pushed == 3
    assert values(b, fork.name) == [b"1", b"2", b"4"]
    assert a.sync(b, logs="*~fork-*").logs == []


def test_many_logs_come_page_by_page(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.replica.sync.sync.SUMMARIES_PER_PAGE", 3)
    for n in range(10):
        a.log(f"a{n}").append(b"1")
        b.log(f"b{n}").append(b"1")
        (a if n % 2 else b).log(f"c{n}").append(b"1")
    outcome = a.sync(b)
    assert (outcome.looked_at, outcome.pulled, outcome.pushed) == (30, 15, 15)
    for direction in ("push", "pull"):
        outcome = a.sync(b, direction=direction)  # type: ignore[arg-type]
        assert (outcome.looked_at, outcome.logs) == (30, [])


# Truncation.


def test_truncations_travel_both_ways(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"%d" % n for n in range(10)])
    b.sync(a)
    a.log("x").truncate(before=4)
    outcome = b.sync(a)
    assert outcome.logs[0].truncated == 4
    assert b.log("x").start_offset() == 4
    b.log("x").truncate(before=6)
    b.sync(a)
    assert a.log("x").start_offset() == 6
    assert records(a, "x") == records(b, "x")


def test_truncations_can_be_kept_out(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"%d" % n for n in range(10)])
    b.sync(a)
    a.log("x").truncate(before=4)
    a.log("x").append(b"10")
    b.sync(a, truncate=False)
    assert b.log("x").start_offset() == 0
    assert len(values(b, "x")) == 11


def test_a_truncation_past_the_end_travels(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"%d" % n for n in range(3)])
    b.sync(a)
    a.log("x").truncate(before=7, past_end=True)
    b.sync(a)
    assert (b.log("x").start_offset(), b.log("x").end_offset()) == (7, 7)
    a.log("x").append(b"after")
    b.sync(a)
    assert records(b, "x") == records(a, "x")
    assert b.log("x").end_offset() == 8


def test_a_copy_that_was_away_for_too_long_begins_where_it_can(
    a: Millstream, b: Millstream, c: Millstream
) -> None:
    log = a.log("x")
    log.append_many([b"%d" % n for n in range(3_000)])
    b.sync(a)
    log.append_many([b"%d" % n for n in range(3_000, 9_000)])
    log.truncate(before=7_000)
    log.retain(count=100_000)
    log.enforce_retention()
    assert summaries(a)[0].base.offset > 3_000
    with pytest.raises(Truncated):
        b.sync(a, truncate=False)
    before = records(b, "x")
    assert len(before) == 3_000
    (outcome,) = b.sync(a).logs
    assert records(b, outcome.set_aside[0]) == before  # nobody could say that it was the same
    c.sync(a)
    assert records(a, "x") == records(b, "x") == records(c, "x")
    log.append(b"more")
    assert b.sync(a).pulled == c.sync(a).pulled == 1
    assert len({summaries(ms)[0].digest for ms in (a, b, c)}) == 1


def test_a_log_that_was_truncated_before_its_first_sync_travels(
    a: Millstream, b: Millstream
) -> None:
    log = a.log("x")
    log.append_many([b"%d" % n for n in range(5_000)])
    log.truncate(before=1_234)
    log.enforce_retention()
    b.sync(a)
    assert records(a, "x") == records(b, "x")
    assert b.sync(a).logs == []


# Metadata.


def test_metadata_is_joined_by_its_stamps(
    a: Millstream, b: Millstream, clock: SimulatedClock
) -> None:
    a.log("x").append(b"1")
    a.log("x").metadata["k"] = "old"
    b.sync(a)
    clock.advance(1)
    b.log("x").metadata["k"] = "new"
    b.log("x").metadata["mine"] = [1]
    clock.advance(1)
    a.log("x").metadata["theirs"] = 2
    outcome = b.sync(a)
    assert outcome.logs[0].metadata == 3
    assert dict(a.log("x").metadata) == dict(b.log("x").metadata)
    assert dict(a.log("x").metadata) == {"k": "new", "mine": [1], "theirs": 2}
    clock.advance(1)
    del a.log("x").metadata["k"]
    b.sync(a)
    assert "k" not in b.log("x").metadata
    assert b.sync(a).logs == []


def test_metadata_that_would_grow_too_large_is_refused_and_the_rest_goes_on(
    b: Millstream, clock: SimulatedClock
) -> None:
    with memory_store(clock=clock, limits=Limits(metadata_entries_max=2)) as a:
        a.log("x").append(b"1")
        a.log("x").metadata["k"] = 1
        b.sync(a)
        b.log("x").metadata["l"] = 2
        b.log("x").metadata["m"] = 3
        with pytest.raises(TooLarge) as caught:
            a.sync(b)
        assert caught.value.limit == 2
        assert dict(a.log("x").metadata) == {"k": 1}


def test_more_deletions_than_are_remembered_still_converge(a: Millstream, b: Millstream) -> None:
    a.log("x").append(b"1")
    b.sync(a)
    for ms, first in ((a, 0), (b, 700)):
        gone = {f"k{n}": Meta(Stamp(n, 0, "w"), False) for n in range(first, first + 700)}
        ms.session.execute(AdoptState("x", entries=gone))
    a.sync(b)
    found = [ms.session.execute(GetStampedMetadata("x")) for ms in (a, b)]
    assert found[0] == found[1]
    assert len(found[0]) == 1_000
    assert min(meta.stamp.ms for meta in found[0].values()) == 400
    assert a.sync(b).logs == []


# What cannot be.


def test_two_logs_of_one_name_are_not_mixed_and_the_others_go_on(
    a: Millstream, b: Millstream
) -> None:
    a.log("m").append_many([b"same", b"a"])
    b.log("m").append_many([b"same", b"b", b"c"])
    a.log("z").append(b"1")
    before = {name: seen(ms)["m"] for name, ms in (("a", a), ("b", b))}
    with pytest.raises(ForkDetected, match="two logs of one name") as caught:
        a.sync(b)
    assert caught.value.log == "m"
    assert caught.value.offset == 1
    assert {name: seen(ms)["m"] for name, ms in (("a", a), ("b", b))} == before
    assert values(b, "z") == [b"1"]
    (failed,) = caught.value.outcome.failed
    assert failed.log == "m"
    assert failed.error.startswith("ForkDetected")


def test_two_logs_of_one_name_are_not_mixed_however_far_apart_they_are(
    a: Millstream, b: Millstream
) -> None:
    a.log("m").append_many([b"a"] * 3)
    b.log("m").append_many([b"b"] * 9_000)
    b.log("m").truncate(before=8_000)
    b.log("m").enforce_retention()
    before = seen(a), seen(b)
    for own, peer in ((a, b), (b, a)):
        with pytest.raises(ForkDetected, match="two logs of one name"):
            own.sync(peer)
    assert (seen(a), seen(b)) == before


def test_a_log_that_nobody_wrote_to_gives_way_also_to_one_that_begins_late(
    a: Millstream, b: Millstream
) -> None:
    for ours, theirs in ((a, b), (b, a)):
        name = f"x{store_id(ours)}"
        theirs.log(name).cursor("early")
        ours.log(name).append_many([b"v"] * 9_000)
        ours.log(name).truncate(before=8_000)
        ours.log(name).enforce_retention()
        ours.sync(theirs, logs=name)
        assert records(theirs, name) == records(ours, name)
        with pytest.raises(NotOwner):
            theirs.log(name).append(b"2")


def test_a_log_that_nobody_wrote_to_gives_way(a: Millstream, b: Millstream) -> None:
    for ours, theirs in ((a, b), (b, a)):
        name = f"x{store_id(ours)}"
        theirs.log(name).cursor("early")
        ours.log(name).append(b"1")
        ours.sync(theirs, logs=name)
        assert values(theirs, name) == [b"1"]
        with pytest.raises(NotOwner):
            theirs.log(name).append(b"2")


def test_empty_logs_of_one_name_leave_each_other_alone(a: Millstream, b: Millstream) -> None:
    a.log("x").cursor("c")
    b.log("x").cursor("c")
    assert a.sync(b).pulled == 0
    assert a.log("x").append(b"1") == 0


def test_a_store_is_not_synced_with_itself(a: Millstream) -> None:
    with pytest.raises(InvalidInput, match="itself"):
        a.sync(a)


@pytest.mark.parametrize(
    "wrong",
    [{"direction": "up"}, {"on_fork": "mine"}, {"logs": ""}, {"logs": 5}, {"logs": "\ud800"}],
    ids=str,
)
def test_options_that_are_not_offered_are_refused(
    a: Millstream, b: Millstream, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        a.sync(b, **wrong)


def test_whatever_is_no_store_is_refused(a: Millstream) -> None:
    with pytest.raises(InvalidInput, match="a peer is"):
        a.sync(5)  # type: ignore[arg-type]


def test_a_path_is_opened_and_closed_again(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("x").append(b"1")
        assert ms.sync(tmp_path / "b.db", direction="push", create=True).pushed == 1
        assert ms.sync(str(tmp_path / "b.db")).logs == []
    with millstream.open(tmp_path / "b.db") as ms:
        assert values(ms, "x") == [b"1"]
