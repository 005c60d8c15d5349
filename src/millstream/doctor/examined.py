"""The rows of an examined store, under one interface for all engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from millstream.engine.protocol import Snapshot

Progress = Callable[[str, int, int], None]
"""Told the stage, the rows checked so far, and how many there are."""


class Found(NamedTuple):
    """A row with either a value or a problem."""

    key: bytes
    value: bytes
    problem: str = ""


class ExaminedRows(Snapshot, Protocol):
    """One snapshot of a store; damaged rows are handed out with what is wrong with them."""

    format: int
    page_checksums: bool
    backend: str
    """What keeps the rows, in words: SQLite, SlateDB."""

    def close(self) -> None:
        """Let go of the store, as it was."""

    def enter(self, stage: str) -> None:
        """Say what is looked at from now on."""

    def integrity(self) -> list[str]:
        """Return the problems that the backend's own check finds."""

    def count(self) -> dict[str, int]:
        """Return the number of rows per kind, without kinds that cannot be counted."""

    def payload(self, key: bytes) -> bytes | None:
        """As `get`, and counted as checked."""

    def walk(self, start: bytes, stop: bytes) -> Iterator[Found]:
        """Every row of the records with start <= key < stop, in order; no payloads, no deltas."""

    def walk_deltas(self) -> Iterator[Found]:
        """Every delta, in order."""

    def numbers(self, kind: int) -> Iterator[tuple[int, int]]:
        """The number and size of every payload or payload block; values are not looked at."""
