"""A store in a file for tests of the scrub: on a simulated clock, with pages that can be damaged by hand.

Its pages have no checksums, so that damage is for the scrub to find and not for SQLite's layer below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_over
from millstream.engine.scrub import FIRST_S, TURN_S, Scrub
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.file import PAGE_BYTES
from millstream.engine.sqlite.options import SqliteOptions
from millstream.testing import Probe, SimulatedClock

LEAVES = {0x0A, 0x0D}
INTERIORS = {0x02, 0x05}


class Scrubbed:
    """A store whose background rests: turns of its scrub are taken by the test."""

    def __init__(self, path: Path, clock: SimulatedClock | None = None, **options: float) -> None:
        self.path, self.clock = path, clock or SimulatedClock()
        self._options = SqliteOptions(**options)  # type: ignore[arg-type]
        self.open()

    def open(self) -> None:
        """Open the store, again after `close`."""
        self.ms = Millstream(EmbeddedSession(open_over(self._engine, clock=self.clock)))
        self.probe = Probe(self.ms)
        self.probe.pause_keeper()

    def _engine(self) -> SqliteEngine:
        return SqliteEngine(self.path, vfs="unix", clock=self.clock, options=self._options)

    @property
    def scrub(self) -> Scrub:
        return self.probe.store.scrub

    def close(self) -> None:
        self.ms.close()

    def fold(self) -> None:
        """Bring every row home but those of the newest commit."""
        self.ms.log("something else").append(b"")
        self.ms.fold()

    def minutes(self, count: float = 1) -> None:
        """Let time pass, and the scrub take its turn every second."""
        for _ in range(round(count * 60 / TURN_S)):
            self.clock.advance(TURN_S)
            self.scrub.turn()

    def first_minute(self) -> None:
        """Let the time pass in which a handle does not scrub."""
        self.clock.advance(FIRST_S)

    def findings(self) -> list[str]:
        found: list[str] = self.ms.stats()["scrub_findings"]
        return found


def root_page(path: Path, name: str) -> int:
    """The root page of a table or index, by its name."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        ((found,),) = connection.execute(query, (name,)).fetchall()
        return int(found)
    finally:
        connection.close()


def pages_of(data: bytes, page: int) -> Iterator[tuple[int, int]]:
    """The number and type of each page of a tree, its root first, from left to right."""
    start = (page - 1) * PAGE_BYTES
    kind = data[start]
    yield page, kind
    if kind in INTERIORS:
        count = int.from_bytes(data[start + 3 : start + 5], "big")
        for cell in range(count):
            at = start + 12 + 2 * cell
            child = start + int.from_bytes(data[at : at + 2], "big")
            yield from pages_of(data, int.from_bytes(data[child : child + 4], "big"))
        yield from pages_of(data, int.from_bytes(data[start + 8 : start + 12], "big"))


def cut_cells(path: Path, name: str, *, kinds: set[int], keep: float, which: int = 0) -> bytes:
    """Let a page of a tree forget its last cells, as a damaged count does; answers the file as it was."""
    before = path.read_bytes()
    pages = [page for page, kind in pages_of(before, root_page(path, name)) if kind in kinds]
    at = (pages[which] - 1) * PAGE_BYTES + 3
    count = int.from_bytes(before[at : at + 2], "big")
    kept = int(count * keep).to_bytes(2, "big")
    path.write_bytes(before[:at] + kept + before[at + 2 :])
    return before
