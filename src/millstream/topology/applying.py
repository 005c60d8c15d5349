"""Applying a topology to an open store, and dumping the topology of a store.

The changes are the steps of one transaction. A process that is killed has applied the whole plan, or no
change of the plan. The next run applies the missing changes.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from millstream.command import Transact
from millstream.errors import Conflict, InvalidInput, LeaseLost, OutcomeUnknown
from millstream.threads.database import Millstream
from millstream.topology.comparing import compare
from millstream.topology.document import parse
from millstream.topology.model import (
    TABLES,
    Document,
    StoredTopology,
    Topology,
    TopologyPlan,
    TopologyRefused,
)
from millstream.topology.steps import Secret, Work, work_of
from millstream.topology.stored import Leave, read_stored
from millstream.topology.toml_file import lines_of, place_of
from millstream.topology.writing import document_of

ATTEMPTS = 10
"""How often a plan is made anew, because the store has changed meanwhile."""

Source = str | os.PathLike[str] | Mapping[str, Any] | Topology
"""A file in TOML or JSON, a document, or a topology that `parse_text` has checked."""


class Applied(Struct, frozen=True, kw_only=True):
    """The result of `apply`."""

    plan: TopologyPlan
    secrets: dict[str, str]
    """The texts of the new tokens by name; the store has no copy."""


def apply(
    ms: Millstream,
    topology: Source,
    *,
    dry_run: bool = False,
    prune: bool = False,
    confirm: Callable[[TopologyPlan], None] | None = None,
    keep_secrets: Callable[[Sequence[Secret]], None] | None = None,
) -> Applied:
    """Apply a file to a store, in one commit: create, alter and, with `prune`, delete.

    The file names logs, queues, rooms, schedules and tokens; see docs/TOPOLOGY.md. A second call
    changes nothing. With `dry_run` nothing is changed, and the result has the plan. With `prune`
    things that the file does not name are deleted, in the tables that the file has. `confirm` gets
    the plan before anything changes, and may raise. `keep_secrets` gets the texts of new tokens
    before the commit. Raises `TopologyRefused` with a sentence for each mistake and each change that is
    not allowed; the store stays unchanged.
    """
    target = read_topology(topology, ms.session.clock.wall_ms())
    first: TopologyPlan | None = None
    work, leases_hold = Work(), True
    for attempt in range(ATTEMPTS):
        stored = read_stored(ms, _tables(target, prune=prune))
        now_ms = ms.session.clock.wall_ms()
        current = compare(target, stored, prune=prune, now_ms=now_ms)
        current.check()
        if first is None:
            first = current
        if dry_run or not current.changes:
            break
        if confirm is not None and not attempt:
            confirm(current)
        work = work_of(
            current,
            target,
            stored,
            limits=ms.session.limits,
            now_ms=now_ms,
            leases_hold=leases_hold,
        )
        if keep_secrets is not None and work.secrets:
            keep_secrets(work.secrets)
        try:
            ms.session.execute(Transact(work.steps))
            return Applied(plan=first, secrets={each.name: each.text for each in work.secrets})
        except (Conflict, OutcomeUnknown) as error:
            leases_hold = not isinstance(error, LeaseLost)
            if attempt == ATTEMPTS - 1:
                raise
    return Applied(plan=first or TopologyPlan(), secrets=_valid(work, stored))


def _valid(work: Work, stored: StoredTopology) -> dict[str, str]:
    """Return the secrets of a commit whose answer was lost, if the store has their tokens."""
    return {
        each.name: each.text
        for each in work.secrets
        if each.name in stored.tokens and stored.tokens[each.name].id == each.id
    }


def plan(ms: Millstream, topology: Source, *, prune: bool = False) -> TopologyPlan:
    """Return the changes that `apply` would make, and the changes that it would refuse."""
    target = read_topology(topology, ms.session.clock.wall_ms())
    stored = read_stored(ms, _tables(target, prune=prune))
    return compare(target, stored, prune=prune, now_ms=ms.session.clock.wall_ms())


def dump(ms: Millstream, *, leave_out: Leave | None = None) -> Document:
    """Return the topology of a store as a document that `apply` accepts.

    `leave_out` is told of tables that the token may not read. Without `leave_out`, such a table raises
    `Denied`.
    """
    return document_of(read_stored(ms, leave_out=leave_out), ms.session.clock.wall_ms())


def _tables(target: Topology, *, prune: bool) -> list[str]:
    """Return the tables to read. A deletion of logs looks at all queues, whose own logs stay."""
    tables = [table for table in TABLES if getattr(target, table) is not None]
    return [*tables, "queues"] if prune and target.logs is not None else tables


def read_topology(source: Source, now_ms: int) -> Topology:
    """Return the checked topology of a file or a document."""
    if isinstance(source, Topology):
        return source
    if isinstance(source, Mapping):
        return _checked(source, now_ms)
    path = Path(source)
    return parse_text(path.read_text(encoding="utf-8"), now_ms, file=str(path))


def parse_text(text: str, now_ms: int, *, file: str) -> Topology:
    """Return the checked topology of a text in TOML or JSON."""
    if text.lstrip()[:1] == "{":
        try:
            return _checked(msgspec.json.decode(text, type=dict[str, Any]), now_ms, file=file)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{file}: {error}") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{file}: {error}") from None
    return _checked(document, now_ms, file=file, text=text)


def _checked(
    document: Mapping[str, Any], now_ms: int, *, file: str = "", text: str = ""
) -> Topology:
    topology, mistakes = parse(document, now_ms, Path(file).parent)
    if mistakes:
        lines = lines_of(text)
        reasons = []
        for mistake in mistakes:
            place = place_of(lines, mistake.path, file)
            reasons.append(f"{place}: {mistake}" if place else str(mistake))
        raise TopologyRefused("\n".join(reasons), reasons=reasons)
    return topology
