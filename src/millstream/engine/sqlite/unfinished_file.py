"""A file that is built beside its final name, and gets the name when it is complete.

A killed program leaves only the partial file, which the next run uses again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millstream.engine.sqlite.neighbour import own_descriptors
from millstream.errors import CannotOpen


@contextmanager
def partial_file(place: Path, suffix: str, *, shown: Path, work: str) -> Iterator[Path]:
    """Create an empty file beside `place` for this run; remove the file unless the caller renames it.

    A lock on the file tells a running program from a killed program, whose file is used again.
    `shown` and `work` are texts for the error: the target, and the kind of run.
    """
    partial = place.with_name(place.name + suffix)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o600)
    own_descriptors.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = _is_same(partial, descriptor)  # unless a run that ends now removes it
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise CannotOpen(
                f"another {work} to {shown} is running; wait for it, or name another file",
                path=str(shown),
                again=True,
            )
        _remove(partial, "-wal", "-shm", "-journal")
        os.ftruncate(descriptor, 0)
        try:
            yield partial
        finally:
            if _is_same(partial, descriptor):
                _remove(partial, "")
            _remove(partial, "-wal", "-shm", "-journal")
    finally:
        own_descriptors.discard(descriptor)
        os.close(descriptor)


def name_new_file(partial: Path, place: Path, *, shown: Path) -> None:
    """Give a complete file its final name, unless another program has created a file there."""
    with suppress(FileNotFoundError):
        if not place.stat().st_size:
            place.unlink()  # an empty file counts as no file
    try:
        os.link(partial, place)  # a rename would replace an existing file
    except FileExistsError as error:
        raise CannotOpen(
            f"{shown} was made by another program meanwhile, and was left as it is",
            path=str(shown),
        ) from error
    except OSError:  # this file system has no links
        os.rename(partial, place)


def has_log(place: Path) -> bool:
    """True if there is a write-ahead log beside a path."""
    log = Path(f"{place}-wal")
    return log.exists() and log.stat().st_size > 0


def _is_same(path: Path, descriptor: int) -> bool:
    """True if a path still names an open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _remove(path: Path, *endings: str) -> None:
    for ending in endings:
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{ending}")
