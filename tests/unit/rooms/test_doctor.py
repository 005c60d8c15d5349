"""The doctor looks at what is kept beside the logs of rooms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.format import keys, room_keys
from millstream.rooms import commands as c
from millstream.rooms.model import Leaving
from millstream.rooms.state import PeopleCounted, RetainedCounted
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store
from millstream.testing import Probe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a room in which one user is, and which another one has just left."""
    place = tmp_path / "rooms.db"
    with opened(place) as ms:
        ask = ms.session.execute
        generation = ask(c.TakeInstance("one", "a holder")).generation
        ms.room("hall").specify(retained="rect")
        ms.room("hall").send("rect", 1, "a")
        for user in ("ann", "bob"):
            ask(c.JoinRoom("hall", "one", generation, user, "c", user))
        ask(c.LeaveRooms("one", generation, [Leaving("hall", "bob", "bob")]))
    return place


def opened(path: Path) -> Millstream:
    ms = millstream.open(path)
    Probe(ms).pause_keeper()
    return ms


def log_id(store: Store) -> int:
    return int(store.seen(keys.log_name("room:hall")))


@pytest.mark.parametrize("folded", [False, True])
def test_a_room_is_seen_whole(path: Path, folded: bool) -> None:
    with opened(path) as ms:
        ms.log("a").append(b"x")
        if folded:
            ms.fold()
    report = examine(path)
    assert (report.healthy, report.problems, report.rooms) == (True, [], 1)


def test_a_room_that_was_deleted_leaves_no_damage(path: Path) -> None:
    with opened(path) as ms:
        ms.room("hall").delete_room()
    assert examine(path).healthy


def drop_of(kind: int) -> Callable[[WriteTransaction, int], None]:
    def drop(tx: WriteTransaction, _: int) -> None:
        assert not tx.drop_some(*keys.range_of(keys.prefix(kind)), limit=10)

    return drop


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            lambda tx, log: tx.change(room_keys.room(log), RetainedCounted(1, 0)),
            "counts 2 retained",
        ),
        (
            lambda tx, log: tx.change(room_keys.room(log), RetainedCounted(0, 1)),
            "bytes of retained",
        ),
        (lambda tx, log: tx.change(room_keys.room(log), PeopleCounted(1, 0)), "counts 3 users"),
        (lambda tx, log: tx.change(room_keys.room(log), PeopleCounted(0, 1)), "2 connections, and"),
        (
            lambda tx, log: tx.change(room_keys.room(99), PeopleCounted(0, 1)),
            "log 99, which is gone",
        ),
        (
            lambda tx, log: tx.put(room_keys.retained(99, "t"), b"\x94\x00\xa0\x00\xc4\x01x"),
            "log 99",
        ),
        (lambda tx, log: tx.put(room_keys.retained(log, "t"), b"?"), "is damaged"),
        (
            lambda tx, log: tx.put(room_keys.presence(99, "u", "i", "c"), b"\x94\xa0\x00\x01\x00"),
            "log 99",
        ),
        (lambda tx, log: tx.put(room_keys.presence(log, "u", "i", "c"), b"?"), "is damaged"),
        (drop_of(keys.ATTENDANCE), "'ann' to 'room:hall' is not listed"),
        (drop_of(keys.DEPARTURE), "'bob' to 'room:hall' is not listed"),
        (drop_of(keys.PRESENCE), "is listed, though"),
    ],
)
def test_what_does_not_agree_is_told(
    path: Path, wrong: Callable[[WriteTransaction, int], None], told: str
) -> None:
    with opened(path) as ms:
        store = Probe(ms).store
        store.run(lambda tx: wrong(tx, log_id(store)))
    report = examine(path)
    assert not report.healthy
    assert any(told in one.message for one in report.problems), report.problems
