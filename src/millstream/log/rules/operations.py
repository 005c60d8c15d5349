"""The rules of logs: functions of a transaction and a command.

A rule checks first and changes then. The head of a log holds its state. Rules read neither clocks nor
disks, except through the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import (
    CorruptionError,
    EndMoved,
    InvalidInput,
    Locked,
    MetadataConflict,
    NotFound,
    NotOwner,
    OutOfRange,
    TooLarge,
)
from millstream.format import block, entries, keys
from millstream.format.packing import Batch, Single
from millstream.limits import MESSAGE_ID_MAX
from millstream.log import commands as c
from millstream.log.model.head import (
    Created,
    Deleted,
    Head,
    HoldTaken,
    LogNamed,
    LogTruncated,
    Name,
    RecordsAppended,
    Retained,
    Touched,
)
from millstream.log.model.metadata import SCHEMA_KEY, Meta, MetadataState, Set, check_limits
from millstream.log.model.names import NUMBER_MAX, PRIVATE, check_integer, check_name
from millstream.log.model.partitioned import (
    check_plain,
    count_partitions,
    every_partition,
    first_of,
    is_partitioned,
    partitions_of,
)
from millstream.log.model.producer import Produced, ProducerState
from millstream.log.reading.damage import of_log
from millstream.log.rules.ancestry import forget_marks
from millstream.log.rules.schema_check import check_records
from millstream.partitioning import PARTITIONS_KEY, partition_of
from millstream.record import Producer, Retention, moment
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.instance import instance_id
from millstream.store.state.view import View


def find_log(view: WriteTransaction | View, name: str) -> tuple[int, Head] | None:
    """Return the id and the head of a log, or None; an error about damage carries the name."""
    log_id = view.entity(keys.log_name(name), Name).log_id
    try:
        return (log_id, view.entity(keys.head(log_id), Head)) if log_id else None
    except CorruptionError as error:
        raise of_log(error, name) from error


def make_log(tx: WriteTransaction, name: str) -> tuple[int, Head]:
    """Return the id and the head of a log, which is made if it is missing."""
    log = find_log(tx, name)
    if log is not None:
        return log
    check_plain(tx, name)
    log_id, head = new_log(tx, name)
    if not name.startswith(PRIVATE) and (rules := first_retention(tx)):
        tx.change(keys.head(log_id), Retained(rules))
    return log_id, head


def first_retention(tx: WriteTransaction) -> Retention:
    """Return the retention of a new log."""
    return Retention(age_ms=tx.limits.log_age_ms or None)


def new_log(tx: WriteTransaction, name: str) -> tuple[int, Head]:
    """Make an empty log with an unused name."""
    log_id = tx.take_entity_id()
    tx.change(keys.log_name(name), LogNamed(log_id))
    tx.change(keys.head(log_id), Created(name, tx.wall_ms))
    return log_id, tx.entity(keys.head(log_id), Head)


def need_log(view: WriteTransaction | View, name: str) -> tuple[int, Head]:
    """Return the id and the head of a log; raise if it is missing."""
    log = find_log(view, name)
    if log is None:
        if count := count_partitions(view, name):
            raise is_partitioned(name, count)
        raise NotFound(f"there is no log {name!r}", name=name)
    return log


def create_log(tx: WriteTransaction, command: c.CreateLog) -> bool:
    """Make an empty log; return False if the log exists."""
    if find_log(tx, command.log) is not None or count_partitions(tx, command.log):
        return False
    make_log(tx, command.log)
    return True


def append(tx: WriteTransaction, command: c.Append) -> int:
    """Add records at the end; return the offset of the first record."""
    name, expected, producer = command.log, command.expect_end, command.producer
    log = find_log(tx, name)
    end = log[1].end if log else 0
    records = command.records
    count = 1 if isinstance(records, Single) else records.count
    if producer is not None:
        _check_producer(producer)
        if log is not None:
            repeated = _repeated(tx, log[0], producer, count)
            if repeated is not None:
                return repeated
    if expected is not None and end != expected:
        raise EndMoved(
            f"log {name!r} ends at {end}, not at {expected}", log=name, expected=expected, end=end
        )
    if end + count > MESSAGE_ID_MAX:
        raise TooLarge(
            f"log {name!r} ends at {end}, and offsets go up to 2^63 - 1: no {count:,} records fit",
            size=end + count,
            limit=MESSAGE_ID_MAX,
        )
    log_id, head = log or make_log(tx, name)
    if head.owner:
        raise not_owner(head)
    token = command.token
    if token or head.token:
        check_free(tx, head, token)
        if token:
            _hold(tx, log_id, token)
    if log is not None:
        check_records(tx, log_id, head, [records])
    if producer is not None:
        kept_max, idle_ms = tx.limits.producer_sequences_kept, tx.limits.producer_idle_ms
        noted = Produced(
            producer.epoch, producer.sequence, end, count, tx.store_ms, kept_max, idle_ms
        )
        tx.change(keys.producer(log_id, producer.name), noted)
    if isinstance(records, Single):
        size = put_singles(tx, log_id, end, [records])
    else:
        size = put_batch(tx, log_id, end, records)
    tx.change(keys.head(log_id), RecordsAppended(count, size, tx.wall_ms))
    return end


def not_owner(head: Head) -> NotOwner:
    """Return the error for an append to a copy: only the owner of a log may append."""
    return NotOwner(
        f"log {head.name!r} is a copy: it is written by the store {head.owner} (epoch {head.epoch}); "
        "append there, or take the log over (log.take_over, `millstream log owner --take-over`)",
        log=head.name,
        owner=head.owner,
        epoch=head.epoch,
    )


def _check_producer(producer: Producer) -> None:
    if not isinstance(producer, Producer):
        raise InvalidInput(f"a producer is a `Producer`, not {producer!r}")
    check_name(producer.name, "producer")
    check_integer("a producer's sequence", producer.sequence)
    check_integer("a producer's epoch", producer.epoch)


def _repeated(tx: WriteTransaction, log_id: int, producer: Producer, count: int) -> int | None:
    """Return the first offset of a repeated append; None for a new append."""
    state = tx.entity(keys.producer(log_id, producer.name), ProducerState)
    first_append = state.repeated(producer, now_ms=tx.store_ms)
    if first_append is None:
        return None
    first, before = first_append
    if before != count:
        raise InvalidInput(
            f"producer {producer.name!r} repeats sequence {producer.sequence} with "
            f"{count} records; the first time it had {before}"
        )
    return first


def put_singles(tx: WriteTransaction, log_id: int, offset: int, records: Sequence[Single]) -> int:
    """Store records as single entries; return their size."""
    size, message_id, wall_ms = 0, tx.take_ids(len(records)), tx.wall_ms
    rows: dict[bytes, bytes] = {}
    for record in records:
        timestamp_ms, value = record.timestamp_ms, record.value or b""
        entry = entries.encode_record(
            message_id,
            record.key,
            wall_ms if timestamp_ms is None else timestamp_ms,
            record.headers,
            wall_ms,
            is_null=record.value is None,
        )
        rows[keys.payload(message_id)] = value
        rows[keys.entry(log_id, offset)] = entry
        size += len(value) + len(entry) - entries.SINGLE_HEAD_BYTES
        message_id += 1
        offset += 1
    tx.put_all(rows)
    return size


def put_batch(tx: WriteTransaction, log_id: int, offset: int, batch: Batch) -> int:
    """Store a batch as a block; return its size."""
    first_id = tx.take_ids(batch.count)
    payload = block.place_values(
        batch.payload, count=batch.count, first_id=first_id, body_crc=batch.payload_crc
    )
    metadata = block.place(
        batch.metadata,
        kind=block.METADATA,
        count=batch.count,
        first_id=first_id,
        columns=batch.columns,
        body_crc=batch.metadata_crc,
        appended_ms=tx.wall_ms,
        timestamp_ms=tx.wall_ms if batch.timestamp_ms is None else batch.timestamp_ms,
        payload_bytes=len(batch.payload),
    )
    tx.put(keys.payload_block(first_id), payload)
    tx.put(keys.entry(log_id, offset + batch.count - 1), metadata)
    return len(batch.payload) + len(batch.metadata)


def truncate(tx: WriteTransaction, command: c.Truncate) -> int:
    """Move the start of a log forwards; past the end only with `past_end`."""
    log = find_log(tx, command.log)
    check_integer("an offset", command.before)
    if log is None:
        check_plain(tx, command.log)
    _check_within(command, 0 if log is None else log[1].end)
    before = 0 if log is None else log[1].start
    gone = truncate_log(tx, command)
    changed = log or find_log(tx, command.log)
    if changed is not None and changed[1].start > before:
        tx.change(keys.head(changed[0]), Touched(tx.wall_ms))
    return gone


def _check_within(command: c.Truncate, end: int) -> None:
    """Raise for an offset past the end without `past_end`, since skipped offsets never come back."""
    if command.before <= end:
        return
    if not command.past_end:
        raise OutOfRange(
            f"log {command.log!r} ends at {end}, and {command.before} lies past that: truncate it "
            f"before {end} to empty it, or say past_end to have it go on at {command.before}",
            position=command.before,
            end=end,
        )
    if command.before == NUMBER_MAX:
        raise InvalidInput(
            f"log {command.log!r} would have no offset left: the last one is {NUMBER_MAX - 1}",
            log=command.log,
        )


def truncate_log(tx: WriteTransaction, command: c.Truncate) -> int:
    """Truncate without a new time of change, for copies, which receive the time of their source."""
    log = find_log(tx, command.log)
    before = command.before
    check_integer("an offset", before)
    if log is None:
        if before <= 0:
            return 0
        log = make_log(tx, command.log)
    log_id, head = log
    if before <= head.start:
        return 0
    if before > head.end:
        if head.owner:
            raise not_owner(head)
        check_free(tx, head, "")
        forget_marks(tx, log_id)
    gone = min(before, head.end) - head.start
    tx.change(keys.head(log_id), LogTruncated(before))
    return gone


def delete_log(tx: WriteTransaction, command: c.DeleteLog) -> bool:
    """Forget a log with its cursors and metadata; the background deletes its bytes and marks.

    A partitioned log goes with all its partitions, including uncounted partitions.
    """
    partition = partition_of(command.log)
    if partition is not None and partition[1] < count_partitions(tx, partition[0]):
        raise InvalidInput(
            f"{command.log!r} is partition {partition[1]} of log {partition[0]!r}, which cannot lack one: "
            f"delete {partition[0]!r}, and all of its partitions go",
            log=command.log,
        )
    if find_log(tx, command.log) is not None:
        return _forget(tx, command.log)
    gone = [_forget(tx, name) for name in every_partition(tx.view, command.log)]
    return any(gone)


def _forget(tx: WriteTransaction, name: str) -> bool:
    log = find_log(tx, name)
    if log is None:
        return False
    log_id, head = log
    check_free(tx, head, "")
    for prefix in (keys.cursor(log_id, ""), keys.producer(log_id, "")):
        for key in tx.view.find_all(*keys.range_of(prefix)):
            tx.change(key, None)
    tx.change(keys.metadata(log_id), None)
    tx.change(keys.log_name(name), None)
    tx.change(keys.head(log_id), Deleted())
    return True


def set_metadata(tx: WriteTransaction, command: c.SetMetadata) -> None:
    """Set or delete a metadata entry."""
    if command.key == PARTITIONS_KEY:
        raise InvalidInput(
            f"the metadata entry {PARTITIONS_KEY!r} is the store's own: `add_partitions`, or `millstream "
            "log create --grow`, alters how many partitions a log has"
        )
    if command.key == SCHEMA_KEY:
        raise InvalidInput(
            f"the metadata entry {SCHEMA_KEY!r} is the store's own: `set_schema`, or `millstream schema "
            "set`, alters the schema of a log"
        )
    log_id, _ = make_log(tx, first_of(tx, command.log))
    key = keys.metadata(log_id)
    state = tx.entity(key, MetadataState)
    meta = state.entries.get(command.key)
    current = meta.value if meta is not None and meta.present else None
    if command.compare and current != command.expect:
        raise MetadataConflict(
            f"metadata {command.key!r} of log {command.log!r} is {current!r}, "
            f"not {command.expect!r}",
            key=command.key,
            found=current,
        )
    after = state.values()
    if command.delete:
        after.pop(command.key, None)
    else:
        after[command.key] = command.value
    check_limits(command.log, after, tx.limits)
    stamp = state.next_stamp(wall_ms=tx.wall_ms, writer=instance_id(tx))
    tx.change(key, Set(command.key, Meta(stamp, not command.delete, command.value)))
    tx.change(keys.head(log_id), Touched(tx.wall_ms))


def set_retention(tx: WriteTransaction, command: c.SetRetention) -> None:
    """Set the retention of a log, or of all its partitions."""
    rules = command.retention
    for name, limit in (("age", rules.age_ms), ("bytes", rules.bytes), ("count", rules.count)):
        if limit is not None:
            check_integer(f"retention by {name}", limit)
    if type(rules.consumed) is not bool:
        raise InvalidInput(f"consumed is True or False, not {rules.consumed!r}")
    for name in partitions_of(tx, command.log) or [command.log]:
        log_id, _ = make_log(tx, name)
        tx.change(keys.head(log_id), Retained(rules))


def take_log(tx: WriteTransaction, command: c.TakeLog) -> int:
    """Hold a log exclusively for a while, or prolong the hold."""
    log_id, head = make_log(tx, command.log)
    if head.owner:
        raise not_owner(head)
    check_free(tx, head, head.token and command.token)
    _hold(tx, log_id, command.token)
    return head.end


def _hold(tx: WriteTransaction, log_id: int, token: str) -> None:
    until_ms = tx.store_ms + tx.limits.stage_lease_ms
    tx.change(keys.head(log_id), HoldTaken(token, until_ms))


def free_log(tx: WriteTransaction, command: c.FreeLog) -> None:
    """Release the hold of a handle; holds of other handles stay."""
    log = find_log(tx, command.log)
    if log is None:
        return
    if log[1].token == command.token:
        tx.change(keys.head(log[0]), HoldTaken("", 0))
    producer = keys.producer(log[0], command.token)
    if tx.entity(producer, ProducerState).exists():
        tx.change(producer, None)  # the handle is gone, and repeats no commit


def check_free(tx: WriteTransaction, head: Head, token: str) -> None:
    """Raise unless the token holds the log or the log is free; remove an expired hold."""
    if head.token == token:
        return
    if not head.token:
        raise Locked(
            f"the hold on log {head.name!r} ran out and another writer has used the log; stage again",
            log=head.name,
        )
    if head.until_ms > tx.store_ms:
        raise Locked(
            f"log {head.name!r} is held by a staging handle, for up to "
            f"{(head.until_ms - tx.store_ms) / 1000:.0f} s unless it goes on",
            log=head.name,
            until=moment(tx.wall_ms + head.until_ms - tx.store_ms),
        )
    log_id = tx.entity(keys.log_name(head.name), Name).log_id
    tx.change(keys.head(log_id), HoldTaken("", 0))
