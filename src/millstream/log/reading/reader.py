"""Reading: entries from the overlay or the engine, payloads beside them, as blocks.

A read takes no lock. It looks at a snapshot and at the overlay. If a fold moved a row from one to
the other in between, or a commit in flight drops rows, it reads once more: inside a `look`, which
has an overlay and a snapshot of the same commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from millstream.engine.commit import Row
from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError, Truncated
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.format.lineage import Fork
from millstream.log.model.block import RecordBlock, pack
from millstream.log.model.head import Bounds, Head
from millstream.log.model.partitioned import count_partitions, is_partitioned
from millstream.log.reading.damage import gone, located, next_entry, of_log
from millstream.log.rules.ancestry import fork_of
from millstream.partitioning import partition_name
from millstream.store.state.view import Rows
from millstream.store.store import Store

ENTRIES_PER_SCAN = 32
ENTRIES_PER_RUN = 512
"""Single entries that are decoded together."""

SOME_BYTES = 64 * 1024
"""What is fetched at least when only some records are wanted."""

T = TypeVar("T")


class RowMoved(Exception):
    """A row is neither in the overlay nor in the snapshot: a fold moved it, or it is gone.

    `stop` is the first offset behind the records that need it, where that is known.
    """

    def __init__(self, stop: int | None = None) -> None:
        super().__init__(stop)
        self.stop = stop


def log_id_of(store: Store, name: str) -> int:
    """The log that a name stands for, 0 for none; sees what others have committed."""
    store.refresh()
    log_id = int(store.seen(keys.log_name(name)))
    if not log_id and store.seen(keys.log_name(partition_name(name, 0))):
        _refuse_whole(store, name)
    return log_id


def _refuse_whole(store: Store, name: str) -> None:
    """Refuse to read a log with partitions as an empty log: its records would seem lost."""
    if count := store.view(lambda view: count_partitions(view, name)):
        raise is_partitioned(name, count)


def bounds_of(store: Store, log_id: int, name: str = "") -> Bounds:
    """Both ends of a log, as of the last `refresh`; an error about damage has the name, if given."""
    if not log_id:
        return Bounds()
    try:
        found: Bounds = store.seen(keys.head(log_id))
    except CorruptionError as error:
        if not name:
            raise
        raise of_log(error, name) from error
    return found


def read_blocks(
    store: Store, name: str, *, start: int, stop: int, bytes_max: int, values: bool = True
) -> list[RecordBlock]:
    """Some of the records in [start, stop), from the first on: at least one, if there is any.

    Where damage begins, the answer ends; a read that starts at the damage raises. Without `values`
    the payloads are not read, and the blocks' `payload` is empty.
    """
    log_id = log_id_of(store, name)

    def read(bounds: Bounds, rows: Rows) -> list[RecordBlock]:
        end = min(stop, bounds.end)
        if start >= end:
            return []
        if start < bounds.start:
            raise Truncated(
                f"log {name!r} begins at {bounds.start}: offset {start} was truncated",
                log=name,
                offset=start,
                start=bounds.start,
            )
        return find_blocks(
            rows, log_id, bounds.name, start=start, stop=end, bytes_max=bytes_max, values=values
        )

    try:
        return with_rows(store, log_id, read, name)
    except RowMoved as moved:
        raise gone(name, start, moved.stop) from None


def with_rows(store: Store, log_id: int, read: Callable[[Bounds, Rows], T], name: str = "") -> T:
    """Read rows of a log, within its bounds, as of one moment at which they were durable.

    `read` may be called twice; a `RowMoved` that it raises the second time is the row's end.
    """
    overlay = store.state.overlay
    mark = overlay.mark()
    bounds = bounds_of(store, log_id, name)
    try:
        with store.engine.read() as snapshot:
            found = read(bounds, Rows(overlay, snapshot))
        if overlay.is_since(mark):
            return found
    except RowMoved:
        pass
    return store.view(lambda view: read(view.entity(keys.head(log_id), Head).view(), view))


def read_sound(
    view: Rows, log_id: int, name: str, *, start: int, stop: int, values: bool = True
) -> list[RecordBlock]:
    """Blocks from `start` on, up to `stop` or to where damage begins; damage at `start` raises."""
    try:
        return find_blocks(
            view, log_id, name, start=start, stop=stop, bytes_max=2**62, values=values
        )
    except RowMoved as moved:
        raise gone(name, start, moved.stop) from None


def fetch_blocks(
    store: Store,
    log_id: int,
    name: str,
    *,
    start: int,
    stop: int,
    bytes_max: int = SOME_BYTES,
    values: bool = True,
) -> list[RecordBlock]:
    """Blocks from `start` on, whatever the log's start."""

    def read(_: Bounds, rows: Rows) -> list[RecordBlock]:
        return find_blocks(
            rows, log_id, name, start=start, stop=stop, bytes_max=bytes_max, values=values
        )

    try:
        return with_rows(store, log_id, read, name)
    except RowMoved as moved:
        raise gone(name, start, moved.stop) from None


def find_blocks(
    view: Rows,
    log_id: int,
    name: str,
    *,
    start: int,
    stop: int,
    bytes_max: int,
    values: bool = True,
) -> list[RecordBlock]:
    """Blocks from `start` on, as far as they are sound; if the first is not, this raises.

    `RowMoved` if the first is not there, as the snapshot has it.
    """
    found: list[RecordBlock] = []
    position, size = start, 0
    behind: int | None = None
    try:
        for first, some in in_runs(entries_of(view, log_id, start=start, stop=stop)):
            if blocks.is_block(some[0]):
                # The fold may have joined records with those before them, which were found apart.
                behind = first + entries.count(some[0])
                wanted = range(position - first, min(stop, behind) - first)
                made = _stored_block(view, name, first, wanted, some[0], values=values)
            else:
                behind, wanted = first + 1, range(len(some))
                entry = _sound_of(some)
                payloads = _payloads(view, entry.ids, bytes_max - size) if values else None
                made = pack(name, first, entry, payloads)
            found.append(made)
            position, behind = made.offsets.stop, None
            size += len(made.payload if values else made.metadata)
            if size >= bytes_max or made.count < len(wanted):
                break
    except CorruptionError as error:
        if not found:
            stop = behind or next_entry(view, log_id, error, position, stop)
            raise located(error, name, position, stop) from error
    except RowMoved:
        if not found:
            raise RowMoved(behind or next_entry(view, log_id, None, position, stop)) from None
    return found


def entries_of(view: Rows, log_id: int, *, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The entries that cover [start, stop), in order, each with its first offset."""
    position = start
    while position < stop:
        near, before = stop, position
        wanted = min(stop - position, ENTRIES_PER_RUN)
        for key, value in view.overlay.rows_from(keys.entry(log_id, position), limit=wanted):
            first, behind = entries.extent(key, value)
            if first > position:
                near = min(stop, first)
                break
            yield first, value
            position = behind
            if position >= stop:
                return
        if position > before:
            continue
        for key, value in _stored(view.snapshot, log_id, position, near):
            first, behind = entries.extent(key, value)
            if first > position:
                break
            yield first, value
            position = behind
        if position == before:
            fork = fork_of(view, log_id)
            if fork is None or position >= fork.point:
                raise RowMoved
            for first, value in _of_parent(view, fork, start=position, stop=stop):
                yield first, value
                position = first + entries.count(value)


def in_runs(found: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, list[bytes]]]:
    """Entries as they come: blocks by themselves, neighbouring single ones together.

    What was found before an error is given before the error is raised.
    """
    at, run = 0, list[bytes]()
    try:
        for first, value in found:
            if run and (blocks.is_block(value) or len(run) == ENTRIES_PER_RUN):
                yield at, run
                run = []
            if blocks.is_block(value):
                yield first, [value]
            else:
                at = at if run else first
                run.append(value)
    except (CorruptionError, RowMoved):
        if run:
            yield at, run
        raise
    if run:
        yield at, run


def joined_entries_of(
    view: Rows, log_id: int, *, start: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    """As `entries_of`, but neighbouring single ones are joined into a block, as the fold does it."""
    for first, some in in_runs(entries_of(view, log_id, start=start, stop=stop)):
        yield first, some[0] if len(some) == 1 else entries.encode(entries.decode_singles(some))


def _sound_of(singles: list[bytes]) -> entries.Entry:
    """Single entries as one, as far as they are sound; if the first is not, this raises."""
    try:
        return entries.decode_singles(singles)
    except CorruptionError:
        if len(singles) == 1:
            raise
    return _sound_of(singles[: len(singles) // 2])


def _of_parent(view: Rows, fork: Fork, *, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Entries inherited from the parent, the last one cut at the fork point."""
    stop = min(stop, fork.point)
    for first, value in entries_of(view, fork.parent_id, start=start, stop=stop):
        if first + entries.count(value) > fork.point:
            value = entries.head_of(value, fork.point - first)
        yield first, value


def _stored(snapshot: Snapshot, log_id: int, position: int, stop: int) -> list[Row]:
    """Some entries from the one on that covers a position, up to the one that covers the last."""
    if stop - position > 1:
        try:
            rows = snapshot.scan(
                keys.entry(log_id, position), keys.entry(log_id, stop), limit=ENTRIES_PER_SCAN
            )
            if len(rows) < ENTRIES_PER_SCAN and (not rows or keys.pair(rows[-1][0])[1] < stop - 1):
                rows += _covering(snapshot, log_id, stop)
            return rows
        except CorruptionError:
            pass  # of a later row, perhaps, which hides none of the rows before it
    return _covering(snapshot, log_id, position)


def _covering(snapshot: Snapshot, log_id: int, position: int) -> list[Row]:
    """The first entry that ends at or behind a position."""
    _, last = keys.of_log(keys.ENTRY, log_id)
    return snapshot.scan(keys.entry(log_id, position), last, limit=1)


def _stored_block(
    view: Rows, name: str, first: int, wanted: range, value: bytes, *, values: bool
) -> RecordBlock:
    payload = b""
    if values:
        header = blocks.decode_header(value, kind=blocks.METADATA)
        stored = view.get(keys.payload_block(header.first_id))
        if stored is None:
            raise RowMoved
        payload = stored
        if not header.payload_bytes:  # a fork has only the first records of this block
            value, payload = entries.with_payload(value, stored)
    return RecordBlock(name, first + wanted.start, wanted.start, len(wanted), value, payload)


def _payloads(view: Rows, ids: Sequence[int], bytes_max: int) -> list[bytes]:
    """Payloads that were published alone: as many as fit and are sound, at least one."""
    found: list[bytes] = []
    size, step = 0, 8
    while len(found) < len(ids) and (not found or size < bytes_max):
        some = ids[len(found) : len(found) + step]
        try:
            for payload in _payload_run(view, some):
                found.append(payload)
                size += len(payload)
        except (CorruptionError, RowMoved):
            if not found:
                raise
            break
        step = min(512, step * 2) if size < bytes_max // 4 else 1
    return found


def _payload_run(view: Rows, ids: Sequence[int]) -> Iterable[bytes]:
    """The payloads of some messages; raises where it comes to one that is damaged."""
    held, snapshot = view.overlay, view.snapshot
    found = [held.get(keys.payload(message_id)) for message_id in ids]
    if None not in found:
        return found  # type: ignore[return-value]
    stored: dict[bytes, bytes] = {}
    if ids[-1] - ids[0] < 4 * len(ids):
        try:
            stored = dict(
                snapshot.scan(keys.payload(ids[0]), keys.payload(ids[-1] + 1), limit=4 * len(ids))
            )
        except CorruptionError:
            pass  # perhaps a payload of another log: each of ours is read by itself
    return _each_payload(snapshot, zip(ids, found, strict=True), stored)


def _each_payload(
    snapshot: Snapshot, held: Iterable[tuple[int, bytes | None]], stored: dict[bytes, bytes]
) -> Iterator[bytes]:
    for message_id, payload in held:
        if payload is None:
            key = keys.payload(message_id)
            payload = stored[key] if key in stored else snapshot.get(key)
            if payload is None:
                raise RowMoved
        yield payload
