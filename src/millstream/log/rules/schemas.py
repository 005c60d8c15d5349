"""The rules of schemas: a log gets a schema, or its schema another version.

A partitioned log has its schema in each partition, and a change reaches all of them in one commit. The
check of records is `schema_check`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.head import Touched
from millstream.log.model.metadata import SCHEMA_KEY, Meta, MetadataState, Set
from millstream.log.model.names import PRIVATE
from millstream.log.model.partitioned import first_of, partitions_of
from millstream.log.model.schemas import encoded, versions_in
from millstream.log.rules.operations import find_log, make_log, not_owner
from millstream.partitioning import partition_of
from millstream.record import moment
from millstream.schema.history import SchemaVersion, check_mode, with_schema
from millstream.schema.model import StructType
from millstream.schema.source import schema_of
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.instance import instance_id
from millstream.store.state.view import View


def set_schema(tx: WriteTransaction, command: c.SetSchema) -> SchemaVersion:
    """Give a log a schema, or another version of it; return the newest version."""
    _check_name(command.log)
    names = partitions_of(tx, command.log) or [command.log]
    return set_on_logs(tx, names, command.schema, mode=command.mode, force=command.force)


def set_on_logs(
    tx: WriteTransaction, names: Sequence[str], schema: StructType, *, mode: str, force: bool
) -> SchemaVersion:
    """Give several logs the same schema; return the newest version of the first log."""
    newest, checked = [], schema_of(schema)
    for name in names:
        log_id, head = make_log(tx, name)
        if head.owner:
            raise not_owner(head)
        before = versions_in(tx.entity(keys.metadata(log_id), MetadataState))
        after = with_schema(
            before,
            checked,
            log=name,
            mode=check_mode(mode),
            end=head.end,
            start=head.start,
            now=moment(tx.wall_ms),
            force=force,
        )
        if after != before:
            _store(tx, log_id, after)
        newest.append(after[-1])
    return newest[0]


def take_schema(tx: WriteTransaction, from_id: int, log_id: int) -> None:
    """Give a new partition the newest version of its log's schema."""
    versions = versions_in(tx.entity(keys.metadata(from_id), MetadataState))
    if versions:
        _store(tx, log_id, [replace(versions[-1], start=0)])


def delete_schema(tx: WriteTransaction, command: c.DeleteSchema) -> bool:
    """Forget the schema of a log with its versions."""
    _check_name(command.log)
    names = partitions_of(tx, command.log) or [command.log]
    return sum(delete_on_log(tx, name) for name in names) > 0


def delete_on_log(tx: WriteTransaction, name: str) -> bool:
    """Forget the schema of a single log; return False if the log has no schema."""
    log = find_log(tx, name)
    if log is None or not versions_in(tx.entity(keys.metadata(log[0]), MetadataState)):
        return False
    if log[1].owner:
        raise not_owner(log[1])
    _store(tx, log[0], None)
    return True


def get_schemas(view: View, query: c.GetSchemas) -> list[SchemaVersion]:
    """Return the versions of a log's schema; of a partitioned log, those of its first partition."""
    log = find_log(view, first_of(view, query.log))
    return [] if log is None else versions_in(view.entity(keys.metadata(log[0]), MetadataState))


def _check_name(name: str) -> None:
    if name.startswith(PRIVATE):
        raise InvalidInput(
            f"the log {name!r} belongs to a queue, a room or the store: give a queue its schema by the "
            "name of the queue",
            log=name,
        )
    if partition := partition_of(name):
        raise InvalidInput(
            f"{name!r} is a partition; all partitions have one schema: give it to log {partition[0]!r}",
            log=name,
        )


def _store(tx: WriteTransaction, log_id: int, versions: list[SchemaVersion] | None) -> None:
    key = keys.metadata(log_id)
    stamp = tx.entity(key, MetadataState).next_stamp(wall_ms=tx.wall_ms, writer=instance_id(tx))
    is_present = versions is not None
    meta = Meta(stamp, is_present, encoded(versions) if versions is not None else None)
    tx.change(key, Set(SCHEMA_KEY, meta))
    tx.change(keys.head(log_id), Touched(tx.wall_ms))
