"""Rooms against a model in plain Python: messages, retained values, gaps, and who is there.

Two handles on one file send, delete, specify, sweep, fold and open again; instances come, die, are
started again and lose their leases; users join, reload and leave. Promises:

- What a room retains is the last message of each retained type and key, and its offset is the end of
  the log in the same moment: a joiner that goes on from there misses nothing and gets nothing twice.
- A listener that resumes at any offset gets what is still there, in order, and what is not as one gap.
- A user is told to have joined and left in turn: never twice the same. A reload within 5 s is silent.
- The last word about a user is right as soon as everything is settled: no ghost, and none forgotten.
- Neither a fold nor a reopen changes anything that can be seen; counts agree with rows.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import millstream
from millstream import Limits, Millstream, RoomMessage
from millstream.doctor import examine
from millstream.errors import Fenced, InvalidInput
from millstream.rooms import commands as c
from millstream.rooms.model import Leaving, Watermark
from millstream.rooms.settings import RoomSettings
from millstream.testing import Probe, SimulatedClock

ROOMS = ("hall", "hall2")
TYPES = ("chat", "rect", "title")
HANDLES = st.integers(0, 1)
KEYS = st.sampled_from([None, "a", "b", "\x00\x01"])
DATA = st.integers(0, 9) | st.just("long" * 30)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(TYPES), KEYS, DATA, st.booleans()), min_size=1, max_size=4
).map(lambda found: [one if one[0] != "chat" else (*one[:3], False) for one in found])
RETAINED = st.sets(st.sampled_from(TYPES[1:]))
LIMITS = st.builds(
    Limits,
    inline_bytes_max=st.sampled_from([0, 40, 2_048]),
    fold_slice_deltas=st.sampled_from([1, 256]),
    fold_deltas_min=st.sampled_from([1, 5, 10_000]),
    tail_deltas_max=st.sampled_from([3, 10_000]),
    entities_cached_max=st.sampled_from([1, 10_000]),
)
TTL_S = 60


@dataclass
class ModelRoom:
    """A room as a list and a map."""

    sent: list[tuple[int, str, str | None, Any]] = field(default_factory=list)
    """Everything that was ever sent: when, type, key, data."""
    start: int = 0
    types: set[str] = field(default_factory=set)
    retained: dict[tuple[str, str | None], tuple[int, Any]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.sent)


class Machine(RuleBasedStateMachine):
    """Two handles on one file."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "model.db"
        self.clock = SimulatedClock()
        self.handles: list[Millstream] = []

    @initialize(limits=LIMITS)
    def open_both(self, limits: Limits) -> None:
        self.limits = limits
        self.handles = [self.open(), self.open()]

    def open(self) -> Millstream:
        ms = millstream.open(self.path, limits=self.limits, clock=self.clock, durability="relaxed")
        Probe(ms).pause_keeper()
        return ms

    @rule(handle=HANDLES)
    def open_again(self, handle: int) -> None:
        self.handles[handle].close()
        self.handles[handle] = self.open()

    @rule(handle=HANDLES)
    def fold(self, handle: int) -> None:
        self.handles[handle].fold()

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close()
        if self.handles:
            report = examine(self.path)
            assert report.healthy, report
        self.directory.cleanup()


class RoomMachine(Machine):
    """What is sent, kept, expired and heard."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, ModelRoom] = {}

    @initialize(limits=LIMITS)
    def open_both(self, limits: Limits) -> None:
        super().open_both(limits)
        self.specify(0, ROOMS[0], {*TYPES[1:]})

    @rule(handle=HANDLES, room=st.sampled_from(ROOMS), messages=MESSAGES)
    def send(self, handle: int, room: str, messages: list[Any]) -> None:
        model = self.model.get(room, ModelRoom())
        wanted = [
            RoomMessage(kind, json.dumps(data).encode(), key, deleted)
            for kind, key, data, deleted in messages
        ]
        command = c.SendToRoom(room, wanted, "ann", "somebody")
        if any(deleted and kind not in model.types for kind, _, _, deleted in messages):
            with pytest.raises(InvalidInput):
                self.handles[handle].session.execute(command)
            return
        first = self.handles[handle].session.execute(command)
        assert first == model.end
        self.model[room] = model
        for kind, key, data, deleted in messages:
            if deleted:
                model.retained.pop((kind, key), None)
            elif kind in model.types:
                model.retained[kind, key] = model.end, data
            shown = None if deleted else data
            model.sent.append((self.clock.wall_ms(), kind, key, shown))

    @rule(handle=HANDLES, room=st.sampled_from(ROOMS), types=RETAINED)
    def specify(self, handle: int, room: str, types: set[str]) -> None:
        self.handles[handle].room(room).specify(retained=sorted(types))
        model = self.model.setdefault(room, ModelRoom())
        model.types = types
        model.retained = {place: one for place, one in model.retained.items() if place[0] in types}

    @rule(handle=HANDLES, room=st.sampled_from(ROOMS))
    def delete_room(self, handle: int, room: str) -> None:
        found = self.model.pop(room, None)
        assert self.handles[handle].room(room).delete_room() is (found is not None)

    @rule(handle=HANDLES, seconds=st.sampled_from([0.001, 20, 59.999, 60]))
    def sweep(self, handle: int, seconds: float) -> None:
        self.clock.advance(seconds)
        self.handles[handle].session.execute(c.SweepRooms())
        oldest_ms = self.clock.wall_ms() - TTL_S * 1000
        for model in self.model.values():
            while model.start < model.end and model.sent[model.start][0] < oldest_ms:
                model.start += 1

    @rule(handle=HANDLES, room=st.sampled_from(ROOMS), offset=st.integers(0, 40))
    def resume(self, handle: int, room: str, offset: int) -> None:
        model = self.model.get(room, ModelRoom())
        offset = min(offset, model.end)
        told = list(self.handles[handle].room(room).listen(offset, timeout=0))
        if offset < model.start:
            gap = told.pop(0)
            assert (gap.gap, gap.next_offset) == ((offset, model.start), model.start)
        first = max(offset, model.start)
        found = [(one.offset, one.type, one.key, one.json()) for one in told]
        assert found == [(at, *one[1:]) for at, one in enumerate(model.sent[first:], start=first)]

    @rule(handle=HANDLES, room=st.sampled_from(ROOMS), messages=MESSAGES)
    def join_and_go_on(self, handle: int, room: str, messages: list[Any]) -> None:
        """A snapshot and what follows it give what a joiner that comes later finds."""
        ms = self.handles[handle]
        before = ms.room(room).retained()
        known = {(one.type, one.key): one.json() for one in before.values}
        kept = [one for one in messages if not one[3]]
        if kept:
            self.send(1 - handle, room, kept)
        types = self.model.get(room, ModelRoom()).types
        for event in ms.room(room).listen(before.offset, types=types, timeout=0):
            known[event.type, event.key] = event.json()
        after = ms.room(room).retained()
        assert known == {(one.type, one.key): one.json() for one in after.values}

    @invariant()
    def it_retains_what_the_model_does(self) -> None:
        for ms in self.handles:
            assert sorted(one.name for one in ms.rooms()) == sorted(self.model)
            for name, model in self.model.items():
                found = ms.room(name).retained()
                values = {(v.type, v.key): (v.offset, v.json()) for v in found.values}
                assert found.offset == model.end
                assert values == model.retained
                info = ms.room(name).info()
                assert info is not None
                assert info.retained == len(model.retained)
                assert (info.start_offset, info.end_offset) == (model.start, model.end)


LEASE_MS, GRACE_MS = 30_000, 5_000
USERS = st.sampled_from(["ann", "ann", "bob"])
INSTANCES = st.sampled_from(["one", "two"])
PLACES = st.tuples(st.sampled_from(ROOMS), USERS, INSTANCES, st.sampled_from("12"))


@dataclass
class ModelInstance:
    """One life of an instance."""

    generation: int
    until_ms: int
    ended_ms: int | None = None

    def end_ms(self, now_ms: int) -> int | None:
        """When it ended, if it has."""
        if self.ended_ms is not None:
            return self.ended_ms
        return self.until_ms if self.until_ms <= now_ms else None


@dataclass
class ModelConnection:
    """One connection, and who kept it up."""

    life: ModelInstance
    left_ms: int | None = None

    def gone_ms(self, now_ms: int) -> int | None:
        """When it ended, by its own doing or with its instance."""
        ended_ms = self.life.end_ms(now_ms)
        found = [one for one in (self.left_ms, ended_ms) if one is not None]
        return min(found, default=None)


class PresenceMachine(Machine):
    """Instances and users; the model keeps what should be true, the log what was told."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: dict[str, ModelInstance] = {}
        self.rows: dict[tuple[str, str, str, str], ModelConnection] = {}
        """By room, user, instance and connection."""
        self.now_ms = 0

    @initialize(limits=LIMITS)
    def open_both(self, limits: Limits) -> None:
        """The whole history is looked at, so rooms forget nothing here."""
        super().open_both(limits)
        for room in ROOMS:
            self.ask(0, c.SpecifyRoom(room, RoomSettings(ttl=0.0)))

    def ask(self, handle: int, command: Any) -> Any:
        return self.handles[handle].session.execute(command)

    @rule(milliseconds=st.sampled_from([1, 1_000, 4_999, 5_000, 10_000, 30_000]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)
        self.now_ms += milliseconds

    @rule(handle=HANDLES, name=INSTANCES)
    def start(self, handle: int, name: str) -> None:
        """A process begins, or is started again after it was killed: the name's holder is dead."""
        before = self.lives.get(name)
        taken = self.ask(handle, c.TakeInstance(name, "a holder that nobody finds alive"))
        if before is not None:
            assert taken.generation > before.generation
            before.ended_ms = min(self.now_ms, before.until_ms)
        self.lives[name] = ModelInstance(taken.generation, self.now_ms + LEASE_MS)

    def living(self, name: str) -> ModelInstance | None:
        life = self.lives.get(name)
        return life if life is not None and life.end_ms(self.now_ms) is None else None

    @rule(handle=HANDLES, name=INSTANCES)
    def renew(self, handle: int, name: str) -> None:
        life = self.living(name)
        if life is None:
            generation = self.lives[name].generation if name in self.lives else 1
            with pytest.raises(Fenced):
                self.ask(handle, c.RenewInstance(name, generation))
            return
        self.ask(handle, c.RenewInstance(name, life.generation))
        life.until_ms = self.now_ms + LEASE_MS

    @rule(handle=HANDLES, name=INSTANCES)
    def free(self, handle: int, name: str) -> None:
        life = self.lives.get(name)
        if life is not None:
            self.ask(handle, c.FreeInstance(name, life.generation))
            if self.living(name) is not None:
                life.until_ms = self.now_ms

    @rule(handle=HANDLES, place=PLACES)
    def join(self, handle: int, place: tuple[str, str, str, str]) -> None:
        room, user, name, connection = place
        life = self.living(name)
        if life is None:
            self.start(handle, name)
            life = self.lives[name]
        self.ask(handle, c.JoinRoom(room, name, life.generation, connection, "c", user))
        self.rows[place] = ModelConnection(life)

    @rule(handle=HANDLES, index=st.integers(0, 7))
    def leave(self, handle: int, index: int) -> None:
        """A connection ends, or its end is told once more; also by an instance that is dead."""
        if self.rows:
            self.leave_from(handle, sorted(self.rows)[index % len(self.rows)])

    def leave_from(self, handle: int, place: tuple[str, str, str, str]) -> None:
        room, user, name, connection = place
        row = self.rows[place]
        left = [Leaving(room, user, connection)]
        self.ask(handle, c.LeaveRooms(name, row.life.generation, left))
        row.left_ms = self.now_ms if row.left_ms is None else row.left_ms

    @rule(
        handle=HANDLES,
        place=PLACES,
        leaves=st.booleans(),
        milliseconds=st.sampled_from([1, 4_999, 5_000, 36_000]),
    )
    def visit(
        self, handle: int, place: tuple[str, str, str, str], leaves: bool, milliseconds: int
    ) -> None:
        """A connection comes, perhaps goes, time passes, and what is due is settled."""
        self.join(handle, place)
        if leaves:
            self.leave_from(handle, place)
        self.wait(milliseconds)
        self.settle(1 - handle)

    @rule(handle=HANDLES, name=INSTANCES, room=st.sampled_from(ROOMS), offset=st.integers(0, 20))
    def note(self, handle: int, name: str, room: str, offset: int) -> None:
        life = self.living(name)
        if life is not None:
            mark = [Watermark(room, offset)]
            self.ask(handle, c.NoteWatermarks(name, life.generation, mark))

    @rule(handle=HANDLES)
    def settle(self, handle: int) -> None:
        """Afterwards exactly those are there who have a connection, or had one just now."""
        Probe(self.handles[handle]).upkeep()
        for place, row in list(self.rows.items()):
            gone_ms = row.gone_ms(self.now_ms)
            if gone_ms is not None and gone_ms + GRACE_MS <= self.now_ms:
                del self.rows[place]
        for room in ROOMS:
            expected = {user for in_room, user, _, _ in self.rows if in_room == room}
            found = self.ask(handle, c.GetPresence(room)).users
            assert {one.user for one in found} == expected
            assert told(self.handles[handle], room) == expected
            alive = [
                1
                for (in_room, *_), row in self.rows.items()
                if in_room == room and row.gone_ms(self.now_ms) is None
            ]
            assert sum(one.connections for one in found) == len(alive)
            info = self.handles[handle].room(room).info()
            if info is not None:
                assert (info.users, info.connections) == (len(expected), len(alive))

    @invariant()
    def nobody_who_is_there_is_missing(self) -> None:
        """Also between settlements: every user with a connection that lives is told to be there."""
        for ms in self.handles:
            for room in ROOMS:
                there = told(ms, room)
                for (in_room, user, _, _), row in self.rows.items():
                    if in_room == room and row.gone_ms(self.now_ms) is None:
                        assert user in there


def told(ms: Millstream, room: str) -> set[str]:
    """Who is there, by what the room was told; nobody comes twice, or goes without having come."""
    there: set[str] = set()
    for record in ms.log(f"room:{room}").read():
        user = record.json()["user"]
        if record.headers["type"] == "joined":
            assert user not in there
            there.add(user)
        else:
            assert record.headers["type"] == "left"
            there.remove(user)
    return there


SETTINGS = hypothesis.settings(
    stateful_step_count=40,
    max_examples=min(500, hypothesis.settings().max_examples // 2),
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)

TestRoomModel = RoomMachine.TestCase
TestRoomModel.settings = SETTINGS
TestPresenceModel = PresenceMachine.TestCase
TestPresenceModel.settings = SETTINGS
