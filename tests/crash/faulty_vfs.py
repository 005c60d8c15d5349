"""A disk that fails on demand: SQLite's own file layer, with faults in its writes and syncs.

A fault is armed with the kind of file, the call, and which of the calls to come it hits. From then on
every call of that kind fails until the disk is mended, as a dying or full disk does. A torn write
leaves its first bytes behind before it fails.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import apsw

_numbers = itertools.count()


@dataclass
class Fault:
    """What is to fail: the n-th `call` ("write", "sync" or "read") on a file whose name ends so."""

    call: str
    suffix: str
    n: int = 1
    error: type[apsw.Error] = apsw.IOError
    torn: bool = False
    """Whether the first half of the bytes is written before the failure."""
    once: bool = False
    seen: int = field(default=0, init=False)

    def hits(self, call: str, name: str) -> bool:
        """Count a call; whether it fails."""
        if call != self.call or not name.endswith(self.suffix):
            return False
        self.seen += 1
        return self.seen == self.n if self.once else self.seen >= self.n


class FaultyDisk(apsw.VFS):
    """The machine's file layer, under a name of its own, with at most one fault armed."""

    def __init__(self) -> None:
        self.name = f"faulty-{next(_numbers)}"
        self.writes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        super().__init__(self.name, base="")

    def arm(self, fault: Fault) -> Fault:
        """Have the fault happen from now on."""
        with self._lock:
            self._fault = fault
        return fault

    def mend(self) -> None:
        """Let every call succeed again."""
        with self._lock:
            self._fault = None

    def look(self, call: str, name: str) -> Fault | None:
        """The fault that hits this call, if one does."""
        with self._lock:
            self.writes[call] = self.writes.get(call, 0) + 1
            fault = self._fault
            return fault if fault is not None and fault.hits(call, name) else None

    def xOpen(self, name: Any, flags: Any) -> _FaultyFile:  # noqa: N802 - SQLite's name
        """Open a file that asks the disk before each call."""
        return _FaultyFile(self, name, flags)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: Any) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        fault = self._disk.look("write", self._name)
        if fault is not None:
            if fault.torn:
                super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise _failure(fault)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        fault = self._disk.look("sync", self._name)
        if fault is not None:
            raise _failure(fault)
        super().xSync(flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        fault = self._disk.look("read", self._name)
        if fault is not None:
            raise _failure(fault)
        return super().xRead(amount, offset)


def _failure(fault: Fault) -> apsw.Error:
    failure = fault.error("injected")
    if fault.error is apsw.IOError:
        code = {
            "write": apsw.SQLITE_IOERR_WRITE,
            "sync": apsw.SQLITE_IOERR_FSYNC,
            "read": apsw.SQLITE_IOERR_READ,
        }[fault.call]
        failure.extendedresult = code
    return failure


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    """A disk for one test."""
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.unregister()
