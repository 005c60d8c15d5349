"""Lines of a stream in batches that are ready to be appended.

A batch is full after a number of lines or bytes. With a slow pipe, a batch is returned as soon as
no more input waits, so that arriving lines are stored at once. `steady` batches are always full, so
that the same input makes the same batches again.
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
"""How long to wait for more input before an unfilled batch is returned."""


def batches(stream: BinaryIO, *, lines_max: int, steady: bool) -> Iterator[list[bytes]]:
    """Yield the lines of a stream in batches, without their line ends."""
    partial_line = b""
    gathered: list[bytes] = []
    size = 0
    read = getattr(stream, "read1", stream.read)
    while chunk := read(READ_BYTES):
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        if len(partial_line) > Limits().value_bytes_max:
            raise TooLarge(
                f"a line is longer than {Limits().value_bytes_max:,} bytes; --raw appends a complete "
                "stream as one record, up to the same limit",
                size=len(partial_line),
                limit=Limits().value_bytes_max,
            )
        for line in lines:
            gathered.append(line)
            size += len(line)
            if len(gathered) >= lines_max or size >= BATCH_BYTES_MAX:
                yield gathered
                gathered, size = [], 0
        if gathered and not steady and not _has_more(stream):
            yield gathered
            gathered, size = [], 0
    if partial_line:
        gathered.append(partial_line)
    if gathered:
        yield gathered


def _has_more(stream: BinaryIO) -> bool:
    try:
        return bool(select.select([stream], [], [], PATIENCE_S)[0])
    except (OSError, ValueError):
        return True  # not a stream of the operating system: the input is complete
