"""The application's own tables in a cluster: what `tx.sql` changed on the leader, applied elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from millstream.cluster.entry import TableChange
from millstream.errors import InvalidInput
from millstream.record import SqlResult
from millstream.store.engine import SqlWriter, Writer


class Recorder:
    """Notes what the statements of one transaction change."""

    def __init__(self, writer: SqlWriter) -> None:
        self._writer = writer

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Run a statement, and note what it changes."""
        raise InvalidInput("tx.sql does not run in a cluster yet")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Statements inside it are undone, and forgotten, if it is left by an exception."""
        with self._writer.savepoint():
            yield

    def finish(self) -> list[TableChange]:
        """What was changed, in order."""
        return []

    def close(self) -> None:
        """Let go; a second call does nothing."""


def apply(writer: Writer, tables: Sequence[TableChange]) -> None:
    """Do to the tables what the leader's transaction did."""
