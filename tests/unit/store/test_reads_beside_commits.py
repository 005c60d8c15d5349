"""Reads beside a commit in flight: none waits for it, and none sees it before it is durable.

A commit is paused on its way to the disk, and then every read that there is is asked on this
thread: one that waited for the commit would not return. What it answers is what a store answers
that is opened from what is durable just then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from millstream import Millstream
from millstream.command import Command, QuerySql, Read, Stats, Transact
from millstream.embedded.rules import COMMANDS
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.engine.memory.faults import Faults, Pause, Torn
from millstream.errors import OutcomeUnknown
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.rules.publishing import PublishParts
from millstream.queue import commands as q
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.sources import find_facts
from millstream.queue.service.router import PLACE_RECORDS
from millstream.replica.commands import SetAside
from millstream.replica.sync.follow import WaitForChange
from millstream.rooms.commands import DeleteRoom, SendToRoom
from millstream.rooms.model import RoomMessage
from millstream.testing import MemoryEngine, Probe, SimulatedClock
from tests.unit.samples import SINGLE, sample

PATIENCE_S = 60.0

READS = sorted(
    (kind for kind in COMMANDS if issubclass(kind, Read) and kind is not QuerySql),
    key=lambda kind: kind.__name__,
)
"""All but the one that needs an engine with SQL: it looks at a snapshot of the engine's own."""

DESTRUCTION: list[list[Any]] = [
    [c.DeleteLog("events"), c.Append("events", SINGLE)],
    [c.Truncate("events", 2), c.Append("events", SINGLE)],
    [q.DeleteQueue("jobs"), q.SpecifyQueue("jobs", QueueSpec())],
    [q.PurgeQueue("jobs", "available")],
    [c.DeleteCursor("events", "reader")],
    [SetAside("events", 1, 0), c.Append("events", SINGLE)],
    [DeleteRoom("canvas"), SendToRoom("canvas", [RoomMessage("draw", b"2")])],
]

FIELDS: dict[str, Any] = {
    "log": "events",
    "names": "events",
    "cursor": "reader",
    "queue": "jobs",
    "room": "canvas",
    "types": "shape",
    "state": "available",
    "book": "book",
    "name": "first",
    "dedup": "order 1",
    "known": 0,
    "start": 0,
    "stop": 2,
    "offset": 2,
    "offsets": 2,
    "after": "",
    "limit": 100,
    "count": 100,
    "bytes_max": 1 << 20,
    "pattern": "*",
    "claim_id": 0,
    "log_id": 0,
    "id": 0,
    "ids": 0,
    "seen": 0,
    "sequence": 1,
    "timeout_ms": 0,
    "time_ms": 0,
}
"""What a read is asked for, by the name of its field; a new field of this kind needs a line here."""


def question(kind: type[Command[Any]]) -> Command[Any]:
    """A read of what the tests below store."""

    def choose(type_: type, field: str) -> Any:
        if type_ is bool:
            return field != "compress"
        if type_ is bytes:
            return b""
        return -1 if field == "after" and type_ is int else FIELDS[field]

    found: Command[Any] = sample(kind, choose)
    return found


def open_over(engine: MemoryEngine, clock: SimulatedClock) -> EmbeddedSession:
    store = open_store(engine, clock=clock)
    Probe(store).pause_keeper()
    return EmbeddedSession(store)


class Held:
    """A store with a commit on its way to the disk, which changes everything that can be read."""

    def __init__(self, *, shared: bool = False, is_asked_before: bool = False) -> None:
        self.faults, self.clock = Faults(), SimulatedClock()
        self.engine = MemoryEngine(faults=self.faults, shared=shared)
        self.session = open_over(self.engine, self.clock)
        ms = Millstream(self.session)
        ms.log("events").append_many([b"a", b"b"])
        ms.log("events").cursor("reader").ack([0])
        ms.log("events").metadata["color"] = "blue"
        self.session.execute(PublishParts("book", 1_000, "first", "parts", [SINGLE], "d"))
        jobs = ms.queue("jobs", dedup_by="order", sources=["events", "more-*"])
        jobs.put_many([b"x", b"y"])
        canvas = ms.room("canvas")
        canvas.specify(retained=["shape"])
        canvas.send("shape", "blue", key="first")
        if is_asked_before:
            for kind in READS:
                self.session.execute(question(kind))

    def steps(self) -> list[Any]:
        return [
            c.Append("events", SINGLE),
            c.Append("more-1", SINGLE),
            c.Acknowledge("events", "reader", [(1, 2)]),
            c.SetMetadata("events", "color", "red"),
            q.PauseQueue("jobs", True),
            q.SpecifyQueue("others", QueueSpec()),
            PublishParts("book", 1_000, "second", "parts", [SINGLE], "e"),
            SendToRoom("canvas", [RoomMessage("shape", b'"red"', "first")]),
            SendToRoom("another", [RoomMessage("draw", b"1")]),
        ]

    @contextmanager
    def paused(self, steps: list[Any] | None = None) -> Iterator[None]:
        """A commit of these steps is on its way meanwhile, and durable afterwards."""
        errors: list[BaseException] = []
        with Pause() as pause:
            self.faults.on("sent", pause)
            command = Transact(self.steps() if steps is None else steps)
            caller = threading.Thread(target=self._run, args=(command, errors), daemon=True)
            caller.start()
            pause.wait_until_reached()
            yield
        caller.join(PATIENCE_S)
        assert not caller.is_alive()
        assert errors == []

    def _run(self, command: Command[Any], errors: list[BaseException]) -> None:
        try:
            self.session.execute(command)
        except BaseException as error:
            errors.append(error)

    def durable(self, kind: type[Command[Any]]) -> Any:
        """What a store answers that is opened from what is durable now."""
        other = open_over(self.engine.reopen(), self.clock)
        return shown(other.execute(question(kind)))

    def ask(self, kind: type[Command[Any]]) -> Any:
        return shown(self.session.execute(question(kind)))


def shown(answer: Any) -> Any:
    """An answer as far as two stores with the same rows give the same."""
    if isinstance(answer, dict) and "sequence" in answer:
        return answer["sequence"]
    return msgspec.to_builtins(answer)


@pytest.mark.parametrize("is_asked_before", [False, True])
@pytest.mark.parametrize("kind", READS)
def test_a_read_neither_waits_for_a_commit_in_flight_nor_sees_it(
    kind: type[Command[Any]], is_asked_before: bool
) -> None:
    held = Held(is_asked_before=is_asked_before)
    expected = held.durable(kind)
    with held.paused():
        assert held.ask(kind) == expected
        assert held.ask(kind) == expected, "and again, now that the versions have been asked for"
    if kind not in (Stats, WaitForChange):  # a read may have left a commit behind
        assert held.ask(kind) == held.durable(kind)


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("steps", DESTRUCTION, ids=lambda steps: type(steps[0]).__name__)
def test_what_a_commit_in_flight_deletes_is_still_read(
    kind: type[Command[Any]], steps: list[Any]
) -> None:
    held = Held()
    expected = held.durable(kind)
    with held.paused(steps):
        assert held.ask(kind) == expected


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("waits_too", [False, True])
def test_a_read_does_not_wait_for_another_process_whose_turn_it_is_to_write(
    kind: type[Command[Any]], waits_too: bool
) -> None:
    """Nor for a commit of its own process, which waits for that turn too."""
    held = Held(shared=True)
    beside = open_over(held.engine, held.clock)
    expected = held.durable(kind)
    waiting = threading.Thread(
        target=beside.execute, args=(c.Append("events", SINGLE),), daemon=True
    )
    with held.paused():
        if waits_too:
            waiting.start()
        assert shown(beside.execute(question(kind))) == expected
    if waits_too:
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()


def test_a_look_into_a_queue_far_behind_does_not_wait_for_another_process() -> None:
    """Messages of a queue with priorities are placed before they are looked at."""
    held = Held(shared=True)
    beside = Millstream(open_over(held.engine, held.clock))
    queue = beside.queue("ranked", sources="orders", start="earliest", priority_by="p")
    beside.log("orders").append_many([b"%d" % n for n in range(3 * PLACE_RECORDS)])
    with held.paused():
        (first,) = queue.peek(1)
    assert first.value == b"0"


@pytest.mark.parametrize("kind", READS)
def test_a_read_does_not_wait_for_a_fold(kind: type[Command[Any]]) -> None:
    held = Held()
    expected = held.durable(kind)
    with Pause() as pause:
        held.faults.on("sent", pause)
        folding = threading.Thread(target=held.session.store.fold, daemon=True)
        folding.start()
        pause.wait_until_reached()
        assert held.ask(kind) == expected
    folding.join(PATIENCE_S)
    assert held.session.store.stats()["unfolded_commits"] <= 2


def test_a_commit_that_fails_on_its_way_was_never_seen() -> None:
    held = Held()
    log = Millstream(held.session).log("events")
    errors: list[BaseException] = []
    with Pause() as pause:
        held.faults.on("sent", pause)
        held.faults.on("sent", Torn(kept=False))
        caller = threading.Thread(target=held._run, args=(c.Append("events", SINGLE), errors))
        caller.start()
        pause.wait_until_reached()
        assert log.end_offset() == 2
    caller.join(PATIENCE_S)
    assert [type(error) for error in errors] == [OutcomeUnknown]
    assert [record.value for record in log.read()] == [b"a", b"b"]
    assert log.append(b"c") == 2


def test_whichever_state_answers_a_reader_misses_nothing_that_it_has_seen() -> None:
    """Another process has committed, and what is committed here is in flight: nobody told readers."""
    held = Held(shared=True)
    beside = open_over(held.engine, held.clock)
    with held.paused():
        pass
    with Pause() as pause:
        held.faults.on("sent", pause)
        command = c.Append("events", SINGLE)
        caller = threading.Thread(target=beside.execute, args=(command,), daemon=True)
        caller.start()
        pause.wait_until_reached()
        log = Millstream(beside).log("events")
        info = log.info()
        assert info is not None
        assert (info.end_offset, log.end_offset(), len(list(log.read()))) == (3, 3, 3)
    caller.join(PATIENCE_S)
    assert log.end_offset() == 4


def test_what_was_looked_up_beside_a_commit_is_watched_after_it() -> None:
    """The state has found out which logs a queue's pattern matches: it goes on following them."""
    held = Held()
    ms, store = Millstream(held.session), held.session.store
    woken = threading.Event()
    with held.paused([c.Append("elsewhere", SINGLE)]):
        assert find_facts(store, "jobs") is not None
        store.watch.add(keys.queue("jobs"), woken.set)
    assert not woken.is_set()
    ms.log("more-7").append(b"x")
    assert woken.wait(PATIENCE_S)
