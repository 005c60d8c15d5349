"""A backup as one stream of bytes: a point with all of its chunks, for a pipe.

a line of text, a line of JSON (the point), then for each chunk its size in 4 bytes, its hash, and the
chunk; at the end a size of 0, and the hash of all hashes
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from millstream.backup.chunks import CHUNK_BYTES, digest, fits
from millstream.backup.point import VERSION, BackupPoint
from millstream.backup.source import PointSource
from millstream.engine.row_copy import Heard
from millstream.errors import CannotOpen, CorruptionError

FIRST_LINE = b"millstream-backup-stream\n"
_LINE_BYTES_MAX = 64 * 1024
_HASH_BYTES = 32


def write_stream(
    source: PointSource, output: BinaryIO, *, now_ms: int, heard: Heard
) -> BackupPoint:
    """Write a complete point with the chunks of the file; the store is checked before."""
    with source.capture((), checks_rows=True, heard=heard) as (captured, pieces):
        point = replace(captured, taken_ms=now_ms, checked_ms=now_ms, wal_header="", wal_frames=0)
        output.write(FIRST_LINE + msgspec.json.encode(point) + b"\n")
        hashes = []
        for number, data in enumerate(pieces):
            assert isinstance(data, bytes)  # no chunk is known
            hashes.append(digest(data))
            output.write(len(data).to_bytes(4, "big") + hashes[-1] + data)
            heard("writing", number * CHUNK_BYTES, point.file_bytes)
        output.write(bytes(4) + digest(b"".join(hashes)))
        output.flush()
    return point


def read_point(stream: BinaryIO) -> BackupPoint:
    """Read the beginning of a stream."""
    if stream.read(len(FIRST_LINE)) != FIRST_LINE:
        raise CannotOpen("standard input is no backup of `millstream backup STORE -`", path="-")
    line = stream.readline(_LINE_BYTES_MAX)
    try:
        version = msgspec.json.decode(line)["version"]
        if version > VERSION:
            raise CannotOpen(
                f"standard input is a backup of version {version}, and this Millstream reads up to "
                f"{VERSION}: install a newer version",
                path="-",
            )
        return msgspec.json.decode(line, type=BackupPoint)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise _damage() from error


def read_file(stream: BinaryIO, point: BackupPoint, path: Path, heard: Heard) -> None:
    """Write the file of a stream, and sync it; every chunk is compared with its hash."""
    hashes = []
    with path.open("wb") as file:
        while size := int.from_bytes(_read(stream, 4), "big"):
            if size > point.chunk_bytes:
                raise _damage()
            expected = _read(stream, _HASH_BYTES)
            data = _read(stream, size)
            if not fits(data, expected.hex()):
                raise _damage()
            hashes.append(expected)
            file.write(data)
            heard("restoring", file.tell(), point.file_bytes)
        is_complete = fits(b"".join(hashes), _read(stream, _HASH_BYTES).hex())
        if not is_complete or file.tell() != point.file_bytes:
            raise _damage()
        file.flush()
        os.fsync(file.fileno())


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise _damage()
    return data


def _damage() -> CorruptionError:
    return CorruptionError(
        "standard input is cut or not as it was written; nothing was restored",
        what="stream",
        where="-",
    )
