"""A point: the description of a store's file at one commit, from which the file is built again.

    points/TIME-SEQ.json    the hash of the following text, a line break, then JSON

The point is written last: a run that was killed before leaves chunks that the next run finds, and no
point.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from millstream.backup.chunks import CHUNK_BYTES, digest, fits
from millstream.errors import CannotOpen, CorruptionError
from millstream.format.version import FORMAT

FOLDER = "points"
NAME = re.compile(rf"{FOLDER}/[0-9]+-[0-9]+\.json")
"""Other files in the folder are of foreign programs, such as a file manager."""

VERSION = 2
"""Version 1 had the hash BLAKE2b. Points of version 1 can still be restored."""


class BackupPoint(Struct, frozen=True, kw_only=True):
    """A store's file as of one commit."""

    version: int = VERSION
    store: str
    """The id of the store."""
    seq: int
    """The sequence of the newest commit."""
    committed_ms: int
    """Wall time of the newest commit, in milliseconds since the epoch."""
    taken_ms: int
    """Wall time of the backup."""
    number: int = 0
    """Points are numbered as they are added. Neither `seq` nor a time gives this order: a restored store
    continues from an earlier commit, and a clock may be set back."""
    checked_ms: int
    """Wall time of the last backup that compared the checksums of all rows."""
    format: int = FORMAT
    page_bytes: int
    pages: int
    has_checksums: bool
    """True if the last bytes of each page are its checksum."""
    chunk_bytes: int = CHUNK_BYTES
    lists: list[str]
    """The names of the lists of chunks."""
    wal_header: str = ""
    """The header of the write-ahead log, in hexadecimal digits: the chain of the point begins there."""
    wal_frames: int = 0
    """Frames of the write-ahead log that the point has."""
    wal_checksum: str = ""
    """The checksum of the last frame, in hexadecimal digits."""

    @property
    def file_bytes(self) -> int:
        """The size of the store's file."""
        return self.page_bytes * self.pages

    @property
    def name(self) -> str:
        """The name of the point's object; names sort by time."""
        return f"{FOLDER}/{self.taken_ms:015d}-{self.seq:012d}.json"


def encode(point: BackupPoint) -> bytes:
    """Encode a point with the hash of its text."""
    text = msgspec.json.encode(point)
    return digest(text).hex().encode() + b"\n" + text


def decode(data: bytes, where: str) -> BackupPoint:
    """Decode a point. Raises `CorruptionError` for damage, and `CannotOpen` for a newer version."""
    stored, _, text = data.partition(b"\n")
    if not fits(text, stored.decode("ascii", "replace")):
        raise CorruptionError(
            f"{where} is not as it was written; this point cannot be restored",
            what="point",
            where=where,
        )
    version = msgspec.json.decode(text).get("version", 0)
    if version > VERSION:
        raise CannotOpen(
            f"{where} was written by a newer Millstream (version {version} of the backup format, this "
            f"one reads up to {VERSION}): install a newer version",
            path=where,
        )
    return msgspec.json.decode(text, type=BackupPoint)
