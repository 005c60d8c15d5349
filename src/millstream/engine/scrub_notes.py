"""The notes of a scrub: how far it is and what it found, in a small file beside the store.

They are about the bytes on this disk, so they are no part of the store: a copy of the store begins with
notes of its own, and notes that are lost cost no more than a pass. The process that holds the file's
lock scrubs; the others read the notes. A process that dies lets go of the lock. The file is written
in place, because a new file would have another lock, and is not synced: half of one is ignored.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from millstream.engine.protocol import Unsound

SUFFIX = "-scrub"
"""Behind the name of a store's file: the file of its notes."""

FINDINGS_MAX = 100
"""Findings that are kept; further ones are counted."""

NOTES_BYTES_MAX = 1024 * 1024


class HeldFinding(Struct):
    """A finding, and the number of the pass that met it last."""

    found: Unsound
    pass_number: int


class Notes(Struct, kw_only=True):
    """How far a scrub is, and what it has found."""

    whose: str = ""
    """The store and the file that were read: the notes of another one are ignored."""
    stage: str = ""
    """What the running pass reads; empty between two passes."""
    at: str = ""
    pass_number: int = 0
    fraction: float = 0.0
    """How much of the stage lies behind."""
    rows: int = 0
    """Rows that the running pass has read, or the last one."""
    stage_bytes: dict[str, int] = {}
    """What the running pass has read of each stage."""
    last_bytes: dict[str, int] = {}
    """The same of the last complete pass: how much of a pass each stage is."""
    completed_ms: int = 0
    """When the last complete pass ended, by the wall clock; 0: there was none."""
    findings: list[HeldFinding] = []
    left_off: int = 0
    """How many findings of this pass are not listed."""

    @property
    def is_running(self) -> bool:
        """Whether a pass has begun and not ended."""
        return bool(self.stage)

    def progress(self, stages: tuple[str, ...]) -> float:
        """How much of the running pass lies behind, from 0 to 1; 1 between two passes."""
        if not self.stage or self.stage not in stages:
            return 1.0 if self.completed_ms else 0.0
        weights = [self.last_bytes.get(name, 0) + 1 for name in stages]
        at = stages.index(self.stage)
        return (sum(weights[:at]) + self.fraction * weights[at]) / sum(weights)


class NotesFile:
    """The file of the notes, and its lock."""

    def __init__(self, store_file: Path | None) -> None:
        """The notes lie beside the store's file; without one nothing is written down."""
        self._like = store_file
        self._path = None if store_file is None else Path(f"{store_file}{SUFFIX}")
        self._descriptor: int | None = None
        self.is_held = False

    def take(self) -> bool:
        """Hold the lock, and make the file if need be; False while another process holds it.

        Where no file can be made, this process scrubs and remembers nothing.
        """
        if self._path is None:
            self.is_held = True
            return True
        try:
            descriptor = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            self.is_held = True
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._like is not None:
                with suppress(OSError):  # the file may be another user's
                    os.fchmod(descriptor, os.stat(self._like).st_mode & 0o666)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor, self.is_held = descriptor, True
        return True

    def read(self) -> Notes | None:
        """What was written last, by any process; None if there is nothing that can be understood."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(NOTES_BYTES_MAX), type=Notes)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write(self, notes: Notes) -> None:
        """Write all of it; a disk that refuses costs the notes, not the scrub."""
        if self._descriptor is None:
            return
        data = msgspec.json.encode(notes)
        with suppress(OSError):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def release(self, *, in_child: bool = False) -> None:
        """Let another process scrub; a forked child only lets go of what it inherited."""
        if self._descriptor is not None:
            if not in_child:
                with suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
        self._descriptor, self.is_held = None, False
