"""The operation of an append, and single records of several callers added to a log as one append.

Each caller gets the offset of its own record. Only plain appends are joined: appends to a log that is
held, written elsewhere or nearly full run one by one, by `operations.append`. One by one, appends of
32 coroutines take 49 % more processor time (2026-11).
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.format import block, keys
from millstream.format.packing import Single, batch_of
from millstream.limits import MESSAGE_ID_MAX
from millstream.log.commands import Append
from millstream.log.model.head import RecordsAppended
from millstream.log.rules.guards import GuardedRule
from millstream.log.rules.operations import append, find_log, make_log, put_batch, put_singles
from millstream.log.rules.schema_check import check_records
from millstream.store.commit.transaction import WriteTransaction

BLOCK_RECORDS_MIN = 16
"""Fewer records are stored as single entries, which the fold joins with their neighbours; the fold never
joins blocks."""

BYTES_MAX = 256 * 1024
"""The most bytes of values that are joined, because a block is read as a unit."""


class Appending:
    """The operation of an append; appends of several callers to one log are made as one.

    Only plain appends are: an append that expects an end, names a producer, holds the log or meets a
    guard runs alone.
    """

    __slots__ = ("_rule", "command", "joins")

    order = 0
    """Appends run before the other ordered operations of their group, such as claims."""

    def __init__(self, rule: GuardedRule[int], command: Append) -> None:
        self._rule = rule
        self.command = command
        plain = (
            type(command.records) is Single
            and command.expect_end is None
            and command.producer is None
            and not command.token
            and not command.log.startswith(rule.prefixes)
        )
        self.joins = command.log if plain else None

    @property
    def appends_to(self) -> str:
        """The name of the log; listeners of a group ask for it."""
        return self.command.log

    def __call__(self, tx: WriteTransaction) -> int:
        """Append for this caller alone."""
        return self._rule(tx, self.command) if self.joins is None else append(tx, self.command)

    def run_all(self, tx: WriteTransaction, operations: Sequence[Appending]) -> list[int] | None:
        """Append for several callers."""
        records = [operation.command.records for operation in operations]
        return append_together(tx, self.command.log, records)  # type: ignore[arg-type]


def append_together(tx: WriteTransaction, name: str, records: Sequence[Single]) -> list[int] | None:
    """Add records of several callers; return the offsets, or None to add the records of each caller alone."""
    values = [record.value or b"" for record in records]
    if sum(map(len, values)) > BYTES_MAX:
        return None
    log_id, head = find_log(tx, name) or make_log(tx, name)
    first, count = head.end, len(records)
    if head.owner or head.token or first + count > MESSAGE_ID_MAX:
        return None
    check_records(tx, log_id, head, records)
    put = put_singles if count < BLOCK_RECORDS_MIN else _put_block
    size = put(tx, log_id, first, records)
    tx.change(keys.head(log_id), RecordsAppended(count, size, tx.wall_ms))
    return list(range(first, first + count))


def _put_block(tx: WriteTransaction, log_id: int, offset: int, records: Sequence[Single]) -> int:
    wall_ms = tx.wall_ms
    timestamps = [record.timestamp_ms for record in records]
    record_keys = [record.key for record in records]
    headers = [record.headers for record in records]
    has_timestamps = timestamps.count(None) < len(timestamps)
    columns, metadata = block.encode_metadata(
        timestamps=[wall_ms if ms is None else ms for ms in timestamps] if has_timestamps else None,
        keys=record_keys if record_keys.count(None) < len(record_keys) else None,
        headers=headers if any(headers) else None,
        valid=[record.value is not None for record in records],
    )
    payload = block.encode_values([record.value or b"" for record in records])
    return put_batch(tx, log_id, offset, batch_of(len(records), payload, columns, metadata, None))
