"""Bounds: a command from elsewhere, checked as the nouns check what their callers hand in.

Commands that were decoded from a frame have the right types, and nothing more. Here names are
checked, numbers, records and JSON; and what would wait or answer without end is cut to size. The
core does so for whatever it is asked, but for records and JSON: those may be large, and are checked
where they came in packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from millstream.command import Command, Transact, waits
from millstream.errors import InvalidInput, TooLarge
from millstream.format.checking import check_packed
from millstream.format.packing import Batch, Single, check_json
from millstream.limits import Limits
from millstream.log import commands as logs
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import NUMBER_MAX, check_integer, check_name
from millstream.queue import commands as queues
from millstream.queue.model.spec import QueueSpec
from millstream.replica.commands import Parcel
from millstream.rooms.model import RoomMessage
from millstream.rooms.settings import RoomSettings
from millstream.server.settings import Settings

PAGE_MAX = 10_000
"""Names in one answer to a listing, and messages in one peek; clients ask again for more."""

NAMES_KNOWN = 4_096
"""Names that are remembered as checked: most requests name what others have named before."""

RUNS_MAX = 100_000
"""Claims that one command may name."""

_RUNS = ("claims", "acked")
_LEASE = "lease_ms"
_CHECKED_ELSEWHERE = (Single, Batch, RecordBlock, Parcel, QueueSpec, RoomSettings, RoomMessage)
"""Values that are checked as a whole: packed records by `check_records`, others by their rules."""

_WITH_RECORDS = (logs.Append, queues.PutMessages)

Check = Callable[[str, Any], object]
"""Refuses a value of a field, by the field's name."""


def check_command(command: Command[Any]) -> None:
    """Refuse what no noun would have built; its records apart, see `check_records`."""
    if isinstance(command, Transact):
        for step in command.steps:
            check_command(step)
        return
    for name, check in _checks(type(command)):
        found = getattr(command, name)
        if found is None:
            continue
        if check is check_integer and type(found) is int and 0 <= found <= NUMBER_MAX:
            continue  # without a call: a claim has four numbers
        check(name, found)


@cache
def _checks(kind: type[Struct]) -> tuple[tuple[str, Check], ...]:
    """How the fields of a command, or of a value in one, are checked: by their types.

    Every integer has bounds, also in fields of new commands: a declaration can only widen them.
    """
    traits = kind.traits if issubclass(kind, Command) else None
    names = () if traits is None else (*traits.names, *_rights_on(traits.needs))
    hints = get_type_hints(kind, include_extras=True)
    found: list[tuple[str, Check]] = []
    for field in kind.__struct_fields__:
        check = _check_name if field in names else _check_of(hints[field], field)
        if check is not None:
            found.append((field, check))
    return tuple(found)


def _rights_on(needs: Any) -> tuple[str, ...]:
    return () if isinstance(needs, str) else tuple(right.field for right in needs)


def _check_of(hint: Any, field: str) -> Check | None:
    """How a value of a type is checked; None if its type says enough."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _check_signed if "signed" in arguments[1:] else _check_of(arguments[0], field)
    if origin in (Union, UnionType):
        kept = [one for one in arguments if one is not NoneType]
        return _check_of(kept[0], field) if len(kept) == 1 else _check_either(kept, field)
    if hint is int:
        return _check_lease if field == _LEASE else check_integer
    if hint is float:
        return _check_finite
    if origin is list and field in _RUNS:
        return _check_runs
    if origin in (list, tuple):
        return _check_all(_check_of(arguments[0], field))
    if origin is dict:
        check = _check_all(_check_of(arguments[1], field))
        return None if check is None else lambda name, found: check(name, found.values())
    if isinstance(hint, type) and issubclass(hint, Struct) and hint not in _CHECKED_ELSEWHERE:
        return _check_fields if _checks(hint) else None
    return None


def _check_either(hints: list[Any], field: str) -> Check | None:
    """Of a union, what the value's own type asks for."""
    checks = {one: _check_of(one, field) for one in hints if isinstance(one, type)}
    if not any(checks.values()):
        return None

    def check(name: str, value: Any) -> None:
        found = checks.get(type(value))
        if found is not None:
            found(name, value)

    return check


def _check_all(each: Check | None) -> Check | None:
    if each is None:
        return None

    def check(name: str, values: Any) -> None:
        for value in values:
            if value is not None:
                each(name, value)

    return check


def _check_fields(name: str, value: Struct) -> None:
    for field, check in _checks(type(value)):
        if (found := getattr(value, field)) is not None:
            check(f"{name}.{field}", found)


@lru_cache(maxsize=NAMES_KNOWN)
def _check_name(name: str, value: str) -> None:
    check_name(value, name)


def _check_signed(name: str, value: int) -> None:
    if not -NUMBER_MAX - 1 <= value <= NUMBER_MAX:
        raise InvalidInput(f"{name} is a 64-bit integer, not {value!r}")


def _check_lease(name: str, value: int) -> None:
    """Refuse a lease that is over at once, also where there is nothing to claim by it."""
    if check_integer(name, value) < 1:
        raise InvalidInput(f"{name} is at least 1, not {value}; leave it out for the queue's own")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise InvalidInput(f"{name} is a finite number, not {value!r}")


def check_records(command: Command[Any], limits: Limits) -> None:
    """Refuse records and values that were packed elsewhere, and could not have been packed here."""
    if isinstance(command, _WITH_RECORDS):
        check_packed(command.records, limits)
    elif isinstance(command, Transact):
        for step in command.steps:
            check_records(step, limits)
    elif isinstance(command, queues.ReplaceFailed):
        check_packed(command.record, limits)
    elif isinstance(command, logs.SetMetadata):
        check_json(command.value, bytes_max=limits.metadata_bytes_max)
        check_json(command.expect, bytes_max=limits.metadata_bytes_max)


def bounded(command: Command[Any], settings: Settings, limits: Limits) -> Command[Any]:
    """The command, with its wait and its answer within what a server gives."""
    traits, bounds = command.traits, {}
    if traits.waits is not None and waits(command):
        bounds[traits.waits.field] = settings.wait_ms_max
    if traits.bytes:
        bounds[traits.bytes] = limits.read_bytes_max
    if traits.page:
        bounds[traits.page] = PAGE_MAX
    if not bounds:
        return command
    changes = {field: _at_most(getattr(command, field), most) for field, most in bounds.items()}
    return replace(command, **changes)


def _check_runs(name: str, runs: list[queues.Run | int]) -> None:
    """Bound the claims in runs, since each is looked at: a run may name any number of them."""
    total = 0
    for run in runs:
        for number in (run,) if isinstance(run, int) else run:
            check_integer("a claim's number", number)
        total += 1 if isinstance(run, int) else run[1]
    if total > RUNS_MAX:
        raise TooLarge(f"{total:,} claims; the limit is {RUNS_MAX:,}", size=total, limit=RUNS_MAX)


def _at_most(asked: int | None, most: int) -> int:
    return most if asked is None else max(0, min(asked, most))
