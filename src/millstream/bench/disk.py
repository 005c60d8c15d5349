"""The disk: a raw file as the limit of what is durable, and an engine on a disk that is slower.

Syncs on the machines where this is developed are unusually cheap; real disks take milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any, cast

from millstream.engine.commit import Commit
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine, Writer
from millstream.format.block import checksum

OnCommit = Callable[[Commit], None]


def open_slow_engine(path: str | os.PathLike[str], *, sync_delay_s: float) -> Engine:
    """Open the engine of a file; every commit takes `sync_delay_s` longer."""
    engine = open_engine(path)
    return recorded(engine, lambda _: sleep(sync_delay_s)) if sync_delay_s else engine


class RawFile:
    """Frames of length, checksum and bytes, each synced: nothing durable can be faster."""

    def __init__(self, directory: Path, *, sync_delay_s: float = 0.0) -> None:
        self._path = directory / "raw.bin"
        self._delay_s = sync_delay_s
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND
        self._file = os.open(self._path, flags, 0o644)
        self._size = 0

    def append(self, data: bytes) -> None:
        """Write one frame and return when it is on disk."""
        frame = len(data).to_bytes(4, "little") + checksum(data).to_bytes(4, "little") + data
        os.write(self._file, frame)
        os.fdatasync(self._file)
        if self._delay_s:
            sleep(self._delay_s)
        self._size += len(frame)
        if self._size > 2**30:
            os.ftruncate(self._file, 0)
            self._size = 0

    def close(self) -> None:
        """Remove the file."""
        os.close(self._file)
        self._path.unlink()


def recorded(engine: Engine, on_commit: OnCommit) -> Engine:
    """Return an engine that calls a function with every durable commit and fold, in order.

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
