"""Adopting: the records and the state that a copy of a log takes over from another copy.

Blocks are checked completely, together with the running hash, before anything is written. Then they
are appended at exactly the expected end, in one commit, with the timestamps of their origin and new
ids. So a copy never holds a record that its hash does not cover.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial

from millstream.errors import CorruptionError, EndMoved, Fenced, InvalidInput
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.format.packing import check_timestamp
from millstream.format.record_checks import check_stored
from millstream.limits import Limits
from millstream.log.commands import Truncate
from millstream.log.model.block import RecordBlock
from millstream.log.model.head import Head, LogPlaced, LogTruncated, Owned, RecordsAppended, Touched
from millstream.log.model.names import check_integer, check_name
from millstream.log.model.partitioned import check_copy
from millstream.log.rules.operations import check_free, find_log, need_log, new_log, truncate_log
from millstream.replica import commands as c
from millstream.replica.chain import Mark, Parsed, parse
from millstream.replica.copies.giver import CopyExtent, advance, chains_of
from millstream.replica.copies.marks import add_marks, begin_marks, last_mark
from millstream.replica.copies.parcel import unpacked
from millstream.replica.metadata import adopt_metadata
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.hypothetical import Reading
from millstream.store.state.instance import instance_id
from millstream.store.store import Store

BLOCKS_MAX = 100_000
"""Blocks in a parcel: the commit holds the write lock."""


def start_replica(tx: WriteTransaction, command: c.StartReplica) -> bool:
    """Make an empty copy, or let a copy begin anew that ends before the other copy begins."""
    command.base.check()
    _check_owner(command.owner, command.epoch)
    offset = command.base.offset
    log = find_log(tx, command.log)
    if log is None:
        check_copy(tx, check_name(command.log))
        log_id, _ = new_log(tx, command.log)
        tx.change(keys.head(log_id), LogPlaced(offset, offset, offset))
    else:
        log_id, head = log
        if head.end > offset:
            return False
        if head.epoch > command.epoch:
            raise fenced(head)
        check_free(tx, head, "")
        tx.change(keys.head(log_id), LogTruncated(offset))
    begin_marks(tx, log_id, command.base)
    _own(tx, log_id, command.owner, command.epoch)
    return True


def adopt_owner(tx: WriteTransaction, command: c.AdoptOwner) -> bool:
    """Record the owner of a log and its epoch. Raises `Fenced` if the epoch is over."""
    _check_owner(command.owner, command.epoch)
    log_id, head = need_log(tx, command.log)
    current = (head.epoch, head.owner or instance_id(tx))
    if current == (command.epoch, command.owner):
        return False
    if current[0] > command.epoch:
        raise fenced(head)
    if command.expect_end is not None and head.end != command.expect_end:
        raise _end_moved(command, head.end)
    _own(tx, log_id, command.owner, command.epoch)
    return True


def _own(tx: WriteTransaction, log_id: int, owner: str, epoch: int) -> None:
    """Record an owner and its epoch, unless the log has them."""
    head = tx.entity(keys.head(log_id), Head)
    short = "" if owner == instance_id(tx) else owner
    if (head.owner, head.epoch) != (short, epoch):
        tx.change(keys.head(log_id), Owned(short, epoch))


def adopt_parcel(store: Store, command: c.AdoptParcel) -> int:
    """Check the blocks of a parcel and append them; return the new end."""
    parsed_blocks = check_blocks(command, store.limits)
    extent, chain = advance(Reading(store, waits=True), command.log)
    if extent.end != command.expect_end:
        raise _end_moved(command, extent.end)
    marks: list[Mark] = []
    for block in parsed_blocks:
        marks += chain.extend(block)
    digest = command.parcel.digest
    if chain.digest() != digest:
        raise CorruptionError(
            f"log {command.log!r}: with the blocks that came, its hash at {chain.end} would be "
            f"{chain.digest().hex()[:16]}…, and the other copy has {digest.hex()[:16]}…: "
            "they are not of the same log, or were damaged on their way; nothing was taken over",
            what="chain",
            where=command.expect_end,
            log=command.log,
        )
    end = store.run(
        partial(_adopt, command=command, extent=extent, parsed_blocks=parsed_blocks, marks=marks)
    )
    chains_of(store).keep(extent, chain)
    return end


def check_blocks(command: c.AdoptParcel, limits: Limits) -> list[Parsed]:
    """Parse the blocks of a parcel, and refuse blocks that could not have been stored here."""
    blocks = unpacked(command.parcel, limits)
    check_integer("an epoch", command.epoch)
    Mark(command.expect_end, command.parcel.digest).check()
    if not 0 < len(blocks) <= BLOCKS_MAX:
        raise InvalidInput(f"{len(blocks)} blocks; from 1 to {BLOCKS_MAX:,} can be adopted")
    parsed_blocks: list[Parsed] = []
    position = command.expect_end
    for block in blocks:
        if block.first_offset != position or block.count < 1:
            raise InvalidInput(
                f"a block at offset {block.first_offset} where {position} was expected"
            )
        parsed = _parsed(block, command.log)
        check_stored(parsed.metadata, parsed.payload, limits)
        parsed_blocks += _pieces(parsed, limits)
        position = parsed.stop
    if position != command.parcel.end:
        raise InvalidInput(f"a parcel up to {command.parcel.end} holds records up to {position}")
    return parsed_blocks


def _pieces(parsed: Parsed, limits: Limits) -> Iterator[Parsed]:
    """Split a block that exceeds the limits of the store: readers read blocks completely."""
    metadata, payload = parsed.metadata.header, parsed.payload.header
    records_max, ends = limits.batch_records_max, parsed.ends
    size = metadata.body_bytes + payload.body_bytes
    if parsed.count <= records_max and size <= limits.batch_bytes_max:
        yield parsed
        return
    beside = size - ends[-1]
    values_max = max(1, limits.batch_bytes_max // 2)
    records_max = min(records_max, max(1, values_max * parsed.metadata.count // max(1, beside)))
    start = 0
    while start < parsed.count:
        first = parsed.skip + start
        fitting = bisect_right(ends, ends[first] + values_max, lo=first + 1) - 1 - first
        stop = min(parsed.count, start + max(1, min(records_max, fitting)))
        yield parsed.cut(start, stop)
        start = stop


def _parsed(block: RecordBlock, log: str) -> Parsed:
    try:
        return parse(block)
    except CorruptionError as error:
        raise CorruptionError(
            f"a block for log {log!r}, offset {block.first_offset}, is damaged: {error.message}",
            **{**error.data, "log": log, "offset": block.first_offset},
        ) from error


def _adopt(
    tx: WriteTransaction,
    *,
    command: c.AdoptParcel,
    extent: CopyExtent,
    parsed_blocks: list[Parsed],
    marks: list[Mark],
) -> int:
    log_id, head = need_log(tx, command.log)
    if (log_id, head.end) != (extent.log_id, command.expect_end):
        raise _end_moved(command, head.end)
    if head.epoch > command.epoch:
        raise fenced(head)
    check_free(tx, head, "")
    if last_mark(tx.view, log_id) != extent.last:
        raise _end_moved(command, head.end)
    for block in parsed_blocks:
        put_records(tx, log_id, block.first_offset, block, at_ms=0)
    if marks:
        add_marks(tx, log_id, marks)
    return tx.entity(keys.head(log_id), Head).end


def adopt_state(tx: WriteTransaction, command: c.AdoptState) -> c.Adopted:
    """Take over the start, the timestamp and the metadata of another copy, where they are later.

    Truncations travel: records that the other copy has forgotten are truncated here too.
    """
    check_timestamp(command.timestamp_ms)
    log_id, head = need_log(tx, command.log)
    metadata = adopt_metadata(tx, command.log, command.entries)
    truncated = truncate_log(tx, Truncate(command.log, command.start))
    if command.timestamp_ms > head.timestamp_ms:
        tx.change(keys.head(log_id), Touched(command.timestamp_ms))
    return c.Adopted(truncated, metadata)


def put_records(
    tx: WriteTransaction, log_id: int, offset: int, records: Parsed, *, at_ms: int
) -> None:
    """Append records of a stored block under new ids; the offset must be the log's end.

    `at_ms` is the time of that change. It is 0 for a copy, whose timestamp travels by `AdoptState`.
    """
    metadata, payload, count = records.metadata, records.payload, records.count
    first_id = tx.take_ids(count)
    head = metadata.header
    if count == metadata.count:
        values, body, columns = payload.body(), metadata.body(), head.columns
        value_crc: int | None = payload.header.body_crc
        body_crc: int | None = head.body_crc
        if columns & blocks.IDS:  # ids of the other store
            columns, body, body_crc = columns & ~blocks.IDS, body[: -8 * count], None
    else:
        cells = payload.column(blocks.VALUE, records.skip, count)
        assert cells is not None
        values = blocks.encode_values(cells)
        columns, body = entries.encode_some(metadata, records.skip, count)
        value_crc = body_crc = None
    placed = blocks.place_values(values, count=count, first_id=first_id, body_crc=value_crc)
    entry = blocks.place(
        body,
        kind=blocks.METADATA,
        count=count,
        columns=columns,
        first_id=first_id,
        body_crc=body_crc,
        appended_ms=head.appended_ms,
        timestamp_ms=head.timestamp_ms,
        payload_bytes=len(values),
    )
    tx.put(keys.payload_block(first_id), placed)
    tx.put(keys.entry(log_id, offset + count - 1), entry)
    tx.change(keys.head(log_id), RecordsAppended(count, len(values) + len(body), at_ms))


def _check_owner(owner: str, epoch: int) -> None:
    check_name(owner, "store")
    check_integer("an epoch", epoch)


def _end_moved(command: c.AdoptParcel | c.AdoptOwner, end: int) -> EndMoved:
    return EndMoved(
        f"log {command.log!r} ends at {end}, not at {command.expect_end}",
        log=command.log,
        expected=command.expect_end,
        end=end,
    )


def fenced(head: Head) -> Fenced:
    """Return the error for a peer that does not know the log's current owner."""
    return Fenced(
        f"log {head.name!r} has changed hands: it is at epoch {head.epoch}",
        epoch=head.epoch,
        log=head.name,
    )
