"""The reader: makes blocks from the entries and payloads of the overlay and the engine.

A read takes no lock: it uses a snapshot and the overlay. If a fold moves a row meanwhile, or a commit in
flight drops rows, the read is repeated inside a `look`, where overlay and snapshot belong to the same
commit. Reading under the lock at once would make all reads wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from millstream.engine.commit import Row
from millstream.engine.protocol import Snapshot
from millstream.errors import CorruptionError, Truncated
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.model.block import RecordBlock, pack
from millstream.log.model.head import Bounds, Head
from millstream.log.model.partitioned import count_partitions, is_partitioned
from millstream.log.reading.damage import gone, located, next_entry, of_log
from millstream.log.rules.ancestry import holders
from millstream.partitioning import partition_name
from millstream.store.state.view import Rows
from millstream.store.store import Store

ENTRIES_PER_SCAN = 32
ENTRIES_PER_RUN = 512
"""The most single entries that are decoded together."""

SOME_BYTES = 64 * 1024
"""The bytes to fetch for a caller that needs only the first records."""

T = TypeVar("T")


class RowMoved(Exception):
    """A row is neither in the overlay nor in the snapshot, because a fold moved the row or it is lost.

    `stop` is the first offset behind the affected records, if known.
    """

    def __init__(self, stop: int | None = None) -> None:
        super().__init__(stop)
        self.stop = stop


def log_id_of(store: Store, name: str) -> int:
    """Return the id of a log, 0 for a missing log; first applies the commits of other processes."""
    store.refresh()
    log_id = int(store.seen(keys.log_name(name)))
    if not log_id and store.seen(keys.log_name(partition_name(name, 0))):
        _refuse_whole(store, name)
    return log_id


def _refuse_whole(store: Store, name: str) -> None:
    """Raise for a read of a partitioned log as a plain log, which would seem empty."""
    if count := store.view(lambda view: count_partitions(view, name)):
        raise is_partitioned(name, count)


def bounds_of(store: Store, log_id: int, name: str = "") -> Bounds:
    """Return the bounds of a log as of the last `refresh`; an error about damage carries the name."""
    if not log_id:
        return Bounds()
    try:
        bounds: Bounds = store.seen(keys.head(log_id))
    except CorruptionError as error:
        if not name:
            raise
        raise of_log(error, name) from error
    return bounds


def read_blocks(
    store: Store, name: str, *, start: int, stop: int, bytes_max: int, values: bool = True
) -> list[RecordBlock]:
    """Return blocks from `start` on, up to `stop` or about `bytes_max`, at least one record.

    The blocks end where damage begins; a read that starts at the damage raises. Without `values` the
    payloads are not read, and `payload` of the blocks is empty.
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
    """Read rows of a log within its bounds, as of one durable commit.

    `read` may be called twice; after a `RowMoved` of the second call the row is lost.
    """
    overlay = store.state.overlay
    mark = overlay.mark()
    bounds = bounds_of(store, log_id, name)
    try:
        with store.engine.read() as snapshot:
            result = read(bounds, Rows(overlay, snapshot))
        if overlay.is_since(mark):
            return result
    except RowMoved:
        pass
    return store.view(lambda view: read(view.entity(keys.head(log_id), Head).view(), view))


def read_sound(
    view: Rows, log_id: int, name: str, *, start: int, stop: int, values: bool = True
) -> list[RecordBlock]:
    """Return blocks from `start` on, up to `stop` or the first damage; raise for damage at `start`."""
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
    """Return blocks from `start` on, also below the start of the log."""

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
    """Return the sound blocks from `start` on; raise if the first block is damaged.

    Raises `RowMoved` if a row of the first block is missing in the overlay and the snapshot.
    """
    sound: list[RecordBlock] = []
    position, size = start, 0
    behind: int | None = None
    try:
        for first, run in in_runs(entries_of(view, log_id, start=start, stop=stop)):
            if blocks.is_block(run[0]):
                # The fold may have joined records of this block with earlier single records.
                behind = first + entries.count(run[0])
                indexes = range(position - first, min(stop, behind) - first)
                made = _stored_block(view, name, first, indexes, run[0], values=values)
            else:
                behind, indexes = first + 1, range(len(run))
                entry = _sound_of(run)
                payloads = _payloads(view, entry.ids, bytes_max - size) if values else None
                made = pack(name, first, entry, payloads)
            sound.append(made)
            position, behind = made.offsets.stop, None
            size += len(made.payload if values else made.metadata)
            if size >= bytes_max or made.count < len(indexes):
                break
    except CorruptionError as error:
        if not sound:
            stop = behind or next_entry(view, log_id, error, position, stop)
            raise located(error, name, position, stop) from error
    except RowMoved:
        if not sound:
            raise RowMoved(behind or next_entry(view, log_id, None, position, stop)) from None
    return sound


def entries_of(
    view: Rows, log_id: int, *, start: int, stop: int, inherits: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Yield the entries that cover [start, stop), in order, each with its first offset.

    Without `inherits`, end before the first record that lies in a parent of the log.
    """
    position = start
    while position < stop:
        near, before = stop, position
        limit = min(stop - position, ENTRIES_PER_RUN)
        for key, value in view.overlay.rows_from(keys.entry(log_id, position), limit=limit):
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
            if not inherits:
                return
            for first, value in _inherited(view, log_id, start=position, stop=stop):
                yield first, value
                position = first + entries.count(value)
            if position == before:
                raise RowMoved


def in_runs(numbered: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, list[bytes]]]:
    """Group entries: each block alone, and contiguous single entries together.

    Yields the entries before an error, and then raises the error.
    """
    at, run = 0, list[bytes]()
    try:
        for first, value in numbered:
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
    """Yield the entries of `entries_of`, with contiguous single entries joined as the fold does."""
    for first, run in in_runs(entries_of(view, log_id, start=start, stop=stop)):
        yield first, run[0] if len(run) == 1 else entries.encode(entries.decode_singles(run))


def _sound_of(singles: list[bytes]) -> entries.Entry:
    """Decode the sound single entries at the front; raise if the first entry is damaged."""
    try:
        return entries.decode_singles(singles)
    except CorruptionError:
        if len(singles) == 1:
            raise
    return _sound_of(singles[: len(singles) // 2])


def _inherited(view: Rows, log_id: int, *, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of the ancestor that holds the record at `start`, cut where a fork begins.

    A loop instead of a recursion: a log of which records were set aside many times has as many
    ancestors.
    """
    holder_id, below = log_id, stop
    for ancestor_id, below_ancestor in holders(view, log_id):
        if start >= below_ancestor:
            break
        holder_id, below = ancestor_id, below_ancestor
    if holder_id == log_id:
        return
    stop = min(stop, below)
    for first, value in entries_of(view, holder_id, start=start, stop=stop, inherits=False):
        if first + entries.count(value) > below:
            value = entries.head_of(value, below - first)
        yield first, value


def _stored(snapshot: Snapshot, log_id: int, position: int, stop: int) -> list[Row]:
    """Return entries from the entry at `position` on, up to the entry at `stop - 1`."""
    if stop - position > 1:
        try:
            rows = snapshot.scan(
                keys.entry(log_id, position), keys.entry(log_id, stop), limit=ENTRIES_PER_SCAN
            )
            if len(rows) < ENTRIES_PER_SCAN and (not rows or keys.pair(rows[-1][0])[1] < stop - 1):
                rows += _covering(snapshot, log_id, stop)
            return rows
        except CorruptionError:
            pass  # the damage may be in a later row: read the first row alone
    return _covering(snapshot, log_id, position)


def _covering(snapshot: Snapshot, log_id: int, position: int) -> list[Row]:
    """Return the first entry that ends at or behind a position."""
    _, last = keys.of_log(keys.ENTRY, log_id)
    return snapshot.scan(keys.entry(log_id, position), last, limit=1)


def _stored_block(
    view: Rows, name: str, first: int, indexes: range, value: bytes, *, values: bool
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
    return RecordBlock(name, first + indexes.start, indexes.start, len(indexes), value, payload)


def _payloads(view: Rows, ids: Sequence[int], bytes_max: int) -> list[bytes]:
    """Return the sound payloads of single records that fit into `bytes_max`, at least one payload."""
    payloads: list[bytes] = []
    size, step = 0, 8
    while len(payloads) < len(ids) and (not payloads or size < bytes_max):
        next_ids = ids[len(payloads) : len(payloads) + step]
        try:
            for payload in _payload_run(view, next_ids):
                payloads.append(payload)
                size += len(payload)
        except (CorruptionError, RowMoved):
            if not payloads:
                raise
            break
        step = min(512, step * 2) if size < bytes_max // 4 else 1
    return payloads


def _payload_run(view: Rows, ids: Sequence[int]) -> Iterable[bytes]:
    """Return the payloads of messages; iterating raises at a damaged payload."""
    held, snapshot = view.overlay, view.snapshot
    payloads = [held.get(keys.payload(message_id)) for message_id in ids]
    if None not in payloads:
        return payloads  # type: ignore[return-value]
    stored: dict[bytes, bytes] = {}
    if ids[-1] - ids[0] < 4 * len(ids):
        try:
            stored = dict(
                snapshot.scan(keys.payload(ids[0]), keys.payload(ids[-1] + 1), limit=4 * len(ids))
            )
        except CorruptionError:
            pass  # the damage may be in another log: read each payload alone
    return _each_payload(snapshot, zip(ids, payloads, strict=True), stored)


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
