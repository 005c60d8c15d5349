"""The room as programs hold it: both surfaces, in this process and over a server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import RoomMessage
from millstream.errors import Conflict, InvalidInput
from millstream.format import keys
from millstream.replica.commands import SetAside
from millstream.rooms import commands as c
from millstream.rooms.settings import RoomSettings
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import MemoryEngine, Probe, memory_store
from tests.unit.surfaces import SURFACES, surface_of

PLACES = ("here", "served")


@pytest.fixture(params=[(name, place) for name in SURFACES for place in PLACES])
def ms(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    name, place = request.param
    with surface_of(name) as surface:
        if place == "here":
            with memory_store() as held:
                yield surface.over(held.session)
            return
        settings = Settings(port=0, stop_s=1.0)
        with (
            running(tmp_path / "a.db", settings) as server,
            surface.open(server.url) as opened,
        ):
            yield opened


def heard(room: Any, offset: int | None = 0, **more: Any) -> list[Any]:
    return [one.json() for one in room.listen(offset, timeout=0, **more)]


def test_what_is_sent_is_heard_by_all_but_its_sender(ms: Any) -> None:
    ann, bob = ms.room("hall", user="ann"), ms.room("hall")
    assert ann.send("chat", {"text": "hi"}, key="k") == 0
    assert bob.send("chat", "text") == 1
    assert list(ann.send_many([("chat", 1), ("draw", 2, "k"), RoomMessage("chat", b"3")])) == [
        2,
        3,
        4,
    ]
    assert heard(ann) == ["text"]
    assert heard(bob) == [{"text": "hi"}, 1, 2, 3]
    first, *_ = ms.room("hall").listen(0, timeout=0)
    assert (first.type, first.sender, first.key, first.offset) == ("chat", "ann", "k", 0)
    assert first.next_offset == 1


def test_a_listener_starts_at_the_end_or_at_an_offset_and_names_types(ms: Any) -> None:
    room, other = ms.room("hall"), ms.room("hall")
    room.send_many([("a", 0), ("b", 1), ("a", 2)])
    assert heard(other, None) == []
    assert heard(other, 1) == [1, 2]
    assert heard(other, 0, types=["a"]) == [0, 2]
    assert heard(other, 3) == []
    with pytest.raises(InvalidInput):
        heard(other, -1)


def test_nothing_sent_is_no_message(ms: Any) -> None:
    room = ms.room("hall")
    room.send("chat", 1)
    assert room.send_many([]) == range(1, 1)
    for wrong in ("chat", ("chat",), 5, ("chat", 1, "k", 2)):
        with pytest.raises(InvalidInput, match="type, data"):
            room.send_many([wrong])
    for value in (b"bytes", float("nan"), object()):
        with pytest.raises(InvalidInput):
            room.send("chat", value)


def test_what_is_retained_is_kept_until_it_is_deleted(ms: Any) -> None:
    room = ms.room("hall")
    assert room.specify(retained="rect", ttl=5).retained == ("rect",)
    room.send("rect", {"x": 1}, key="a")
    room.send("rect", {"x": 2}, key="b")
    found = room.retained()
    assert found.offset == 2
    assert [(one.key, one.json()) for one in found.values] == [("a", {"x": 1}), ("b", {"x": 2})]
    assert room.delete("rect", "a") == 2
    assert [one.key for one in room.retained(["rect"]).values] == ["b"]
    assert room.retained(["other"]).values == []
    (gone,) = list(ms.room("hall").listen(2, timeout=0))
    assert (gone.deleted, gone.key, gone.json()) == (True, "a", None)


def test_settings_are_altered_one_by_one(ms: Any) -> None:
    room = ms.room("hall")
    assert room.info() is None
    assert room.settings() == RoomSettings()
    room.specify(ttl=5)
    assert room.specify(tick=0.1) == RoomSettings(ttl=5.0, tick=0.1)
    assert room.settings() == RoomSettings(ttl=5.0, tick=0.1)
    with pytest.raises(InvalidInput, match="no setting 'tll'"):
        room.specify(tll=5)
    assert room.info().settings.ttl == 5


def test_rooms_are_listed_and_deleted(ms: Any) -> None:
    for name in ("b", "a"):
        ms.room(name).send("chat", 1)
    assert [(one.name, len(one)) for one in ms.rooms()] == [("a", 1), ("b", 1)]
    assert ms.room("a").delete_room()
    assert not ms.room("a").delete_room()
    assert [one.name for one in ms.rooms()] == ["b"]
    assert ms.room("b").presence() == []


def test_a_room_is_a_log(ms: Any) -> None:
    room = ms.room("hall")
    room.send("chat", {"n": 1})
    assert [one.json() for one in room.log.read()] == [{"n": 1}]
    queue = ms.queue("q", sources="room:*", filter="type = 'chat'", start="earliest")
    assert [one.json() for one in queue.claim(5)] == [{"n": 1}]


def test_what_others_append_to_the_log_is_heard_too(ms: Any) -> None:
    room = ms.room("hall")
    room.log.append(b"text", headers={"type": 5, "from": 1, "n": "x"})
    room.log.append(b"\xff", key=b"\xfe", headers={"type": "blob"})
    room.log.append({"n": 1})
    text, blob, json = list(room.listen(0, timeout=0))
    assert (text.type, text.json(), text.sender, text.number) == ("record", "text", "", None)
    assert (blob.type, blob.json(), blob.key) == ("blob", {"base64": "/w=="}, "\\xfe")
    assert json.json() == {"n": 1}


def test_what_has_expired_is_told_as_a_gap(ms: Any) -> None:
    room = ms.room("hall")
    ms.room("hall").send_many([("chat", n) for n in range(5)])
    room.log.truncate(before=3)
    gap, *rest = list(room.listen(1, timeout=0))
    assert (gap.gap, gap.offset, gap.next_offset) == ((1, 3), 3, 3)
    assert [one.json() for one in rest] == [3, 4]


def test_a_room_that_was_made_again_is_heard_from_its_start(ms: Any) -> None:
    room = ms.room("hall")
    ms.room("hall").send_many([("chat", n) for n in range(5)])
    room.delete_room()
    ms.room("hall").send("chat", "new")
    gap, message = list(room.listen(5, timeout=0))
    assert (gap.gap, gap.offset) == ((1, 5), 0)
    assert message.json() == "new"


def test_a_transaction_sends(ms: Any) -> None:
    room = ms.room("hall", user="ann")
    with ms.transaction() as tx:
        first = tx.send(room, "chat", 1)
        tx.append("orders", b"x")
        second = tx.send("hall", "chat", 2, "k", user="bob")
    assert (first.result, second.result) == (0, 1)
    assert heard(room) == [2]
    told = list(ms.room("hall").listen(0, timeout=0))
    assert [(one.sender, one.key) for one in told] == [("ann", None), ("bob", "k")]


# With a look behind the scenes.


def test_a_listener_wakes_when_something_is_sent() -> None:
    with memory_store() as ms, ThreadPoolExecutor(1) as threads:
        listening = ms.room("hall").listen(0)
        found = threads.submit(next, listening)
        ms.room("hall").send("chat", 1)
        assert found.result(timeout=30).json() == 1
        listening.close()


def test_a_listener_goes_back_with_its_log() -> None:
    with memory_store() as ms:
        room, other = ms.room("hall"), ms.room("hall")
        other.send_many([("chat", n) for n in range(3)])
        listening = room.listen(0, timeout=0)
        assert [next(listening).json() for _ in range(3)] == [0, 1, 2]
        ms.session.execute(SetAside("room:hall", 1, 0))
        other.send("chat", "other")
        gap = next(listening)
        assert (gap.gap, gap.next_offset) == ((1, 3), 1)
        assert next(listening).json() == "other"
        assert [one.name for one in ms.rooms()] == ["hall"]


def test_damage_is_a_gap_and_what_is_around_it_is_heard() -> None:
    engine = MemoryEngine()
    with memory_store(engine) as ms:
        for number in range(3):
            ms.room("hall").send_many([("chat", number), ("chat", -number)])
        ms.log("a").append(b"x")
        ms.fold()
        Probe(ms).damage(keys.payload_block(2))
    with memory_store(engine.reopen()) as ms:
        told = list(ms.room("hall").listen(0, timeout=0))
        assert [one.gap or one.json() for one in told] == [0, 0, (2, 4), 2, -2]


def test_settings_that_change_all_the_time_are_a_conflict() -> None:
    class Busy:
        """A session in which somebody else is always faster."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.limits, self.clock = inner, inner.limits, inner.clock
            self.count = 0

        def execute(self, command: Any) -> Any:
            if isinstance(command, c.SpecifyRoom):
                self.count += 1
                other = RoomSettings(ttl=float(self.count))
                self.inner.execute(c.SpecifyRoom("hall", other))
            return self.inner.execute(command)

    with memory_store() as ms:
        busy: Any = Busy(ms.session)
        with pytest.raises(Conflict, match="all the time"):
            millstream.Millstream(busy).room("hall").specify(tick=0.1)


def test_a_handle_never_hears_what_was_sent_under_its_own_origin() -> None:
    with memory_store() as ms:
        room = ms.room("hall")
        ms.session.execute(c.SendToRoom("hall", [RoomMessage("chat", b"1")], origin=room.origin))
        assert heard(room) == []
