"""Bounds: checks of a client's command, as strict as the checks of the nouns.

A command that was decoded from a frame has the right types, and nothing more. This module checks
names, numbers, records and JSON, and cuts long waits and large answers to size. The admission checks
every command. Records and JSON may be large, so the protocol checks them where it decodes them.
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
from millstream.format.packing import Batch, Single, check_json
from millstream.format.record_checks import check_packed
from millstream.limits import Limits
from millstream.log import commands as logs
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import NUMBER_MAX, check_integer, check_name
from millstream.queue import commands as queues
from millstream.queue.model.spec import QueueSpec
from millstream.replica.commands import Parcel
from millstream.rooms.model import RoomMessage
from millstream.rooms.settings import RoomSettings
from millstream.schema.model import StructType
from millstream.server.settings import Settings

PAGE_MAX = 10_000
"""Names in one page of a listing, and messages in one peek; clients ask for the next page."""

NAMES_CACHED = 4_096
"""Names in the cache of checked names: most requests use names of earlier requests."""

RUNS_MAX = 100_000
"""Most claims in one command."""

_RUNS = ("claims", "acked")
_RESULTS = "results"
_LEASE = "lease_ms"
_CHECKED_ELSEWHERE = (
    *(Single, Batch, RecordBlock, Parcel, QueueSpec, RoomSettings, RoomMessage, StructType),
)
"""Types with checks of their own: `check_records` for packed records, the rules for the others."""

_WITH_RECORDS = (logs.Append, queues.PutMessages, queues.PutFresh, queues.PutReported)

Check = Callable[[str, Any], object]
"""Refuses a value of a field, by the field's name."""


def check_command(command: Command[Any]) -> None:
    """Refuse a command that no noun would have built; `check_records` checks its records."""
    if isinstance(command, Transact):
        for step in command.steps:
            check_command(step)
        return
    for name, check in _checks(type(command)):
        value = getattr(command, name)
        if value is None:
            continue
        if check is check_integer and type(value) is int and 0 <= value <= NUMBER_MAX:
            continue  # without a call: a claim has four numbers
        check(name, value)


@cache
def _checks(kind: type[Struct]) -> tuple[tuple[str, Check], ...]:
    """Return the checks for the fields of a command, or of a value in a command, by their types.

    Every integer has bounds, also in fields of new commands: a declaration can only widen bounds.
    """
    traits = kind.traits if issubclass(kind, Command) else None
    names = () if traits is None else (*traits.names, *_rights_on(traits.needs))
    hints = get_type_hints(kind, include_extras=True)
    checks: list[tuple[str, Check]] = []
    for field in kind.__struct_fields__:
        check = _check_name if field in names else _check_of(hints[field], field)
        if check is not None:
            checks.append((field, check))
    return tuple(checks)


def _rights_on(needs: Any) -> tuple[str, ...]:
    return () if isinstance(needs, str) else tuple(right.field for right in needs)


def _check_of(hint: Any, field: str) -> Check | None:
    """Return the check for values of a type; None if the type needs no check."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _check_signed if "signed" in arguments[1:] else _check_of(arguments[0], field)
    if origin in (Union, UnionType):
        types = [argument for argument in arguments if argument is not NoneType]
        return _check_of(types[0], field) if len(types) == 1 else _check_either(types, field)
    if hint is int:
        return _check_lease if field == _LEASE else check_integer
    if hint is float:
        return _check_finite
    if origin is list and field in _RUNS:
        return _check_runs
    if origin is list and field == _RESULTS:
        return _check_results
    if origin in (list, tuple):
        return _check_all(_check_of(arguments[0], field))
    if origin is dict:
        check = _check_all(_check_of(arguments[1], field))
        return None if check is None else lambda name, values: check(name, values.values())
    if isinstance(hint, type) and issubclass(hint, Struct) and hint not in _CHECKED_ELSEWHERE:
        return _check_fields if _checks(hint) else None
    return None


def _check_either(hints: list[Any], field: str) -> Check | None:
    """Return the check of a union: the check of the value's own type."""
    checks = {hint: _check_of(hint, field) for hint in hints if isinstance(hint, type)}
    if not any(checks.values()):
        return None

    def check(name: str, value: Any) -> None:
        check_value = checks.get(type(value))
        if check_value is not None:
            check_value(name, value)

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
        if (inner := getattr(value, field)) is not None:
            check(f"{name}.{field}", inner)


@lru_cache(maxsize=NAMES_CACHED)
def _check_name(name: str, value: str) -> None:
    check_name(value, name)


def _check_signed(name: str, value: int) -> None:
    if not -NUMBER_MAX - 1 <= value <= NUMBER_MAX:
        raise InvalidInput(f"{name} is a 64-bit integer, not {value!r}")


def _check_lease(name: str, value: int) -> None:
    """Refuse a lease that would end at once, even if there is no message to claim."""
    if check_integer(name, value) < 1:
        raise InvalidInput(f"{name} is at least 1, not {value}; leave it out for the queue's own")


def _check_results(name: str, results: list[Any]) -> None:
    """Refuse claim ids out of range; the rules check the results."""
    if len(results) > RUNS_MAX:
        raise InvalidInput(f"{name} has up to {RUNS_MAX:,} entries, not {len(results):,}")
    for claim_id, _ in results:
        check_integer(name, claim_id)


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise InvalidInput(f"{name} is a finite number, not {value!r}")


def check_records(command: Command[Any], limits: Limits) -> None:
    """Refuse packed records and values that our own packing would not have produced."""
    if isinstance(command, _WITH_RECORDS):
        check_packed(command.records, limits)
    elif isinstance(command, Transact):
        for step in command.steps:
            check_records(step, limits)
    elif isinstance(command, queues.ReplaceFailed):
        check_packed(command.record, limits)
    elif isinstance(command, queues.EndMember):
        check_packed(command.outcome, limits)
        if command.following is not None:
            check_packed(command.following, limits)
    elif isinstance(command, logs.SetMetadata):
        check_json(command.value, bytes_max=limits.metadata_bytes_max)
        check_json(command.expect, bytes_max=limits.metadata_bytes_max)


def bounded(command: Command[Any], settings: Settings, limits: Limits) -> Command[Any]:
    """Return the command with its wait and its answer cut to the limits of the server."""
    traits, bounds = command.traits, {}
    if traits.waits is not None and waits(command):
        bounds[traits.waits.field] = settings.wait_ms_max
    if traits.bytes:
        bounds[traits.bytes] = limits.read_bytes_max
    if traits.page:
        bounds[traits.page] = PAGE_MAX
    if not bounds:
        return command
    changes = {field: _at_most(getattr(command, field), limit) for field, limit in bounds.items()}
    return replace(command, **changes)


def _check_runs(name: str, runs: list[queues.Run | int]) -> None:
    """Bound the claims in runs: the store looks at each claim, and a run may have any length."""
    total = 0
    for run in runs:
        for number in (run,) if isinstance(run, int) else run:
            check_integer("a claim's number", number)
        total += 1 if isinstance(run, int) else run[1]
    if total > RUNS_MAX:
        raise TooLarge(f"{total:,} claims; the limit is {RUNS_MAX:,}", size=total, limit=RUNS_MAX)


def _at_most(value: int | None, limit: int) -> int:
    return limit if value is None else max(0, min(value, limit))
