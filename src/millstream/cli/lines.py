"""Lines of a stream, gathered into batches that are ready to be appended.

A batch is full after so many lines or bytes. From a slow pipe it is handed out as soon as nothing
more is waiting, so that what arrives is stored at once; `steady` batches are always full, so that
the same input makes the same batches again.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import BinaryIO

from millstream.errors import TooLarge
from millstream.limits import Limits, MiB

READ_BYTES = 256 * 1024
BATCH_BYTES_MAX = 8 * MiB
PATIENCE_S = 0.02
"""How long more input is waited for before an unfilled batch goes."""


def batches(stream: BinaryIO, *, lines_max: int, steady: bool) -> Iterator[list[bytes]]:
    """The lines of a stream, without their ends, some at a time."""
    rest = b""
    gathered: list[bytes] = []
    size = 0
    read = getattr(stream, "read1", stream.read)
    while chunk := read(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > Limits().value_bytes_max:
            raise TooLarge(
                f"a line of more than {Limits().value_bytes_max:,} bytes; --raw appends a whole "
                "stream as one record, up to the same limit",
                size=len(rest),
                limit=Limits().value_bytes_max,
            )
        for line in lines:
            gathered.append(line)
            size += len(line)
            if len(gathered) >= lines_max or size >= BATCH_BYTES_MAX:
                yield gathered
                gathered, size = [], 0
        if gathered and not steady and not _more_waits(stream):
            yield gathered
            gathered, size = [], 0
    if rest:
        gathered.append(rest)
    if gathered:
        yield gathered


def _more_waits(stream: BinaryIO) -> bool:
    try:
        return bool(select.select([stream], [], [], PATIENCE_S)[0])
    except (OSError, ValueError):
        return True  # not a stream of the system: it is all there
