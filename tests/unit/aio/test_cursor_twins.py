"""What cursors of threads and of coroutines do alike: each test runs on both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream import Log
from millstream.errors import Conflict, InvalidInput, InvalidName, Overloaded
from millstream.log import commands as c
from millstream.replica.commands import SetAside
from millstream.testing import memory_store
from tests.unit.surfaces import SURFACES, bare, surface_of


class Line:
    """A session that fails when a test says so, for threads."""

    def __init__(self, session: Any) -> None:
        self.session, self.limits, self.clock = session, session.limits, session.clock
        self.fails_on: type | None = None
        self.after = 0
        self.handle: Any = None
        self.surface: Any = None
        self.unlocked: list[str] = []
        self.meddle: Callable[[Any], Any] | None = None
        """Answers the next acknowledgement, and does something else beside it."""

    def execute(self, command: Any) -> Any:
        if self.handle is not None and not self.handle._lock.locked():
            self.unlocked.append(type(command).__name__)
        if isinstance(command, self.fails_on or ()):
            self.after -= 1
            if self.after < 0:
                raise Overloaded("busy")
        if isinstance(command, c.Acknowledge) and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            return meddle(command)
        return self.session.execute(command)


@pytest.fixture(params=SURFACES)
def twins(request: pytest.FixtureRequest) -> Iterator[tuple[Line, Any]]:
    """The line to a store, and a log over it."""
    with memory_store() as ms, surface_of(request.param) as surface:
        ms.log("x").append_many([b"%d" % n for n in range(10)])
        line = Line(ms.session)
        line.surface = surface
        yield line, surface.over(line).log("x")


@pytest.mark.parametrize("durable", [True, False])
def test_an_error_leaves_the_position_where_it_was(twins: Any, durable: bool) -> None:
    line, log = twins
    cursor = log.cursor("r", durable=durable)
    cursor.ack(5)
    line.fails_on, line.after = c.ReadBlocks, 1
    with pytest.raises(Overloaded):
        cursor.take(9)
    line.fails_on = None
    assert cursor.position() == 0
    assert [record.offset for record in cursor.take(9)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


@pytest.mark.parametrize("durable", [True, False])
def test_nobody_takes_while_a_cursor_is_moved(twins: Any, durable: bool) -> None:
    line, log = twins
    cursor = log.cursor("r", durable=durable)
    cursor.take(3)
    line.handle = bare(cursor)
    cursor.seek(5)
    cursor.reset()
    assert [record.offset for record in cursor.take(2)] == [5, 6]
    assert line.unlocked == []


@pytest.mark.parametrize("section", [0, -1, 2.5, "3"])
def test_a_section_is_checked_before_a_log_is_made(twins: Any, section: Any) -> None:
    line, log = twins
    line.fails_on = c.OpenCursor
    with pytest.raises(InvalidInput, match="section"):
        log.cursor("r", section=section)


def test_a_name_is_checked_before_it_is_asked_for(twins: Any) -> None:
    line, log = twins
    line.fails_on = c.DeleteCursor
    with pytest.raises(InvalidName):
        log.delete_cursor("")


def test_offsets_are_checked_alike(twins: Any) -> None:
    _, log = twins
    for durable in (True, False):
        cursor = log.cursor(f"r{durable}", durable=durable)
        for wrong in (-1, 1.5, "2"):
            with pytest.raises(InvalidInput):
                cursor.ack_up_to(wrong)
            with pytest.raises(InvalidInput):
                cursor.seek(wrong)


def test_what_is_acknowledged_while_a_cursor_goes_back_stays_so(twins: Any) -> None:
    line, log = twins
    cursor = log.cursor("r")
    cursor.take(3)

    def go_back_first(command: Any) -> Any:
        async def then(going_back: Any) -> Any:
            await going_back
            return line.session.execute(command)

        going_back = bare(cursor).reset()
        return (
            then(going_back) if inspect.isawaitable(going_back) else line.session.execute(command)
        )

    line.meddle = go_back_first
    cursor.ack(1)
    assert [record.offset for record in cursor.take(3)] == [0, 2, 3]


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("by_record", [False, True])
def test_a_transaction_acknowledges_nothing_that_was_set_aside(
    twins: Any, seen: bool, by_record: bool
) -> None:
    line, log = twins
    cursor = log.cursor("r")
    taken = cursor.take(5)[3]
    line.session.execute(SetAside("x", 2, 0))
    Log(line.session, "x").append_many([b"new"] * 3)
    if seen:
        cursor.take(1)  # so the cursor knows that the log's end went back
    tx = line.surface.over(line).transaction()
    with pytest.raises(Conflict, match="set aside"), tx:
        tx.ack(bare(cursor), [taken if by_record else taken.offset])
    assert not cursor.is_acked(3)


def test_a_transaction_acknowledges_what_may_be_iterated_once(twins: Any) -> None:
    line, log = twins
    cursor = log.cursor("r")
    with line.surface.over(line).transaction() as tx:
        floor = tx.ack(bare(cursor), iter(cursor.take(3)))
    assert (floor.result, cursor.floor(), cursor.take()[0].offset) == (3, 3, 3)


@pytest.mark.parametrize("look", ["reset", "take"])
def test_no_acknowledgement_of_before_counts_for_records_that_took_their_place(
    twins: Any, look: str
) -> None:
    line, log = twins
    cursor = log.cursor("r")
    cursor.take(5)

    def set_aside_afterwards(command: Any) -> Any:
        line.session.execute(command)
        line.session.execute(SetAside("x", 2, 0))
        Log(line.session, "x").append_many([b"new"] * 3)
        return getattr(bare(cursor), look)()

    line.meddle = set_aside_afterwards
    cursor.ack(3)
    assert not cursor.is_acked(3)
    found = [(record.offset, record.value) for record in cursor.take(9)]
    assert found[-2:] == [(3, b"new"), (4, b"new")]
