"""Metadata of a log between copies: handed out with its stamps, and joined by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import TooLarge
from millstream.format import keys
from millstream.log.metadata import TOMBSTONES_MAX, Meta, MetadataState, Set, check_limits
from millstream.log.operations import find_log, need_log
from millstream.replica.stamp import Entries, check_entries, join, news
from millstream.store.rows import View
from millstream.store.transaction import Transaction

if TYPE_CHECKING:
    from millstream.replica.commands import GetStampedMetadata


def adopt_metadata(tx: Transaction, log: str, entries: Entries) -> int:
    """Take over what counts of another copy's metadata; answers how many entries that were."""
    check_entries(entries)
    log_id, _ = need_log(tx, log)
    key = keys.metadata(log_id)
    own = tx.entity(key, MetadataState).entries
    found = news(own, entries)
    if not found:
        return 0
    _check_size(tx, log, join(own, found))
    for name, meta in sorted(found.items(), key=lambda item: (item[1].stamp, item[0])):
        tx.change(key, Set(name, meta))
    return len(found)


def _check_size(tx: Transaction, log: str, entries: dict[str, Meta]) -> None:
    values = {key: meta.value for key, meta in entries.items() if meta.present}
    deleted, most = len(entries) - len(values), 2 * TOMBSTONES_MAX
    if deleted > most:
        raise TooLarge(
            f"the metadata of log {log!r} would have {deleted:,} deleted entries; "
            f"the limit is {most:,}",
            size=deleted,
            limit=most,
        )
    check_limits(log, values, tx.limits)


def stamped_metadata(view: View, query: GetStampedMetadata) -> dict[str, Meta]:
    """Every entry with its stamp, deleted ones included; none if there is no such log."""
    found = find_log(view, query.log)
    if found is None:
        return {}
    return dict(view.entity(keys.metadata(found[0]), MetadataState).entries)
