"""An increment: a point as a stream of frames, without the chunks that the receiver has. Pure.

    receiver    the first 8 bytes of the hash of each chunk that it has, sorted
    sender      a line of text, then frames: a letter, the size of the content in 4 bytes, the content

    W    nothing: the sender still works, as while it checks all rows
    P    the point, as JSON; comes first
    C    a hash, and the chunk
    K    the hash of a chunk that the receiver has
    E    the hash of all hashes; comes last
    F    an error instead of further frames, as JSON

The receiver compares each chunk with its hash, and the end with all hashes. A stream that ends without an E
or F was cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator

import msgspec

from millstream import errors
from millstream.backup.chunks import CHUNK_BYTES, Piece, digest, fits
from millstream.backup.point import BackupPoint
from millstream.errors import CorruptionError, MillstreamError
from millstream.limits import MiB

FIRST_LINE = b"millstream-backup-increment\n"
WAITING = b"W" + bytes(4)

KNOWN_BYTES_MAX = 16 * MiB
"""Most bytes that name known chunks: 2 million chunks, or 512 GiB. Further chunks are sent again."""

_PREFIX_BYTES = 8
_HASH_BYTES = 32
_DETAIL_MAX = 4_096
_CONTENT_BYTES_MAX = CHUNK_BYTES + _HASH_BYTES

Read = Callable[[int], bytes]
"""Returns the given number of bytes, or fewer at the end of the stream."""


class CutStream(Exception):
    """The stream ended early: a repeated download may succeed."""


def encode_known(names: Collection[str]) -> bytes:
    """Encode the names of chunks that a receiver has."""
    prefixes = sorted(bytes.fromhex(name[: 2 * _PREFIX_BYTES]) for name in names)
    return b"".join(prefixes[: KNOWN_BYTES_MAX // _PREFIX_BYTES])


class KnownChunks:
    """The chunks that a receiver has, in 8 bytes per chunk."""

    def __init__(self, data: bytes) -> None:
        if len(data) % _PREFIX_BYTES:
            raise errors.InvalidInput(
                f"the body has the first {_PREFIX_BYTES} bytes of the hashes of chunks; "
                f"{len(data):,} bytes are no multiple of {_PREFIX_BYTES}"
            )
        self._data, self._count = data, len(data) // _PREFIX_BYTES

    def has(self, name: bytes) -> bool:
        """True if the receiver has a chunk whose hash begins with the same bytes."""
        prefix = name[:_PREFIX_BYTES]
        at = bisect_left(range(self._count), prefix, key=self._prefix)
        return at < self._count and self._prefix(at) == prefix

    def _prefix(self, number: int) -> bytes:
        return self._data[number * _PREFIX_BYTES : (number + 1) * _PREFIX_BYTES]


def frames_of(
    point: BackupPoint, pieces: Iterator[Piece], known_chunks: KnownChunks
) -> Iterator[bytes]:
    """Yield the frames of a point, from the first to the last."""
    yield _frame(b"P", msgspec.json.encode(point))
    hashes: list[bytes] = []
    for piece in pieces:
        assert isinstance(piece, bytes)
        name = digest(piece)
        hashes.append(name)
        yield _frame(b"K", name) if known_chunks.has(name) else _frame(b"C", name + piece)
    yield _frame(b"E", digest(b"".join(hashes)))


def failure_frame(title: str, detail: str) -> bytes:
    """Return the frame of an error: the name of the class, and the message."""
    return _frame(b"F", msgspec.json.encode({"title": title, "detail": detail[:_DETAIL_MAX]}))


def _frame(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


class IncrementReader:
    """Reads the frames of a point, and checks them."""

    def __init__(self, read: Read, where: str) -> None:
        """`where` is the address of the sender, for messages."""
        self._read, self._where = read, where

    def point(self) -> BackupPoint:
        """Read up to the point."""
        if self._exactly(len(FIRST_LINE)) != FIRST_LINE:
            raise self._damage("does not begin as one")
        kind, content = self._next()
        if kind != b"P":
            raise self._damage("does not begin with a point")
        try:
            return msgspec.json.decode(content, type=BackupPoint)
        except msgspec.MsgspecError as error:
            raise self._damage(f"has a point that cannot be read ({error})") from error

    def pieces(self) -> Iterator[Piece]:
        """Yield each chunk, or the name of a chunk that the receiver has."""
        hashes: list[bytes] = []
        while True:
            kind, content = self._next()
            name = content[:_HASH_BYTES]
            if kind == b"E":
                if not fits(b"".join(hashes), content.hex()):
                    raise self._damage("lacks chunks")
                return
            if kind == b"K" and len(content) == _HASH_BYTES:
                piece: Piece = name.hex()
            elif kind == b"C" and fits(content[_HASH_BYTES:], name.hex()):
                piece = content[_HASH_BYTES:]
            else:
                raise self._damage("has a chunk that does not fit its hash")
            hashes.append(name)
            yield piece

    def _next(self) -> tuple[bytes, bytes]:
        """Return the next frame that is no sign of life; raise the error of the sender."""
        while True:
            head = self._exactly(5)
            kind, size = head[:1], int.from_bytes(head[1:], "big")
            if size > _CONTENT_BYTES_MAX:
                raise self._damage("has a frame that is too large")
            content = self._exactly(size)
            if kind == b"F":
                raise _error_of(content)
            if kind != b"W":
                return kind, content

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) != size:
            raise CutStream("the stream was cut")
        return data

    def _damage(self, problem: str) -> CorruptionError:
        return CorruptionError(
            f"the backup that {self._where} sent {problem}; no point was added",
            what="stream",
            where=self._where,
        )


def _error_of(content: bytes) -> MillstreamError:
    try:
        failure = msgspec.json.decode(content, type=dict[str, str])
    except msgspec.MsgspecError:
        failure = {}
    kind = getattr(errors, failure.get("title", ""), None)
    if not (isinstance(kind, type) and issubclass(kind, MillstreamError)):
        kind = MillstreamError
    return kind(failure.get("detail", "the server could not make the backup"))
