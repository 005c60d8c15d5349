"""Damage: which records of which log cannot be read, and where what follows them begins.

Every error about damaged records carries `log`, `offset` (the first that cannot be read) and `stop`
(the first behind the damage).
"""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import entries, keys
from millstream.log.rules.ancestry import fork_of
from millstream.store.state.view import Rows


def gone(name: str, offset: int, stop: int | None) -> CorruptionError:
    """The error for records that are missing although the log says that they exist."""
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
    """The error for damage, with the log and the records that it hits."""
    if "log" in error.data:
        return error
    hit = _records(offset, stop, "is damaged", "are damaged")
    return CorruptionError(
        f"log {name!r}: {hit}: {error}; {_advice(stop)}",
        **{**error.data, "log": name, "offset": offset, "stop": stop},
    )


def of_log(error: CorruptionError, name: str) -> CorruptionError:
    """The error for damage of what a whole log is known by, with its name."""
    return CorruptionError(f"log {name!r}: {error.message}", **error.data | {"name": name})


def _records(offset: int, stop: int, one: str, many: str) -> str:
    if stop == offset + 1:
        return f"the record at offset {offset} {one}"
    return f"the records at offsets {offset} to {stop - 1} {many}"


def _advice(stop: int) -> str:
    return f"what follows can be read from offset {stop} on; run `millstream doctor`"


def next_entry(
    view: Rows,
    log_id: int,
    error: CorruptionError | None,
    position: int,
    stop: int,
) -> int:
    """Where what follows begins: behind the entry that covers a position, or with the next one.

    The key of a damaged entry says where it ends, though nothing says where it began. The error may
    be of an entry of the log that this one was forked from.
    """
    found = _next_of(view, log_id, position)
    key = _entry_key(error)
    parent_id = log_id if key is None else keys.pair(key)[0]
    if parent_id != log_id:
        fork = fork_of(view, log_id)
        ends = [] if fork is None else [fork.point]
        near = _next_of(view, parent_id, position)
        found += [min(one, *ends) for one in near] if ends else near
    return min(found, default=max(stop, position + 1))


def _next_of(view: Rows, log_id: int, position: int) -> list[int]:
    start, (_, last) = keys.entry(log_id, position), keys.of_log(keys.ENTRY, log_id)
    held = view.overlay.after(start)
    near = [] if held is None else [held]
    found: list[int] = []
    try:
        near += view.snapshot.scan(start, last, limit=1)
    except CorruptionError as error:
        key = _entry_key(error)
        found += [] if key is None else [keys.pair(key)[1] + 1]
    for row in near:
        first, stop = entries.extent(*row)
        found.append(first if first > position else stop)
    return found


def _entry_key(error: CorruptionError | None) -> bytes | None:
    """The key of the damaged entry that an error is about."""
    where = "" if error is None else str(error.data.get("where", ""))
    return bytes.fromhex(where) if where.startswith(keys.prefix(keys.ENTRY).hex()) else None
