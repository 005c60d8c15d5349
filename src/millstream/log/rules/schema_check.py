"""The check of appends against the schema of their log.

Each rule that adds records of users calls `check_records`, under the lock that orders appends and
changes of the schema. So no record is stored that was checked against a version that is no longer the
newest. Records of copies were checked by their owner.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.format import block, keys
from millstream.format.cells import Cells
from millstream.format.packing import Batch, Single
from millstream.log.model.head import Head
from millstream.log.model.metadata import SCHEMA_KEY, Meta, MetadataState
from millstream.log.model.schemas import decoded
from millstream.schema.history import SchemaMode
from millstream.schema.validation import Validator, validator_of
from millstream.store.commit.transaction import WriteTransaction

_LOGGER = logging.getLogger("millstream.schema")


class _Check(Struct, frozen=True):
    """How the records of a log are checked now."""

    meta: Meta
    """The metadata from which the check was made; changed metadata need a new check."""
    version: int
    mode: SchemaMode
    validator: Validator


class Checks:
    """The checks in use, by log; in memory, made from metadata at the first append."""

    LOGS_MAX = 10_000

    def __init__(self) -> None:
        self._by_log: dict[int, _Check] = {}
        self.misfits: dict[str, int] = {}
        """How many records did not fit and were stored, by log, since the store was opened."""

    def of(self, log_id: int, meta: Meta) -> _Check:
        """Return the check of a log with this entry."""
        check = self._by_log.get(log_id)
        if check is None or check.meta is not meta:
            newest = decoded(meta)[-1]
            if len(self._by_log) >= self.LOGS_MAX:
                self._by_log.clear()
            check = _Check(meta, newest.version, newest.mode, validator_of(newest.schema))
            self._by_log[log_id] = check
        return check


def check_records(
    tx: WriteTransaction, log_id: int, head: Head, records: Sequence[Single | Batch]
) -> None:
    """Raise if the log has a schema and a record does not fit it; in the mode `warn`, count it.

    A log without a schema pays one lookup per append or batch.
    """
    meta = tx.entity(keys.metadata(log_id), MetadataState).entries.get(SCHEMA_KEY)
    if meta is None or not meta.present:
        return
    values = (
        _values_of(records[0])
        if len(records) == 1
        else [value for each in records for value in _values_of(each)]
    )
    check_values(tx, log_id, head, meta, values)


def check_values(
    tx: WriteTransaction, log_id: int, head: Head, meta: Meta, values: Sequence[bytes | None]
) -> None:
    """Check values against the newest version in an entry of a log's metadata, as `check_records` does."""
    checks = tx.state.memory.of(Checks)
    check = checks.of(log_id, meta)
    fault = check.validator.fault(values)
    if fault is None:
        return
    if check.mode == "enforce":
        number = f" {fault.at + 1} of {len(values):,}" if len(values) > 1 else ""
        raise InvalidInput(
            f"record{number} does not fit the schema of log {head.name!r} (version {check.version}): "
            f"{fault}. Nothing was stored",
            log=head.name,
            version=check.version,
            field=fault.path,
            expected=fault.expected,
            given=fault.given,
            index=fault.at,
        )
    count = sum(check.validator.fault([value]) is not None for value in values)
    checks.misfits[head.name] = checks.misfits.get(head.name, 0) + count
    _LOGGER.warning(
        "schema_misfit log=%r version=%d records=%d field=%r expected=%r",
        head.name,
        check.version,
        count,
        fault.path,
        fault.expected,
    )


def _values_of(records: Single | Batch) -> Sequence[bytes | None]:
    """Return the value of each record; None for null."""
    if isinstance(records, Single):
        return [records.value]
    values = Cells(records.payload, 0, records.count).cut(0, records.count)
    if not records.columns & block.VALUE_VALIDITY:
        return values
    placed = block.place(
        records.metadata,
        kind=block.METADATA,
        count=records.count,
        columns=records.columns,
        body_crc=records.metadata_crc,
    )
    return block.nulled(values, block.Block(placed, kind=block.METADATA, trusted=True).valid())
