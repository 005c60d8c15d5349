"""Errors for damaged records of a log, and the search for the next sound entry.

Every error about damaged records carries `log`, `offset` (the first damaged record) and `stop` (the
first offset behind the damage).
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.log.model.users import NO_END
from millstream.log.rules.ancestry import holders
from millstream.store.state.view import Rows


def gone(name: str, offset: int, stop: int | None) -> CorruptionError:
    """Return the error for records that are missing between the start and the end of a log."""
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
    """Return an error with the log and the offsets of the damaged records."""
    if "log" in error.data:
        return error
    hit = _records(offset, stop, "is damaged", "are damaged")
    return CorruptionError(
        f"log {name!r}: {hit}: {error}; {_advice(stop)}",
        **{**error.data, "log": name, "offset": offset, "stop": stop},
    )


def of_log(error: CorruptionError, name: str) -> CorruptionError:
    """Return the error for a damaged head or name of a log, with its name."""
    return CorruptionError(f"log {name!r}: {error.message}", **error.data | {"name": name})


def _records(offset: int, stop: int, singular: str, plural: str) -> str:
    if stop == offset + 1:
        return f"the record at offset {offset} {singular}"
    return f"the records at offsets {offset} to {stop - 1} {plural}"


def _advice(stop: int) -> str:
    return f"what follows can be read from offset {stop} on; run `millstream doctor`"


def next_entry(
    view: Rows,
    log_id: int,
    error: CorruptionError | None,
    position: int,
    stop: int,
) -> int:
    """Return the first offset behind the damage at a position.

    The key of a damaged entry tells its end, although its start is unknown. The error may concern an
    entry of an ancestor of a fork.
    """
    offsets = _next_of(view, log_id, position)
    key = _entry_key(error)
    holder_id = log_id if key is None else keys.pair(key)[0]
    if holder_id != log_id:
        below = dict(holders(view, log_id)).get(holder_id, NO_END)
        offsets += [min(offset, below) for offset in _next_of(view, holder_id, position)]
    return min(offsets, default=max(stop, position + 1))


def _next_of(view: Rows, log_id: int, position: int) -> list[int]:
    start, (_, last) = keys.entry(log_id, position), keys.of_log(keys.ENTRY, log_id)
    held = view.overlay.after(start)
    near = [] if held is None else [held]
    offsets: list[int] = []
    try:
        near += view.snapshot.scan(start, last, limit=1)
    except CorruptionError as error:
        key = _entry_key(error)
        offsets += [] if key is None else [keys.pair(key)[1] + 1]
    for row in near:
        first, stop = entries.extent(*row)
        offsets.append(first if first > position else stop)
    return offsets


def _entry_key(error: CorruptionError | None) -> bytes | None:
    """Return the key of the damaged entry of an error, or None."""
    where = "" if error is None else str(error.data.get("where", ""))
    return bytes.fromhex(where) if where.startswith(keys.prefix(keys.ENTRY).hex()) else None
