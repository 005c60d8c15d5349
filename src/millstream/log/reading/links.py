"""Links: the payload that each entry of a log needs, for the scrub of the store.

An entry and its payload are written and deleted in one commit. So an entry without its payload is
damage, unless an unfolded commit has the payload.
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.log.model.head import Head
from millstream.store.links import Links
from millstream.store.state.view import View

_ENTRY = keys.prefix(keys.ENTRY)


def payload_of(key: bytes, value: bytes) -> bytes | None:
    """Return the key of the payload of an entry; None for a row that is no entry."""
    if not key.startswith(_ENTRY):
        return None
    try:
        if blocks.is_block(value):
            header = blocks.decode_header(value, kind=blocks.METADATA)
            return keys.payload_block(header.first_id)
        return keys.payload(entries.single_id(value))
    except CorruptionError:
        return None  # the checksum of the row is right: readers report other damage


def lost_payload(view: View, entry: bytes, payload: bytes) -> str:
    """Describe the loss if the payload of a readable entry is missing; empty without a loss."""
    try:
        value = view.get(entry)
        if value is None or payload_of(entry, value) != payload or view.get(payload) is not None:
            return ""
        head = view.entity(keys.head(keys.pair(entry)[0]), Head)
        first, stop = entries.extent(entry, value)
    except CorruptionError:
        return ""  # the scrub reports a damaged row separately
    start = max(first, head.start)
    if head.deleted or start >= stop:
        return ""  # the entry is being deleted, or kept for queues, which report a loss
    hit = f"offset {start}" if stop == start + 1 else f"offsets {start} to {stop - 1}"
    return f"log {head.name!r}: the payload of the records at {hit} is gone"


LINKS = Links(payload_of, lost_payload)
