"""Payload blocks of a large commit, written before it: one batch would not fit into memory.

A block is read only by what refers to it, and that is part of the commit itself, the last batch. So
blocks that lie in the store before it are seen by no reader. A row, the mark, says which they are. The
first batch puts it, the commit deletes it, and both are atomic: where it is found after a crash, the
commit was never made, and its blocks go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from millstream.engine.commit import Commit, SpooledRows
from millstream.engine.slate.binding import Binding
from millstream.engine.slate.rows import MARK, SlateImage, cell_of, reading, walk
from millstream.format import keys
from millstream.limits import MiB

EARLY_BYTES = 32 * MiB
"""Bytes of blocks in one batch; a batch has one block at least."""

STEP_ROWS = 16
"""Blocks that are looked at in one step as they are removed: each may have megabytes."""

_BLOCKS = keys.prefix(keys.PAYLOAD_BLOCK)


class Early(NamedTuple):
    """A commit in two parts."""

    first: bytes
    last: bytes
    blocks: Iterator[tuple[bytes, bytes]]
    rest: Commit


def early_part(commit: Commit, image: SlateImage) -> Early | None:
    """A commit whose blocks may be written before it; None if it is small, or replaces blocks.

    Between new blocks there are no old ones: message ids only grow.
    """
    rows = commit.rows
    if not isinstance(rows, SpooledRows):
        return None
    blocks = [key for key in rows.all_keys() if key[:2] == _BLOCKS]
    if not blocks:
        return None
    first, last = min(blocks), max(blocks)
    with reading(image):
        if image.binding.scan(image.view, first, last + b"\x00", 1):
            return None
    rest = list(rows.of(key for key in rows.all_keys() if key[:2] != _BLOCKS))
    return Early(first, last, rows.of(blocks), Commit(rest, commit.deletes, commit.ranges))


def early_batches(binding: Binding, early: Early) -> Iterator[Any]:
    """Batches with its blocks, and with the mark in the first."""
    batch, size = binding.module.WriteBatch(), 0
    binding.put(batch, MARK, cell_of(MARK, early.first + early.last))
    for key, value in early.blocks:
        binding.put(batch, key, cell_of(key, value))
        size += len(value)
        if size >= EARLY_BYTES:
            yield batch
            batch, size = binding.module.WriteBatch(), 0
    if size:
        yield batch


def dropping_batch(binding: Binding, image: SlateImage) -> Any | None:
    """What removes the blocks of a commit that was never made; None if there are none."""
    early = image.early()
    if early is None:
        return None
    batch = binding.module.WriteBatch()
    with reading(image):
        for key in walk(image, early[0], early[1] + b"\x00", step=STEP_ROWS):
            binding.delete(batch, key)
    binding.delete(batch, MARK)
    return batch
