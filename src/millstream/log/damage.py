"""Damage: which records of which log cannot be read, and where what follows them begins.

Every error about damaged records carries `log`, `offset` (the first that cannot be read) and `stop`
(the first behind the damage).
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.store.engine import Snapshot
from millstream.store.overlay import Overlay


def gone(name: str, offset: int, stop: int | None) -> CorruptionError:
    """The damage of records that should be there, and are not."""
    behind = offset + 1 if stop is None else stop
    return CorruptionError(
        f"log {name!r}: {_records(offset, behind, 'is gone', 'are gone')}; {_advice(behind)}",
        what="log entry",
        where=offset,
        log=name,
        offset=offset,
        stop=behind,
    )


def located(error: CorruptionError, name: str, offset: int, stop: int) -> CorruptionError:
    """The same damage, saying which records of which log it hits."""
    if "log" in error.data:
        return error
    hit = _records(offset, stop, "is damaged", "are damaged")
    return CorruptionError(
        f"log {name!r}: {hit}: {error}; {_advice(stop)}",
        **{**error.data, "log": name, "offset": offset, "stop": stop},
    )


def _records(offset: int, stop: int, one: str, many: str) -> str:
    if stop == offset + 1:
        return f"the record at offset {offset} {one}"
    return f"the records at offsets {offset} to {stop - 1} {many}"


def _advice(stop: int) -> str:
    return f"what follows can be read from offset {stop} on; run `millstream doctor`"


def next_entry(
    overlay: Overlay,
    snapshot: Snapshot,
    log_id: int,
    error: CorruptionError | None,
    position: int,
    stop: int,
) -> int:
    """Where the next entry behind a position begins, which ends what a damaged one hides.

    The error may be of an entry of the log that this one was forked from.
    """
    of = {log_id}
    key = _entry_key(error)
    if key is not None:
        of.add(keys.entry_position(key)[0])
    found: list[int] = []
    for one in of:
        first, (_, last) = keys.entry(one, position + 1), keys.of_log(keys.ENTRY, one)
        held = overlay.after(first)
        near = [] if held is None else [held[0]]
        try:
            near += [row[0] for row in snapshot.scan(first, last, limit=1)]
        except CorruptionError as damaged:  # it ends the damage before it all the same
            behind = _entry_key(damaged)
            near += [] if behind is None else [behind]
        found += [keys.entry_position(one)[1] for one in near]
    return min(found, default=max(stop, position + 1))


def _entry_key(error: CorruptionError | None) -> bytes | None:
    """The key of the damaged entry that an error tells of."""
    where = "" if error is None else str(error.data.get("where", ""))
    return bytes.fromhex(where) if where.startswith(keys.prefix(keys.ENTRY).hex()) else None
