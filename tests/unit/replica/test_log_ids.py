"""A log that is set aside keeps its id and its records; its name goes to a new log.

- The old log has all records at their offsets, under the generated name.
- The new log has the common records, the settings and the readers of the name.
- A reader that knows the old id is told where it continues, also after several set-asides.
- Both logs can be merged, forked, truncated and deleted like others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream, Producer
from millstream.doctor import examine
from millstream.errors import Conflict, CorruptionError, InvalidInput
from millstream.format import keys
from millstream.format.lineage import Former, encode_former
from millstream.log.commands import Acknowledge, GetExtent, MoveCursor
from millstream.log.rules import ancestry, retention
from millstream.replica.commands import SetAside
from millstream.rooms import commands as m
from millstream.rooms.model import Leaving
from millstream.rooms.settings import RoomSettings
from millstream.testing import MemoryEngine, Probe, memory_store
from tests.unit.replica.stores import ask, drop_bytes, payload_rows, store_of, summary, values


def set_aside(ms: Millstream, at: int, log: str = "a") -> str:
    return str(ask(ms, SetAside(log, at, 0)).fork)


def id_of(ms: Millstream, log: str = "a") -> int:
    return ms.log(log).extent().id


def whole(ms: Millstream, log: str) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for record in ms.log(log).read()]


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, stop)]


@pytest.mark.parametrize("folded", [False, True])
def test_the_old_id_keeps_every_record_at_its_offset(ms: Millstream, folded: bool) -> None:
    log = ms.log("a")
    log.append_many(numbers(0, 6))
    before, old_id = whole(ms, "a"), id_of(ms)
    if folded:
        ms.fold()
    name = set_aside(ms, 4)
    log.append_many([b"x", b"y", b"z"])
    assert (id_of(ms, name), whole(ms, name)) == (old_id, before)
    assert id_of(ms) > old_id
    assert whole(ms, "a") == [*before[:4], (4, b"x"), (5, b"y"), (6, b"z")]
    assert ms.log(name).append(b"own") == 6
    assert whole(ms, "a")[-1] == (6, b"z")


def test_the_settings_of_the_name_go_to_the_new_log(ms: Millstream) -> None:
    log = ms.log("a")
    log.append_many(numbers(0, 4), producer=Producer("p", 0))
    log.append(b"4", producer=Producer("p", 1))
    log.metadata["owner"] = "ann"
    log.retain(count=9)
    cursor = log.cursor("r")
    cursor.ack([0, 2])
    before = ms.log("a").info()
    name = set_aside(ms, 4)
    after, aside = log.info(), ms.log(name).info()
    assert before is not None
    assert after is not None
    assert aside is not None
    assert (after.created, after.retention, after.timestamp) == (
        before.created,
        before.retention,
        before.timestamp,
    )
    assert log.metadata["owner"] == "ann"
    assert [(one.floor, one.ranges, one.set_back) for one in log.cursors()] == [(1, [(2, 3)], 0)]
    assert log.append(b"again", producer=Producer("p", 1)) == 4
    assert (aside.retention.count, ms.log(name).cursors()) == (None, [])
    assert dict(ms.log(name).metadata) == {}


@pytest.mark.parametrize(("first", "second"), [(4, 6), (6, 4), (4, 4), (0, 0)])
def test_readers_are_told_where_they_continue_after_two_set_asides(
    tmp_path: Path, first: int, second: int
) -> None:
    with millstream.open(tmp_path / "s.db") as ms:
        log = ms.log("a")
        log.append_many(numbers(0, 8))
        oldest = id_of(ms)
        first_name = set_aside(ms, first)
        log.append_many([b"x%d" % n for n in range(8)])
        old = id_of(ms)
        second_name = set_aside(ms, second)
        log.append(b"last")
        assert log.extent(id_of(ms)).equal_below is None
        assert log.extent(old).equal_below == second
        assert log.extent(oldest).equal_below == min(first, second)
        assert log.extent(oldest).position_of(7) == min(first, second)
        assert log.extent(oldest).position_of(0) == 0
        assert values(ms.log(first_name)) == numbers(0, 8)
        middle = [*numbers(0, first), *(b"x%d" % n for n in range(8))]
        assert values(ms.log(second_name)) == middle
        assert values(log) == [*middle[:second], b"last"]
        assert {ms.log(name).parent() for name in (first_name, second_name)} == {"a"}
        assert log.parent() is None
        ms.fold()
        assert values(log) == [*middle[:second], b"last"]
    assert examine(tmp_path / "s.db").problems == []


@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("at", [2, 4])
def test_a_fork_keeps_its_parent_when_its_records_are_set_aside(
    ms: Millstream, own: int, at: int
) -> None:
    """Also if the records below the offset lie in the parent of the parent."""
    ms.log("a").append_many(numbers(0, 4))
    ms.log("a").fork("child")
    ms.log("child").fork("grandchild")
    ms.log("a").delete()
    grandchild = ms.log("grandchild")
    for value in numbers(4, 4 + own):
        grandchild.append(value)
    set_aside(ms, at, "grandchild")
    assert grandchild.parent() == "child"
    grandchild.append(b"new")
    grandchild.merge(on_fork="longest" if at == 4 else "rebase")
    assert values(ms.log("child"))[-1] == b"new"


def test_a_log_that_was_made_anew_is_unrelated(ms: Millstream) -> None:
    log = ms.log("a")
    log.append_many(numbers(0, 4))
    known = id_of(ms)
    name = set_aside(ms, 2)
    log.delete()
    assert log.extent(known).id == 0
    log.append(b"new")
    assert log.extent(known).equal_below is None
    assert ms.log(name).parent() == "a"
    with pytest.raises(Conflict, match="was deleted"):
        ms.log(name).merge()
    assert values(ms.log(name)) == numbers(0, 4)


@pytest.mark.parametrize("wrong", [-1, 2**64, 2**200])
def test_an_id_that_no_log_can_have_is_refused(ms: Millstream, wrong: int) -> None:
    ms.log("a").append(b"0")
    ms.log("a").cursor("r")
    commands: list[Any] = [
        Acknowledge("a", "r", [(0, 1)], wrong),
        MoveCursor("a", "r", 1, True, wrong),
        GetExtent("a", wrong),
    ]
    for command in commands:
        with pytest.raises(InvalidInput, match="id of a log"):
            ask(ms, command)


def test_only_the_last_former_logs_are_remembered(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ancestry, "FORMER_LOGS_MAX", 2)
    log = ms.log("a")
    log.append_many(numbers(0, 4))
    known = []
    for _ in range(4):
        known.append(id_of(ms))
        set_aside(ms, 2)
        log.append(b"x")
    assert [log.extent(one).equal_below for one in known] == [None, None, 2, 2]


def test_a_log_can_be_set_aside_hundreds_of_times(ms: Millstream) -> None:
    """Its records lie in as many logs, more than calls can be nested."""
    log, times = ms.log("a"), 260
    log.append(b"0")
    oldest = id_of(ms)
    for n in range(1, times):
        log.append_many([b"%d" % n, b"set aside"])
        name = set_aside(ms, n + 1)
        if n == 1:
            first_name = name
    assert values(log) == numbers(0, times)
    queue = ms.queue("q", sources=["a"], start="earliest")
    assert len(queue.claim(times)) == times
    ms.log(first_name).delete()
    while retention.tend(store_of(ms), oldest):
        pass
    assert values(log) == numbers(0, times)
    assert log.extent(oldest).equal_below == 2


def test_damage_in_an_ancestor_ends_where_the_next_log_begins() -> None:
    engine = MemoryEngine()
    with memory_store(engine) as ms:
        log = ms.log("a")
        log.append_many(numbers(0, 8))
        for at in (3, 5):
            set_aside(ms, at)
            log.append_many([b"of %d" % at] * 4)
        ms.log("other").append(b"the newest delta stays")
        ms.fold()
        Probe(ms).damage(keys.entry(1, 7))
    with memory_store(engine.reopen()) as ms:
        with pytest.raises(CorruptionError) as raised:
            values(ms.log("a"))
        assert (raised.value.offset, raised.value.stop) == (0, 3)
        assert values(ms.log("a"), 3) == [b"of 3"] * 2 + [b"of 5"] * 4


@pytest.mark.parametrize("order", ["aside first", "log first"])
def test_bytes_go_once_neither_log_needs_them(tmp_path: Path, order: str) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        log = ms.log("a")
        for value in numbers(0, 6):
            log.append(value)
        summary(ms)
        name = set_aside(ms, 4)
        log.append(b"x")
        known = id_of(ms, name)
        first, last = (name, "a") if order == "aside first" else ("a", name)
        kept = values(ms.log(last))
        ms.log(first).delete()
        drop_bytes(ms)
        assert examine(path).problems == []
        assert values(ms.log(last)) == kept
        if last == "a":
            assert log.extent(known).equal_below == 4
        assert summary(ms, last).end == len(kept)
        ms.log(last).delete()
        ms.log("other").append(b"the newest delta stays")
        drop_bytes(ms)
        assert payload_rows(ms) <= 1
    assert examine(path).problems == []


def test_the_old_log_is_merged_into_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        log = ms.log("a")
        log.append_many(numbers(0, 6))
        name = set_aside(ms, 4)
        assert ms.log(name).merge().adopted == 2
        assert values(log) == numbers(0, 6)
        assert ms.log(name).merge().adopted == 0
        ms.log(name).append(b"more")
        assert ms.log(name).merge().adopted == 1
        log.append(b"own")
        ms.log(name).append(b"late")
        again = set_aside(ms, 7)
        log.append(b"new")
        assert ms.log(name).merge(on_fork="rebase").adopted == 1
        assert values(log) == [*numbers(0, 6), b"more", b"new", b"late"]
        assert ms.log(again).merge(on_fork="rebase").adopted == 1
        assert values(log)[-1] == b"own"
        assert {ms.log(one).merge(on_fork="rebase").adopted for one in (name, again)} == {0}
    assert examine(path).problems == []


def test_the_longer_old_log_wins_over_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        log = ms.log("a")
        log.append_many(numbers(0, 6))
        name = set_aside(ms, 4)
        log.append(b"x")
        merged = ms.log(name).merge(on_fork="longest")
        assert (merged.parent, merged.adopted) == ("a", 2)
        assert values(log) == numbers(0, 6)
        assert values(ms.log(merged.set_aside or "")) == [*numbers(0, 4), b"x"]
    assert examine(path).problems == []


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_fork_that_was_set_aside_stays_a_fork_of_its_parent(tmp_path: Path, at: int) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        parent = ms.log("p")
        parent.append_many(numbers(0, 2))
        fork = parent.fork("f")
        fork.append_many(numbers(2, 4))
        child = fork.fork("child")
        child.append(b"c")
        name = set_aside(ms, at, "f")
        fork.append(b"own")
        assert fork.parent() == "p"
        assert ms.log(name).parent() == "f"
        assert child.parent() == ("f" if at == 4 else name)
        expected = [*numbers(0, at), b"own"]
        assert values(fork) == expected
        if at >= 2:
            assert fork.merge().adopted == at - 1
            assert values(parent) == expected
            assert fork.merge().adopted == 0
        fork.append(b"more")
        fork.merge(on_fork="rebase")
        assert values(parent)[-1] == b"more"
        assert values(child) == [*numbers(0, 4), b"c"]
    assert examine(path).problems == []


def test_a_log_that_was_set_aside_is_set_aside_itself(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        log = ms.log("a")
        log.append_many(numbers(0, 6))
        name = set_aside(ms, 4)
        old_id = id_of(ms, name)
        second = set_aside(ms, 5, name)
        assert (ms.log(name).parent(), ms.log(second).parent(), log.parent()) == ("a", name, None)
        assert (id_of(ms, second), values(ms.log(second))) == (old_id, numbers(0, 6))
        assert values(ms.log(name)) == numbers(0, 5)
        assert ms.log(name).extent(old_id).equal_below == 5
        assert ms.log(second).merge().adopted == 1
        assert ms.log(name).merge().adopted == 2
        assert values(log) == numbers(0, 6)
    assert examine(path).problems == []


def test_messages_of_the_common_records_belong_to_the_new_log(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        log = ms.log("a")
        log.append_many(numbers(0, 6))
        queues = [
            ms.queue(name, sources=[source], start="earliest", keep_payloads=True)
            for name, source in (("named", "a"), ("matched", "a*"), ("later", "a"))
        ]
        held = {}
        for queue in queues[:2]:
            messages = queue.claim(6)
            queue.ack([messages[0], messages[5]])
            queue.fail(messages[1], reason="broken")
            held[queue.name] = messages
        name = set_aside(ms, 4)
        log.append(b"x")
        for queue in queues[:2]:
            messages = held[queue.name]
            done = {(one.log, one.offset) for one in queue.peek(9, state="done")}
            assert done == {("a", 0), (name, 5)}
            assert [(one.log, one.value) for one in queue.peek(9, state="failed")] == [("a", b"1")]
            queue.ack(messages[2:4])
            assert [(one.log, one.value) for one in queue.claim(9)] == [("a", b"x")]
            assert queue.redrive() == 1
            assert [(one.log, one.value) for one in queue.claim(9)] == [("a", b"1")]
            assert (queue.info().set_back, queue.info().withdrawn) == (1, 1)
        assert [one.value for one in queues[2].claim(9)] == [*numbers(0, 4), b"x"]
        assert queues[2].info().set_back == 0
        ms.fold()
        assert examine(path).problems == []


def test_a_room_goes_on_with_its_state(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        generation = ask(ms, m.TakeInstance("i", "h")).generation
        ask(ms, m.SpecifyRoom("hall", RoomSettings(ttl=9.0, retained=("t",))))
        room = ms.room("hall")
        room.send("t", "kept", "k")
        for user, connection in (("ann", "1"), ("bob", "2")):
            ask(ms, m.JoinRoom("hall", "i", generation, connection, "c", user))
        ask(ms, m.LeaveRooms("i", generation, [Leaving("hall", "bob", "2")]))
        before, present = room.info(), ask(ms, m.GetPresence("hall")).users
        assert before is not None
        name = set_aside(ms, 2, "room:hall")
        after = room.info()
        assert after is not None
        assert (after.settings, after.retained, after.users, after.connections) == (
            before.settings,
            before.retained,
            before.users,
            before.connections,
        )
        assert ask(ms, m.GetPresence("hall")).users == present
        assert [one.json() for one in room.retained().values] == ["kept"]
        ask(ms, m.LeaveRooms("i", generation, [Leaving("hall", "ann", "1")]))
        assert ask(ms, m.GetPresence("hall")).users[0].connections == 0
        assert [one.name for one in ms.rooms()] == ["hall"]
        assert ms.log(name).end_offset() == 3
        ms.fold()
        assert examine(path).problems == []


Break = Callable[[Any], None]


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (lambda tx: tx.put(keys.former(2, 1), bytes(3)), "the former log 1"),
        (lambda tx: tx.put(keys.former(2, 1), encode_former(Former(99))), "below 99"),
        (lambda tx: tx.put(keys.former(77, 1), encode_former(Former(1))), "and is gone"),
    ],
)
def test_the_doctor_finds_a_former_log_that_cannot_be(
    tmp_path: Path, breaks: Break, told: str
) -> None:
    path = tmp_path / "s.db"
    with millstream.open(path) as ms:
        ms.log("a").append_many(numbers(0, 6))
        set_aside(ms, 4)
        store_of(ms).run(breaks)
    assert any(told in one.message for one in examine(path).problems)
