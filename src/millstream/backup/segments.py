"""Segments: the commits after a point, as frames of the write-ahead log, so that each can be restored.

    segments/POINT/NUMBER-SEQ-TIME    the hash of the following bytes, a line break, a line of JSON, then
                                      the frames

The segments of a point form a chain without gaps. SEQ and TIME are the
sequence and the wall time of the newest commit at the end of the segment.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from millstream.backup.chunks import digest, fits
from millstream.backup.objects import BackupObjects
from millstream.backup.point import BackupPoint
from millstream.engine.sqlite.page_snapshot import WalPosition
from millstream.engine.sqlite.wal import CHECKSUM_AT, FRAME_BYTES, step_bytes
from millstream.engine.sqlite.wal_follower import WalPiece
from millstream.errors import CorruptionError

FOLDER = "segments"

_NAME = re.compile(rf"{FOLDER}/.+/[0-9]+-[0-9]+-[0-9]+")
_FRAME_START = struct.Struct(">2I")


class SegmentName(NamedTuple):
    """The name of a segment's object, taken apart."""

    name: str
    number: int
    seq: int
    committed_ms: int


class SegmentPiece(Struct, frozen=True, kw_only=True):
    """Consecutive frames of one generation of the write-ahead log."""

    header: str
    """The header of the write-ahead log, in hexadecimal digits."""
    first: int
    """The number of the first frame, from 1."""
    bytes: int


class SegmentHead(Struct, frozen=True, kw_only=True):
    """The description of a segment."""

    version: int = 1
    number: int
    seq: int
    committed_ms: int
    pieces: list[SegmentPiece]


class Frame(NamedTuple):
    """A page, as a commit wrote it."""

    page: int
    pages: int
    """The number of pages of the file after a commit; 0 inside a commit."""
    content: bytes


def chain_folder(point: BackupPoint) -> str:
    """Return the folder of a point's segments."""
    return f"{FOLDER}/{point.taken_ms:015d}-{point.seq:012d}"


def list_chain(objects: BackupObjects, point: BackupPoint) -> list[SegmentName]:
    """Return the segments of a point, in order. A missing segment is found by `ChainReader`.

    If a put failed after the segment was stored, the next put stored a longer segment under the same
    number. The longer segment counts.
    """
    names = filter(_NAME.fullmatch, objects.names(chain_folder(point)))
    segments = sorted(map(_parsed, names))
    return list({segment.number: segment for segment in segments}.values())


def _parsed(name: str) -> SegmentName:
    number, seq, committed_ms = name.rpartition("/")[2].split("-")
    return SegmentName(name, int(number), int(seq), int(committed_ms))


def store_segment(
    objects: BackupObjects,
    point: BackupPoint,
    pieces: Sequence[WalPiece],
    *,
    number: int,
    seq: int,
    committed_ms: int,
) -> int:
    """Store frames as the next segment of a point's chain; return its bytes."""
    head = SegmentHead(
        number=number,
        seq=seq,
        committed_ms=committed_ms,
        pieces=[
            SegmentPiece(header=piece.header.hex(), first=piece.first, bytes=len(piece.frames))
            for piece in pieces
        ],
    )
    body = b"\n".join((msgspec.json.encode(head), b"".join(piece.frames for piece in pieces)))
    name = f"{chain_folder(point)}/{number:09d}-{seq:012d}-{committed_ms:015d}"
    objects.put(name, digest(body).hex().encode() + b"\n" + body)
    return len(body)


class ChainReader:
    """Reads the frames of a chain in order, and checks that none is missing."""

    def __init__(self, objects: BackupObjects, point: BackupPoint) -> None:
        self._objects = objects
        self._seq = point.seq
        """The newest commit that was read."""
        self._segments = 0
        """How many segments were read."""
        self._header, self._frames = bytes.fromhex(point.wal_header), point.wal_frames
        self._checksum = bytes.fromhex(point.wal_checksum)
        self._step = step_bytes(point.page_bytes)

    def frames(self, segment: SegmentName) -> Iterator[Frame]:
        """Yield the frames of the next segment."""
        if segment.number != self._segments:
            raise self._damage(segment, f"comes after segment {self._segments}, which is missing")
        head, data = self._read(segment)
        start = 0
        for piece in head.pieces:
            self._check(segment, piece)
            for at in range(start, start + piece.bytes, self._step):
                page, pages = _FRAME_START.unpack_from(data, at)
                yield Frame(page, pages, data[at + FRAME_BYTES : at + self._step])
            start += piece.bytes
            last = start - self._step
            self._checksum = data[last + CHECKSUM_AT : last + FRAME_BYTES]
        self._seq, self._segments = segment.seq, segment.number + 1

    def _read(self, segment: SegmentName) -> tuple[SegmentHead, bytes]:
        data = self._objects.get(segment.name) or b""
        stored, _, body = data.partition(b"\n")
        if not fits(body, stored.decode("ascii", "replace")):
            raise self._damage(segment, "is missing or not as it was written")
        head, _, frames = body.partition(b"\n")
        return msgspec.json.decode(head, type=SegmentHead), frames

    def _check(self, segment: SegmentName, piece: SegmentPiece) -> None:
        header = bytes.fromhex(piece.header)
        expected = self._frames + 1 if header == self._header else 1
        if piece.first != expected or piece.bytes % self._step:
            raise self._damage(
                segment,
                f"begins at frame {piece.first:,} of the write-ahead log and not at {expected:,}",
            )
        self._header, self._frames = header, piece.first - 1 + piece.bytes // self._step

    def _damage(self, segment: SegmentName, problem: str) -> CorruptionError:
        return CorruptionError(
            f"{self._objects.text}/{segment.name} {problem}, so commits after {self._seq} cannot be "
            f"restored; --at {self._seq} restores that commit, and smaller numbers earlier ones",
            what="segment",
            where=segment.name,
        )

    @property
    def end(self) -> WalPosition:
        """The position at the end of what was read."""
        return WalPosition(self._header, self._frames, self._checksum)
