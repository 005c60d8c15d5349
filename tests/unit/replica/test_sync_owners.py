"""Who may write, after copies have met: handing over, taking over, and what is kept as a fork."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream
from millstream.errors import Conflict, Fenced, ForkDetected, NotOwner
from millstream.replica.chain import Mark
from millstream.replica.commands import AdoptParcel, SummarizeLogs
from tests.unit.replica.copies import records, seen, store_id, through, values


def owner(ms: Millstream, log: str = "x") -> tuple[str, int]:
    found = ms.log(log).owner()
    return found.store, found.epoch


def all_the_same(*stores: Millstream) -> None:
    assert len({str(seen(ms)["x"]) for ms in stores}) == 1


def test_a_log_is_handed_over_by_way_of_a_third(
    a: Millstream, b: Millstream, c: Millstream
) -> None:
    a.log("x").append_many([b"1", b"2"])
    b.sync(a)
    a.log("x").append(b"3")
    a.log("x").hand_over(store_id(b))
    with pytest.raises(NotOwner):
        a.log("x").append(b"no")
    c.sync(a)
    b.sync(c)
    assert b.log("x").append(b"4") == 3
    c.sync(b)
    a.sync(c)
    all_the_same(a, b, c)
    assert owner(a) == (store_id(b), 1)
    assert values(a, "x") == [b"1", b"2", b"3", b"4"]


def test_the_new_owner_has_all_before_it_may_write(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.replica.sync.shipment.PARCEL_BYTES", 10)
    a.log("x").append(b"1")
    b.sync(a)
    for n in range(5):
        a.log("x").append_many([b"%d" % n] * 10)
    a.log("x").hand_over(store_id(b))

    def still_refused(_: object) -> None:
        if b.log("x").end_offset() < 51:
            with pytest.raises(NotOwner):
                b.log("x").append(b"too early")

    b.sync(a, progress=still_refused)
    assert b.log("x").append(b"now") == 51


def test_what_the_old_owner_wrote_after_a_take_over_is_set_aside(
    a: Millstream, b: Millstream, c: Millstream
) -> None:
    a.log("x").append_many([b"1", b"2"])
    b.sync(a)
    b.log("x").take_over()
    b.log("x").append(b"b3")
    a.log("x").append_many([b"a3", b"a4"])
    c.sync(a)
    outcome = a.sync(b)
    (log,) = outcome.logs
    (fork,) = log.set_aside
    assert values(a, fork) == [b"1", b"2", b"a3", b"a4"]
    assert fork.startswith("x~fork-0-")
    assert log.owner == store_id(b)
    with pytest.raises(NotOwner):
        a.log("x").append(b"no")
    c.sync(b)
    all_the_same(a, b, c)
    assert owner(c) == (store_id(b), 1)


def test_what_the_old_owner_appends_while_it_learns_is_set_aside_too(
    a: Millstream, b: Millstream
) -> None:
    a.log("x").append(b"1")
    b.sync(a)
    b.log("x").take_over()
    b.log("x").append(b"b")
    own, line = through(a)

    def meanwhile(command: Any, answer: Any) -> Any:
        if isinstance(command, AdoptParcel):
            a.log("x").append(b"at the last moment")
        return answer

    line.tampers = meanwhile
    (log,) = own.sync(b).logs
    assert values(a, log.set_aside[0])[-1] == b"at the last moment"
    all_the_same(a, b)


def test_what_was_merely_not_known_at_the_take_over_is_set_aside_too(
    a: Millstream, b: Millstream
) -> None:
    a.log("x").append(b"1")
    b.sync(a)
    a.log("x").append(b"2")
    b.log("x").take_over()
    (log,) = a.sync(b).logs
    assert values(a, log.set_aside[0]) == [b"1", b"2"]
    all_the_same(a, b)


def test_of_two_take_overs_at_once_all_choose_the_same(
    a: Millstream, b: Millstream, c: Millstream
) -> None:
    a.log("x").append(b"1")
    b.sync(a)
    c.sync(a)
    for ms, value in ((b, b"b"), (c, b"c")):
        ms.log("x").take_over()
        ms.log("x").append(value)
    winner = max(store_id(b), store_id(c))
    for one, other in ((a, b), (a, c), (b, c), (a, b), (a, c)):
        one.sync(other)
    all_the_same(a, b, c)
    assert owner(a) == (winner, 1)
    loser = b if winner == store_id(c) else c
    forks = [info.name for info in loser.logs() if "~fork-" in info.name]
    assert values(loser, forks[0])[-1] == (b"b" if loser is b else b"c")


def test_a_copy_that_only_pushes_learns_that_it_was_taken_over(
    a: Millstream, b: Millstream
) -> None:
    a.log("x").append(b"1")
    a.sync(b, direction="push")
    b.log("x").take_over()
    assert a.sync(b, direction="push").logs == []
    a.log("x").append(b"2")
    before = seen(a), seen(b)
    with pytest.raises(Fenced) as caught:
        a.sync(b, direction="push")
    assert (caught.value.owner, caught.value.epoch) == (store_id(b), 1)
    assert (seen(a), seen(b)) == before
    a.sync(b)
    all_the_same(a, b)


def test_what_the_old_owner_alone_had_survives_the_new_ones_truncation(
    a: Millstream, b: Millstream, c: Millstream
) -> None:
    """The new owner has gone on, and forgotten more than the old one ever wrote."""
    a.log("x").append_many([b"%d" % n for n in range(50)])
    b.sync(a)
    a.log("x").append_many([b"only a has it"] * 50)
    c.sync(a)
    b.log("x").take_over()
    b.log("x").append_many([b"b"] * 8_000)
    b.log("x").truncate(before=7_000)
    b.log("x").enforce_retention()
    for ms in (a, c):
        (log,) = ms.sync(b).logs
        assert values(ms, log.set_aside[0])[50:] == [b"only a has it"] * 50
    all_the_same(a, b, c)


@pytest.mark.parametrize("piece", [1, 2, 1_024])
def test_a_copy_that_forgot_where_it_parted_is_told_what_to_do(
    a: Millstream, b: Millstream, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("millstream.replica.chain.PIECE_RECORDS_MAX", piece)
    a.log("x").append_many([b"1", b"2", b"3"])
    b.sync(a)
    b.log("x").take_over()
    b.log("x").append_many([b"b"] * 5)
    a.log("x").append_many([b"a"] * 3)
    a.log("x").truncate(before=6)
    a.log("x").enforce_retention()
    before = seen(a), seen(b)
    for own, peer in ((a, b), (b, a)):
        with pytest.raises(Conflict, match="fork it to keep what it has, delete it"):
            own.sync(peer)
    assert (seen(a), seen(b)) == before
    a.log("x").fork()
    a.log("x").delete()
    a.sync(b)
    all_the_same(a, b)


def test_two_hand_overs_to_one_store_lose_nothing(
    a: Millstream, b: Millstream, c: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was handed over to `b`, which did not wait for that and took it over: one epoch, two logs."""
    monkeypatch.setattr("millstream.replica.chain.PIECE_RECORDS_MAX", 1)
    a.log("x").append(b"1")
    b.sync(a)
    a.log("x").append(b"only a has it")
    a.log("x").hand_over(store_id(b))
    b.log("x").take_over()
    assert owner(a) == owner(b) == (store_id(b), 1)
    b.log("x").append_many([b"b"] * 5)
    for before in (2, 4):
        b.log("x").truncate(before=before)
        b.log("x").enforce_retention()
        c.sync(a)
        (log,) = c.sync(b).logs
        assert values(c, log.set_aside[0]) == [b"1", b"only a has it"]
        c.log("x").delete()
    a.sync(b)
    all_the_same(a, b)


def test_an_owner_that_is_told_to_begin_later_keeps_what_it_had(
    a: Millstream, b: Millstream
) -> None:
    """A copy cannot make its owner forget what it never had."""
    a.log("x").append_many([b"1", b"2"])
    b.sync(a)
    peer, line = through(b)

    def later(command: Any, answer: Any) -> Any:
        if not isinstance(command, SummarizeLogs):
            return answer
        base = Mark(1_000, bytes(32))
        return [replace(one, start=1_000, end=1_000, base=base) for one in answer]

    line.tampers = later
    (log,) = a.sync(peer).logs
    assert values(a, log.set_aside[0]) == [b"1", b"2"]
    assert a.log("x").append(b"3") == 1_000


# Forks under one owner: an owner that was restored from a backup, and went on.


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[tuple[Millstream, Millstream]]:
    """A store that lost its last records and went on, and a copy that has them."""
    path, old = tmp_path / "a.db", tmp_path / "old.db"
    with millstream.open(path) as a:
        a.log("x").append_many([b"%d" % n for n in range(3)])
        a.log("x").metadata["k"] = 1
    shutil.copy(path, old)
    with millstream.open(tmp_path / "b.db") as b:
        with millstream.open(path) as a:
            a.log("x").append_many([b"lost", b"lost too"])
            b.sync(a)
        with millstream.open(old) as a:
            yield a, b


def test_a_restored_owner_gets_its_records_back(
    restored: tuple[Millstream, Millstream],
) -> None:
    a, b = restored
    assert a.sync(b).pulled == 2
    assert values(a, "x") == [b"0", b"1", b"2", b"lost", b"lost too"]
    assert a.log("x").append(b"more") == 5
    b.sync(a)
    all_the_same(a, b)


def test_a_fork_is_refused_and_nothing_changed(restored: tuple[Millstream, Millstream]) -> None:
    a, b = restored
    a.log("x").append(b"other")
    before = seen(a), seen(b)
    for own, peer in ((a, b), (b, a)):
        for direction in ("both", "pull", "push"):
            with pytest.raises(ForkDetected) as caught:
                own.sync(peer, direction=direction)  # type: ignore[arg-type]
            assert caught.value.offset == 3
    assert (seen(a), seen(b)) == before


def test_the_longest_is_taken_on_request_and_the_other_kept(
    restored: tuple[Millstream, Millstream],
) -> None:
    a, b = restored
    a.log("x").append(b"other")
    (log,) = b.sync(a, on_fork="longest").logs
    assert values(a, "x") == values(b, "x") == [b"0", b"1", b"2", b"lost", b"lost too"]
    assert values(a, log.set_aside[0])[3:] == [b"other"]
    assert a.log("x").append(b"more") == 5


@pytest.mark.parametrize("rule", ["longest", "rebase"])
def test_who_has_passed_the_difference_goes_back(
    restored: tuple[Millstream, Millstream], rule: Any
) -> None:
    a, b = restored
    a.log("x").append(b"other")
    queue = a.queue("q", sources=["x"], start="earliest")
    held = queue.claim(10)
    assert len(held) == 4
    (log,) = a.sync(b, on_fork=rule).logs
    assert [(one.name, one.passed, one.offset, one.withdrawn) for one in log.set_back] == [
        ("q", 4, 3, 1)
    ]
    queue.ack(held[:3])
    more = [b"other"] * (rule == "rebase")
    assert [one.value for one in queue.claim(10)] == [b"lost", b"lost too", *more]


def test_a_rebase_appends_the_owners_records_again(
    restored: tuple[Millstream, Millstream],
) -> None:
    a, b = restored
    a.log("x").append_many([b"other", b"and more", b"than b"])
    for _ in range(2):
        b.sync(a, on_fork="rebase")
    found = [b"0", b"1", b"2", b"lost", b"lost too", b"other", b"and more", b"than b"]
    assert values(a, "x") == values(b, "x") == found
    assert records(a, "x") == records(b, "x")


def test_the_side_that_would_give_way_must_be_one_that_may_change(
    restored: tuple[Millstream, Millstream],
) -> None:
    a, b = restored
    a.log("x").append(b"other")
    before = seen(a), seen(b)
    with pytest.raises(ForkDetected, match="both directions"):
        b.sync(a, on_fork="longest", direction="pull")
    assert (seen(a), seen(b)) == before
