"""Recording: an engine that hands on everything that is committed, as values, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from millstream.engine.commit import Commit
from millstream.engine.protocol import Engine, Writer

OnCommit = Callable[[Commit], None]


def recorded(engine: Engine, on_commit: OnCommit) -> Engine:
    """An engine that calls a function with every durable commit and fold, in order.

    Each process on a file reports only its own commits. Changes of the application's tables are not
    reported.
    """
    return cast(Engine, _Recorded(engine, on_commit))


class _Around:
    """A wrapper that delegates missing attributes to the wrapped object."""

    def __init__(self, inner: Any, on_commit: OnCommit) -> None:
        self.__dict__.update(_inner=inner, _on_commit=on_commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


class _Recorded(_Around):
    @contextmanager
    def write(self, *, waits: bool = True) -> Iterator[Writer]:
        with self._inner.write(waits=waits) as writer:
            yield cast(Writer, _RecordedWriter(writer, self._on_commit))


class _RecordedWriter(_Around):
    def commit(self, commit: Commit) -> None:
        self._inner.commit(commit)
        self._on_commit(commit)
