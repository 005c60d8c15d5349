"""Bounds: a command from elsewhere, checked as the nouns check what their callers hand in.

Commands that were decoded from a frame have the right types, and nothing more. Here names are
checked, numbers, records and JSON; and what would wait or answer without end is cut to size. The
core does so for whatever it is asked, but for records: those are checked where they came in packed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from millstream.command import Command, Mutation, Transact
from millstream.errors import InvalidInput, TooLarge
from millstream.format.checking import check_packed
from millstream.format.packing import Batch, check_json
from millstream.limits import Limits
from millstream.log import commands as logs
from millstream.log.names import check_integer, check_name
from millstream.queue import commands as queues
from millstream.replica.commands import GetMarks, SummarizeLogs, TransferBlocks
from millstream.replica.parcel import SendBlocks
from millstream.server.settings import Settings

PAGE_MAX = 10_000
"""Names in one answer to a listing, and messages in one peek; clients ask again for more."""

RUNS_MAX = 100_000
"""Claims that one command may name."""

_RUNS = ("claims", "acked")
_NAMES = ("log", "cursor", "queue")
_NUMBERS = ("start", "stop", "offset", "expect_end", "floor", "before", "claim_id", "count")


def check_command(command: Command[Any]) -> None:
    """Refuse what no noun would have built; its records apart, see `check_records`."""
    if isinstance(command, Transact):
        for step in command.steps:
            check_command(step)
        return
    names, numbers, runs = _fields(type(command))
    for name in names:
        if (found := getattr(command, name)) is not None:
            check_name(found, name)
    for name in numbers:
        if isinstance(found := getattr(command, name), int):
            check_integer(name, found)
    for name in runs:
        if (found := getattr(command, name)) is not None:
            _check_runs(found)
    if isinstance(command, logs.SetMetadata):
        check_name(command.key, "metadata")
        check_json(command.value)
        check_json(command.expect)


def check_records(command: Command[Any], limits: Limits) -> None:
    """Refuse records that were packed elsewhere, and could not have been packed here."""
    if isinstance(command, Transact):
        for step in command.steps:
            check_records(step, limits)
    elif isinstance(command, logs.Append | queues.PutForLater):
        check_packed(command.records, limits)
        if isinstance(command, queues.PutForLater):
            _check_marks(command)


@cache
def _fields(kind: type[Command[Any]]) -> tuple[tuple[str, ...], ...]:
    """Which names, numbers and runs of claims a command has."""
    own = kind.__struct_fields__
    return tuple(
        tuple(name for name in known if name in own) for known in (_NAMES, _NUMBERS, _RUNS)
    )


def bounded(command: Command[Any], settings: Settings, limits: Limits) -> Command[Any]:
    """The command, with its waits and its answer within what a server gives."""
    if isinstance(command, Mutation):
        return command  # none of them waits, or answers much
    if isinstance(command, logs.WaitForOffset):
        return replace(command, timeout_ms=_at_most(command.timeout_ms, settings.wait_ms_max))
    if isinstance(command, queues.ClaimMessages) and command.wait_ms is not None:
        return replace(command, wait_ms=_at_most(command.wait_ms, settings.wait_ms_max))
    if isinstance(command, logs.ReadBlocks | TransferBlocks | SendBlocks):
        return replace(command, bytes_max=_at_most(command.bytes_max, limits.read_bytes_max))
    if isinstance(command, logs.ListLogs | queues.ListQueues | SummarizeLogs | GetMarks):
        return replace(command, limit=_at_most(command.limit, PAGE_MAX))
    if isinstance(command, queues.PeekMessages):
        return replace(command, count=_at_most(command.count, PAGE_MAX))
    return command


def _check_runs(runs: list[queues.Run | int]) -> None:
    """A run is walked through claim by claim: nobody holds as many as a number can say."""
    total = 0
    for run in runs:
        for number in (run,) if isinstance(run, int) else run:
            check_integer("a claim's number", number)
        total += 1 if isinstance(run, int) else run[1]
    if total > RUNS_MAX:
        raise TooLarge(f"{total:,} claims; the limit is {RUNS_MAX:,}", size=total, limit=RUNS_MAX)


def _check_marks(command: queues.PutForLater) -> None:
    count = command.records.count if isinstance(command.records, Batch) else 1
    if len(command.marks) != count:
        raise InvalidInput(f"{count} messages, but {len(command.marks)} marks")


def _at_most(asked: int | None, most: int) -> int:
    return most if asked is None else max(0, min(asked, most))
