"""The schema of a log: an entry of its metadata, and so part of every copy, fork and backup.

The entry holds all versions, so that a sync takes over one history or the other, never parts of both. A
partitioned log has the entry in each partition, because the versions begin at offsets of the partition,
and because an append then looks at its own log alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import CorruptionError, InvalidInput, TooLarge
from millstream.log.model.metadata import SCHEMA_KEY, Meta, MetadataState
from millstream.schema.history import HISTORY_BYTES_MAX, SchemaVersion
from millstream.schema.model import check_schema


def versions_in(metadata: MetadataState) -> list[SchemaVersion]:
    """Return the versions of a log's schema; empty without a schema."""
    meta = metadata.entries.get(SCHEMA_KEY)
    return decoded(meta) if meta is not None and meta.present else []


def decoded(meta: Meta) -> list[SchemaVersion]:
    """Return the versions in an entry."""
    try:
        return msgspec.convert(meta.value, list[SchemaVersion])
    except (msgspec.ValidationError, RecursionError) as error:
        raise CorruptionError(
            f"the schema in a log's metadata cannot be read: {error}", what="schema"
        ) from error


def encoded(versions: list[SchemaVersion]) -> Any:
    """Return the value of the entry."""
    return msgspec.to_builtins(versions)


def check_entry(meta: Meta) -> None:
    """Refuse an entry that no Millstream store would have written."""
    try:
        versions = decoded(meta)
    except CorruptionError as error:
        raise InvalidInput(f"the schema of a log cannot be read: {error.message}") from error
    numbers = [version.version for version in versions]
    if not versions or numbers != sorted(set(numbers)):
        raise InvalidInput(f"the versions of a schema ascend, and are not {numbers!r:.100}")
    size = len(msgspec.json.encode(versions))
    if size > HISTORY_BYTES_MAX:
        raise TooLarge(
            f"the schemas of a log have {size:,} bytes; the limit is {HISTORY_BYTES_MAX:,}",
            size=size,
            limit=HISTORY_BYTES_MAX,
        )
    for version in versions:
        check_schema(version.schema)
