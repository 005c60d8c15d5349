"""The donor of a repair: a sound copy of a store, from which damaged rows and pages are taken.

    a folder or bucket with a backup    the newest commit of the backup, built in a temporary folder
    a server                            a snapshot of its store, downloaded to a temporary folder
    another file or bucket              the store in it, which is only read

The donor must be the same store: a backup, a copy by `millstream copy`, a node of the same cluster, or the
store that a backup was restored to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.backup.place import MARK, BackupPlace
from millstream.backup.restore import build, check_built, choose_readable
from millstream.backup.source import store_id
from millstream.engine.open import open_engine
from millstream.engine.place import is_address, is_bucket
from millstream.engine.protocol import Snapshot
from millstream.engine.row_copy import Heard
from millstream.engine.sqlite.file import PAGE_BYTES
from millstream.errors import CannotOpen
from millstream.remote.backup import ServerStore, download_file


@dataclass(frozen=True, slots=True)
class Donor:
    """A sound copy of a store."""

    text: str
    """The place, for messages."""
    store: str
    """The id of the store."""
    seq: int
    """The newest commit."""
    snapshot: Snapshot
    file: Path | None
    """The file with the same pages as the store's; None if the donor has no such file."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row; raise `CorruptionError` if it is damaged here too."""
        return self.snapshot.get(key)

    def page(self, number: int) -> bytes | None:
        """Return a page of the file, counted from 1; None without it."""
        if self.file is None:
            return None
        with self.file.open("rb") as file:
            file.seek((number - 1) * PAGE_BYTES)
            page = file.read(PAGE_BYTES)
        return page if len(page) == PAGE_BYTES else None


@contextmanager
def open_donor(
    place: str,
    *,
    folder: Path,
    token: str | None = None,
    ca: str | None = None,
    heard: Heard | None = None,
) -> Iterator[Donor]:
    """Open the donor at a place; temporary files lie in a folder."""
    hear = heard or (lambda _stage, _done, _total: None)
    text = place.rpartition("@")[2]
    if not is_address(place) and not _is_backup(place):
        if not is_bucket(place) and not Path(place).exists():
            raise CannotOpen(f"there is no backup and no store at {text}", path=text)
        with _opened(place, text, file=None) as donor:
            yield donor
        return
    with tempfile.TemporaryDirectory(prefix=".millstream-donor-", dir=folder) as name:
        path = Path(name, "store.db")
        path.touch(0o600)
        if is_address(place):
            download_file(ServerStore(place, token=token, ca=ca), path, heard=hear)
        else:
            source = BackupPlace(place)
            plan = choose_readable(source)  # an older point has sound rows, too
            build(source, plan, path, hear)
            check_built(path, plan, source.text)
        with _opened(str(path), text, file=path) as donor:
            yield donor


def _is_backup(place: str) -> bool:
    if is_bucket(place):
        return BackupPlace(place).objects.get(MARK) is not None
    return Path(place).is_dir()


@contextmanager
def _opened(place: str | os.PathLike[str], text: str, *, file: Path | None) -> Iterator[Donor]:
    engine = open_engine(place, mode="r", create=False)
    try:
        with engine.read() as snapshot:
            seq = snapshot.last_seq()
            if not seq:
                raise CannotOpen(f"there is no store at {text}", path=text)
            yield Donor(text, store_id(snapshot), seq, snapshot, file)
    finally:
        engine.close()
