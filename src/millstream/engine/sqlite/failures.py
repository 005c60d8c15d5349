"""Errors of SQLite as errors of Millstream, by the kind of call that met them."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from millstream.engine.disk import full
from millstream.engine.sqlite.file import explained, is_damage
from millstream.engine.sqlite.lock import still_locked
from millstream.errors import MillstreamError, OutcomeUnknown, Overloaded, WriteFailed


def failed_use(error: apsw.Error, path: Path) -> MillstreamError:
    """Return the error for a read, or for any other use of a file."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Overloaded(f"{path} is busy: {error}", path=str(path))
    return explained(error, path)


def failed_begin(error: apsw.Error, path: Path, waited_ms: int) -> MillstreamError:
    """Return the error for a write transaction that could not begin."""
    if isinstance(error, apsw.BusyError):
        return still_locked(path, waited_ms)
    if isinstance(error, apsw.FullError):
        return full(os.path.dirname(os.path.realpath(path)), str(error))
    failed = isinstance(error, apsw.IOError | apsw.ReadOnlyError)
    if failed and not is_damage(error):
        return WriteFailed(f"{path}: {error}", path=str(path))
    return failed_use(error, path)


def failed_task(task: str, error: apsw.Error, path: Path) -> MillstreamError:
    """Return the error for a background task, such as a checkpoint, that could not write."""
    if is_damage(error):
        return explained(error, path)
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC:
        return OutcomeUnknown(f"{path}: {task}: {error}")
    return WriteFailed(f"{path}: {task}: {error}", path=str(path))
