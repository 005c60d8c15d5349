"""Sweeping: what is older than the time to live goes, once every living instance has passed it."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Limits
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.log.rules import retention
from millstream.rooms import commands as c
from millstream.rooms.model import Watermark
from millstream.rooms.sweep import SweepCounts
from millstream.testing import MemoryEngine, Probe, SimulatedClock, memory_store
from tests.unit.rooms.serving import Served, message


def bounds(served: Served, room: str = "hall") -> tuple[int, int]:
    log = served.ms.log(f"room:{room}")
    return log.start_offset(), log.end_offset()


def test_messages_go_when_they_are_older_than_the_time_to_live(served: Served) -> None:
    served.send("hall", message("chat"), message("chat"))
    served.clock.advance(30)
    served.send("hall", message("chat"))
    served.clock.advance(30)
    assert served.ask(c.SweepRooms()) == 0
    served.clock.advance(0.001)
    assert served.ask(c.SweepRooms()) == 2
    assert bounds(served) == (2, 3)


def test_each_room_has_its_own_time_to_live(served: Served) -> None:
    served.specify("short", ttl=1.0)
    served.specify("endless", ttl=0.0)
    for room in ("short", "endless", "usual"):
        served.send(room, message("chat"))
    served.clock.advance(10)
    served.ask(c.SweepRooms())
    assert [bounds(served, room)[0] for room in ("short", "endless", "usual")] == [1, 0, 0]
    served.clock.advance(10**6)
    served.ask(c.SweepRooms())
    assert [bounds(served, room)[0] for room in ("short", "endless", "usual")] == [1, 0, 1]


def test_other_logs_are_left_alone(served: Served) -> None:
    served.ms.log("rooms").append(b"x")
    served.ms.log("orders").append(b"x")
    served.clock.advance(10**6)
    assert served.ask(c.SweepRooms()) == 0


def test_retained_values_outlive_their_messages(served: Served) -> None:
    served.specify("hall", retained=("rect",))
    served.send("hall", message("rect", 1, "a"))
    served.clock.advance(100)
    assert served.ask(c.SweepRooms()) == 1
    assert served.retained("hall") == {("rect", "a"): 1}


def test_the_lowest_watermark_of_instances_that_were_seen_guards(served: Served) -> None:
    one, two = ("one", served.take("one")), ("two", served.take("two"))
    served.send("hall", *[message("chat") for _ in range(6)])
    served.ask(c.NoteWatermarks(*one, [Watermark("hall", 4)]))
    served.ask(c.NoteWatermarks(*two, [Watermark("hall", 2)]))
    served.clock.advance(100)
    assert served.ask(c.SweepRooms()) == 2
    assert served.ask(c.SweepRooms()) == 0
    assert bounds(served) == (2, 6)
    served.clock.advance(99)
    third = "one", served.take("one")
    served.ask(c.NoteWatermarks(*third, [Watermark("hall", 4)]))
    served.clock.advance(102)
    assert served.ask(c.SweepRooms()) == 2
    assert bounds(served) == (4, 6)
    served.ask(c.FreeInstance(*third))
    assert served.ask(c.SweepRooms()) == 2


def test_an_instance_that_was_started_again_guards_nothing_without_listeners(
    served: Served,
) -> None:
    one, two = ("one", served.take("one")), ("two", served.take("two", "elsewhere"))
    served.send("hall", *[message("chat") for _ in range(6)])
    for at in (one, two):
        served.ask(c.NoteWatermarks(*at, [Watermark("hall", 2)]))
    served.clock.advance(61)
    assert served.ask(c.SweepRooms()) == 2
    served.take("two")
    assert served.ask(c.SweepRooms()) == 0
    served.ask(c.FreeInstance(*one))
    assert served.ask(c.SweepRooms()) == 4
    assert served.ms.log("room:hall").cursors() == []


def test_a_room_without_listeners_at_an_instance_does_not_wait_for_it(served: Served) -> None:
    at = "one", served.take("one")
    for room in ("hall", "yard"):
        served.send(room, message("chat"))
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 0), Watermark("yard", 0)]))
    served.ask(c.NoteWatermarks(*at, [], ["hall", "yard", "nowhere"]))
    served.ask(c.NoteWatermarks(*at, [Watermark("yard", 0)]))
    served.clock.advance(61)
    assert served.ask(c.SweepRooms()) == 1
    assert (bounds(served), bounds(served, "yard")) == ((1, 1), (0, 1))


def test_watermarks_of_an_earlier_release_guard_nothing_and_go(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", message("chat"))
    served.ms.log("room:hall").cursor("instance:one", start=0)
    served.ms.log("room:hall").cursor("reader", start=0)
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 1)]))
    served.clock.advance(61)
    assert served.ask(c.SweepRooms()) == 1
    names = [one.name for one in served.ms.log("room:hall").cursors()]
    assert names == [f"instance:one#{at[1]}", "reader"]


def test_instances_that_were_not_seen_for_a_day_are_forgotten(served: Served) -> None:
    at = "one", served.take("one")
    served.send("hall", message("chat"))
    served.ask(c.NoteWatermarks(*at, [Watermark("hall", 1)]))
    served.clock.advance(24 * 3600 - 1)
    other = served.take("two")
    served.clock.advance(2)
    served.ask(c.SweepRooms())
    assert [one.name for one in served.ask(c.ListInstances())] == ["two"]
    assert served.ms.log("room:hall").cursors() == []
    assert served.take("one") > other


def test_many_rooms_and_long_logs_are_swept_in_steps(served: Served) -> None:
    for number in range(450):
        served.send(f"room {number:03}", message("chat"))
    for _ in range(2_500):
        served.send("long", message("chat"))
    served.clock.advance(61)
    assert served.ask(c.SweepRooms()) == 450 + 2_500


def test_the_background_sweeps_and_gives_bytes_back(served: Served) -> None:
    for _ in range(10):
        served.send("hall", message("chat", "x" * 1_000))
    served.ms.fold()
    served.clock.advance(61)
    Probe(served.ms).upkeep()
    Probe(served.ms).upkeep()
    served.ms.fold()
    assert bounds(served) == (10, 10)
    info = served.ask(c.DescribeRoom("hall"))
    assert info is not None
    assert info.bytes == 0
    assert len(Probe(served.ms).rows(keys.ENTRY)) == 0


def test_messages_that_another_sweep_deletes_meanwhile_are_no_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, find_entries = list[int](), retention.entries_of

    def find_late(*args: Any, **options: Any) -> Any:
        if not counts:  # the snapshot of the first sweep is open, and the entries are not folded
            counts.append(-1)
            served.ms.fold()
            counts[0] = served.ask(c.SweepRooms())
            Probe(served.ms).upkeep()
            served.ms.fold()
        return find_entries(*args, **options)

    served.send("hall", *[message("chat") for _ in range(3)])
    served.clock.advance(61)
    monkeypatch.setattr(retention, "entries_of", find_late)
    assert served.ask(c.SweepRooms()) == 0
    assert counts == [3]
    assert bounds(served) == (3, 3)


def test_the_background_counts_and_logs_what_it_removes(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    counts = Probe(served.ms).store.caches.of(SweepCounts)
    served.send("hall", message("chat"), message("chat"))
    served.send("yard", message("chat"))
    with caplog.at_level("INFO", "millstream.rooms"):
        Probe(served.ms).upkeep()
        served.clock.advance(61)
        Probe(served.ms).upkeep()
        served.clock.advance(31)
        Probe(served.ms).upkeep()
    found = [(one.message, vars(one)["messages"]) for one in caplog.records]
    assert found == [("rooms_swept", 3)]
    assert (counts.messages, counts.sweeps) == (3, 2)


def test_how_often_rooms_are_swept_can_be_set() -> None:
    clock = SimulatedClock()
    with memory_store(MemoryEngine(), clock=clock, limits=Limits(room_sweep_ms=500)) as ms:
        probe = Probe(ms)
        probe.pause_keeper()
        probe.upkeep()
        counts = probe.store.caches.of(SweepCounts)
        for sweeps in (0, 1):
            clock.advance(0.499)
            probe.upkeep()
            assert counts.sweeps == sweeps
            clock.advance(0.001)
            probe.upkeep()
            assert counts.sweeps == sweeps + 1


def test_a_room_that_is_damaged_does_not_keep_others_from_being_swept(served: Served) -> None:
    at = "one", served.take("one")
    served.join("hall", "ann", at)
    for room in ("a", "hall", "z"):
        served.send(room, message("chat"))
    served.ms.log("last").append(b"x")
    served.ms.fold()
    rows = Probe(served.ms).rows(keys.ENTRY)
    hall = served.ms.session.store.seen(keys.log_name("room:hall"))  # type: ignore[attr-defined]
    (entry,) = [key for key in rows if keys.pair(key)[0] == hall]
    Probe(served.ms).damage(entry)
    served.clock.advance(61)
    with pytest.raises(CorruptionError):
        served.ask(c.SweepRooms())
    assert [bounds(served, room)[0] for room in ("a", "z")] == [1, 1]
    assert served.users("hall") == {"ann": 1}
    with pytest.raises(CorruptionError):
        Probe(served.ms).upkeep()
    Probe(served.ms).upkeep()
    assert served.users("hall") == {}


def test_a_damaged_log_does_not_keep_rooms_from_being_looked_after(served: Served) -> None:
    at = "one", served.take("one")
    log = served.ms.log("orders")
    log.append_many([b"x", b"y"])
    log.retain(age=1)
    served.join("hall", "ann", at)
    served.ms.fold()
    (entry, *_) = Probe(served.ms).rows(keys.ENTRY)
    Probe(served.ms).damage(entry)
    for _ in range(2):
        served.clock.advance(40)
        with pytest.raises(CorruptionError):
            Probe(served.ms).upkeep()
    assert served.users("hall") == {}
