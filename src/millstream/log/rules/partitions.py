"""The rules of partitioned logs: creation and growth."""

from __future__ import annotations

from millstream.errors import AlreadyExists, InvalidInput, NotFound, Partitioned
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.head import Head, Name, Retained
from millstream.log.model.metadata import Meta, MetadataState, Set
from millstream.log.model.names import check_name
from millstream.log.model.partitioned import check_whole_name, count_partitions
from millstream.log.rules.operations import find_log, first_retention, need_log, new_log, not_owner
from millstream.log.rules.schemas import take_schema
from millstream.partitioning import PARTITION, PARTITIONS_KEY, PARTITIONS_MAX, partition_name
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.instance import instance_id


def create_partitions(tx: WriteTransaction, command: c.CreatePartitions) -> int:
    """Make a partitioned log, or raise its number of partitions; missing partitions are made."""
    log, new_count = check_name(command.log), command.partitions
    if type(new_count) is not int or not 1 <= new_count <= PARTITIONS_MAX:
        raise InvalidInput(f"a log has 1 to {PARTITIONS_MAX:,} partitions, not {new_count!r}")
    count = count_partitions(tx, log)
    if count == new_count and not command.grows:
        return count
    retention = first_retention(tx)
    if not count:
        _check_new(tx, command)
    elif not command.grows or new_count < count:
        raise _other_number(log, count, new_count)
    else:
        head = need_log(tx, partition_name(log, 0))[1]
        if head.owner:
            raise not_owner(head)
        retention = head.retention
    for number in range(new_count):
        if find_log(tx, partition_name(log, number)) is None:
            log_id, _ = new_log(tx, partition_name(log, number))
            if retention:
                tx.change(keys.head(log_id), Retained(retention))
            if count:
                take_schema(tx, need_log(tx, partition_name(log, 0))[0], log_id)
    if count != new_count:
        _note(tx, log, new_count)
    return new_count


def _check_new(tx: WriteTransaction, command: c.CreatePartitions) -> None:
    log = command.log
    if command.grows:
        raise NotFound(f"there is no log {log!r} with partitions", name=log)
    check_whole_name(log)
    if find_log(tx, log) is not None:
        raise AlreadyExists(
            f"there is a log {log!r} without partitions: append its records to a new log with "
            "partitions, under another name",
            name=log,
        )
    partition_names = tx.view.find(*keys.range_of(keys.log_name(log + PARTITION)), limit=1)
    if partition_names:
        named = tx.entity(keys.head(tx.entity(partition_names[0], Name).log_id), Head).name
        raise AlreadyExists(
            f"there is a copy of the partition {named!r}, but not of how many there are: sync it "
            f"again, delete it, or choose another name",
            name=named,
        )


def _other_number(log: str, count: int, new_count: int) -> Partitioned:
    return Partitioned(
        f"log {log!r} has {count} partitions, not {new_count}: say partitions={count}. Their number "
        "can be raised (`add_partitions`, `millstream log create --grow`), never lowered",
        log=log,
        partitions=count,
    )


def _note(tx: WriteTransaction, log: str, count: int) -> None:
    key = keys.metadata(need_log(tx, partition_name(log, 0))[0])
    stamp = tx.entity(key, MetadataState).next_stamp(wall_ms=tx.wall_ms, writer=instance_id(tx))
    tx.change(key, Set(PARTITIONS_KEY, Meta(stamp, True, count)))
