"""What cursors of threads and of coroutines do alike: each test runs on both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.errors import InvalidInput, InvalidName, Overloaded
from millstream.log import commands as c
from millstream.testing import memory_store
from tests.unit.surfaces import SURFACES, bare, surface_of


class Line:
    """A session that fails when a test says so, for threads."""

    def __init__(self, session: Any) -> None:
        self.session, self.limits, self.clock = session, session.limits, session.clock
        self.fails_on: type | None = None
        self.after = 0
        self.handle: Any = None
        self.unlocked: list[str] = []

    def execute(self, command: Any) -> Any:
        if self.handle is not None and not self.handle._lock.locked():
            self.unlocked.append(type(command).__name__)
        if isinstance(command, self.fails_on or ()):
            self.after -= 1
            if self.after < 0:
                raise Overloaded("busy")
        return self.session.execute(command)


@pytest.fixture(params=SURFACES)
def twins(request: pytest.FixtureRequest) -> Iterator[tuple[Line, Any]]:
    """The line to a store, and a log over it."""
    with memory_store() as ms, surface_of(request.param) as surface:
        ms.log("x").append_many([b"%d" % n for n in range(10)])
        line = Line(ms.session)
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
