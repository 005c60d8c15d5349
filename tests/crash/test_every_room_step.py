"""Rooms that are stopped at every single step: what was answered is there, whole, and agrees.

Promised, wherever the stop comes: the messages, the retained values and who is there are as they
were after the last call that was answered, or after the one that was under way; never half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.embedded.session import EmbeddedSession, open_store
from millstream.limits import Limits
from millstream.rooms import commands as c
from millstream.rooms.model import Leaving
from millstream.testing import Crash, Faults, MemoryEngine, Probe, SimulatedClock
from millstream.threads.database import Millstream

pytestmark = pytest.mark.faults

LIMITS = Limits(inline_bytes_max=100, fold_slice_deltas=2, tail_deltas_max=4, entities_cached_max=2)
"""Small enough that some rows go straight to their tables, and that writers fold."""

Call = Callable[[Millstream, SimulatedClock], object]
State = tuple[Any, ...]


def ask(ms: Millstream, command: Any) -> Any:
    return ms.session.execute(command)


def generation(ms: Millstream) -> int:
    found: int = ask(ms, c.ListInstances())[0].generation
    return found


def join(user: str) -> Call:
    return lambda ms, _: ask(ms, c.JoinRoom("hall", "one", generation(ms), user, "c", user))


def settle(ms: Millstream, clock: SimulatedClock) -> None:
    clock.advance(6)
    ask(ms, c.SettlePresence())


def sweep(ms: Millstream, clock: SimulatedClock) -> None:
    clock.advance(61)
    ask(ms, c.SweepRooms())


CALLS: list[Call] = [
    lambda ms, _: ask(ms, c.TakeInstance("one", "a holder")),
    lambda ms, _: ms.room("hall").specify(retained=["rect", "title"]),
    lambda ms, _: ms.room("hall").send_many(
        [("rect", 1, "a"), ("chat", 2), ("rect", "x" * 200, "b")]
    ),
    join("ann"),
    join("bob"),
    lambda ms, _: ask(ms, c.SetPresence("hall", "ann", "ann", b'{"typing":true}')),
    lambda ms, _: ms.room("hall").send_many([("rect", "y" * 200, "a"), ("title", 3)]),
    lambda ms, _: ask(ms, c.LeaveRooms("one", generation(ms), [Leaving("hall", "bob", "bob")])),
    settle,
    lambda ms, _: ms.room("hall").delete("rect", "a"),
    lambda ms, _: ms.room("hall").specify(retained=["rect"]),
    lambda ms, _: ms.fold(),
    sweep,
    settle,
    lambda ms, _: ms.room("hall").delete_room(),
    lambda ms, _: ms.room("hall").send("chat", "again"),
]


def state_of(ms: Millstream) -> State:
    """Everything that can be seen of the rooms."""
    room = ms.room("hall")
    info = room.info()
    if info is None:
        return ()
    records = [(one.offset, one.headers["type"], one.value) for one in room.log.read()]
    kept = room.retained()
    values = [(one.type, one.key, one.offset, one.data) for one in kept.values]
    users = [(one.user, one.connections, one.state_json) for one in room.presence()]
    assert info.retained == len(values)
    assert info.users == len(users)
    assert info.connections == sum(count for _, count, _ in users)
    assert kept.offset == info.end_offset
    return info.settings, info.start_offset, info.end_offset, records, values, users


def opened(engine: MemoryEngine, clock: SimulatedClock) -> Millstream:
    store = open_store(engine, limits=LIMITS, clock=clock)
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def run(engine: MemoryEngine, clock: SimulatedClock) -> list[State]:
    """What can be seen before the first call, and after each that was answered."""
    seen: list[State] = []
    try:
        ms = opened(engine, clock)
        seen.append(())
        for call in CALLS:
            call(ms, clock)
            seen.append(state_of(ms))
    except Crash:
        pass
    return seen


def test_a_stop_at_any_step_leaves_what_was_before_or_after_a_call() -> None:
    faults = Faults()
    whole = run(MemoryEngine(faults=faults), SimulatedClock())
    assert len(whole) == len(CALLS) + 1
    commits = [
        index
        for index, step in enumerate(faults.steps)
        if step in ("begin", "put", "delete", "commit", "sent", "committed")
    ]
    assert len(commits) > 3 * len(CALLS)
    for index in commits:
        for kept in (False, True):
            again, clock = Faults(), SimulatedClock()
            again.at(index, Crash(kept=kept))
            engine = MemoryEngine(faults=again)
            seen = run(engine, clock)
            with opened(engine.reopen(), clock) as ms:
                done = max(0, len(seen) - 1)
                assert state_of(ms) in whole[done : done + 2], (index, kept)
