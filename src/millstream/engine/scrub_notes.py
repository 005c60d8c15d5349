"""The notes of a scrub: its position and its findings, in a small file beside the store.

The notes describe the bytes on this disk, so they are not stored in the store: a copy of the store
starts with new notes, and lost notes cost one pass. The process with the lock on the file scrubs; other
processes read the notes. The lock ends with its process. The file is written in place, because a new
file would have a new lock. It is not synced: a torn file is ignored.
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
"""Suffix of the name of the notes, behind the name of the store's file."""

FINDINGS_MAX = 100
"""Maximum of listed findings; further findings are only counted."""

NOTES_BYTES_MAX = 1024 * 1024


class HeldFinding(Struct):
    """A finding, and the number of the pass that met it last."""

    found: Unsound
    pass_number: int


class Notes(Struct, kw_only=True):
    """The position of a scrub, and its findings."""

    whose: str = ""
    """The store and the file of these notes: notes of another file are ignored."""
    stage: str = ""
    """The stage of the running pass; empty between two passes."""
    at: str = ""
    pass_number: int = 0
    fraction: float = 0.0
    """The share of the stage that is read."""
    rows: int = 0
    """Rows that the running or the last pass has read."""
    stage_bytes: dict[str, int] = {}
    """Bytes that the running pass has read, by stage."""
    last_bytes: dict[str, int] = {}
    """Bytes of the last complete pass, by stage: the weights of the stages in `progress`."""
    completed_ms: int = 0
    """Wall time at the end of the last complete pass; 0 before the first."""
    findings: list[HeldFinding] = []
    left_off: int = 0
    """Number of findings of this pass that are not listed."""

    @property
    def is_running(self) -> bool:
        """True during a pass."""
        return bool(self.stage)

    def progress(self, stages: tuple[str, ...]) -> float:
        """Return the share of the running pass that is done, from 0 to 1; 1 between two passes."""
        if not self.stage or self.stage not in stages:
            return 1.0 if self.completed_ms else 0.0
        weights = [self.last_bytes.get(name, 0) + 1 for name in stages]
        at = stages.index(self.stage)
        return (sum(weights[:at]) + self.fraction * weights[at]) / sum(weights)


class NotesFile:
    """The file of the notes, and its lock."""

    def __init__(self, store_file: Path | None) -> None:
        """Place the notes beside the store's file; without a file, no notes are written."""
        self._like = store_file
        self._path = None if store_file is None else Path(f"{store_file}{SUFFIX}")
        self._descriptor: int | None = None
        self.is_held = False

    def take(self) -> bool:
        """Take the lock, and create the file if needed; False while another process has the lock.

        Where no file can be created, this process scrubs without notes.
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
                with suppress(OSError):  # the file may belong to another user
                    os.fchmod(descriptor, os.stat(self._like).st_mode & 0o666)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor, self.is_held = descriptor, True
        return True

    def read(self) -> Notes | None:
        """Read the last notes of any process; None without readable notes."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(NOTES_BYTES_MAX), type=Notes)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write(self, notes: Notes) -> None:
        """Write the notes; a failing disk costs the notes, not the scrub."""
        if self._descriptor is None:
            return
        data = msgspec.json.encode(notes)
        with suppress(OSError):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def release(self, *, in_child: bool = False) -> None:
        """Release the lock for another process; a forked child only closes its descriptor."""
        if self._descriptor is not None:
            if not in_child:
                with suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
        self._descriptor, self.is_held = None, False
