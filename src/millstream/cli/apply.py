"""`millstream apply`: create and alter logs, queues, rooms, schedules and tokens by a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import to_builtins

import millstream
from millstream.cli.command import AsJson, Consent
from millstream.cli.display import Printed, PrintedLine, plural, safe
from millstream.cli.place import StorePlace
from millstream.clock import SystemClock
from millstream.engine.place import is_bucket

if TYPE_CHECKING:
    from millstream.topology.applying import Applied
    from millstream.topology.model import TopologyChange, TopologyPlan
    from millstream.topology.steps import Secret

SIGNS = {"create": ("+", "green"), "alter": ("~", "yellow"), "delete": ("-", "red")}
STDIN = "-"
LOSSES_SHOWN = 3


def apply(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file in TOML or JSON; - reads standard input.")
    ],
    place: StorePlace,
    consent: Consent,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changes, and change nothing.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete what the file does not name, in the tables that the file has."
        ),
    ] = False,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Write the secrets of new tokens to this file, as a JSON object."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Change a store to match a file. The file describes logs, queues, rooms, schedules and
    tokens.

    One commit makes the changes. A second run changes nothing. If a change is not allowed, the command
    says why and changes nothing. The secret of a new token is shown once.
    """
    from millstream.topology.applying import apply as apply_topology
    from millstream.topology.applying import parse_text
    from millstream.topology.model import TopologyRefused

    text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    name = "standard input" if file == STDIN else file
    try:
        target = parse_text(text, SystemClock().wall_ms(), file=name)
        with _opened(place, dry_run=dry_run) as ms:
            applied = apply_topology(
                ms,
                target,
                dry_run=dry_run,
                prune=prune,
                confirm=lambda plan: _confirm(plan, consent, quiet=json),
                keep_secrets=None if secrets is None else partial(_keep, secrets),
            )
    except TopologyRefused as error:
        for reason in error.reasons:
            PrintedLine(f"error: {safe(reason)}", "red", note=True).show()
        raise typer.Exit(1) from None
    _show(applied, dry_run=dry_run, secrets=secrets, as_json=json)


def _opened(place: StorePlace, *, dry_run: bool) -> AbstractContextManager[millstream.Millstream]:
    """Open the store. A dry run creates no file: it compares with an empty store in memory."""
    is_file = not place.is_server and not is_bucket(place.store)
    if dry_run and is_file and not Path(place.store).exists():
        return millstream.open(":memory:")
    return place.opened(create=not dry_run)


def _confirm(plan: TopologyPlan, consent: Consent, *, quiet: bool) -> None:
    """Show the changes before they are made; ask if a change deletes something."""
    if not quiet:
        for line in diff_lines(plan.changes):
            line.show()
        sys.stdout.flush()
    losses = [change.loses for change in plan.changes if change.loses]
    if losses:
        listed = ", ".join(losses[:LOSSES_SHOWN])
        ending = f" and {len(losses) - LOSSES_SHOWN} more" if len(losses) > LOSSES_SHOWN else ""
        consent.ask(f"This deletes {listed}{ending}. Go on?")


def diff_lines(changes: Sequence[TopologyChange]) -> Iterator[PrintedLine]:
    """Yield the lines of a diff: `+` creates, `~` alters, `-` deletes."""
    for change in changes:
        sign, style = SIGNS[change.action]
        yield PrintedLine(f"{sign} {change.kind} {safe(change.name)}", style)
        for key, (before, after) in change.settings.items():
            nothing = "(none)" if key.startswith("schema.") else "(default)"
            setting = _text(after, nothing)
            if change.action == "alter":
                setting = f"{_text(before, nothing)} -> {setting}"
            yield PrintedLine(f"    {safe(key)} = {setting}", style)


def _text(value: Any, nothing: str) -> str:
    return nothing if value is None else safe(msgspec.json.encode(value).decode())


def _keep(path: Path, new: Sequence[Secret]) -> None:
    """Write the secrets of new tokens before the commit, so that no crash can lose them.

    Only the owner may read the file. Entries of other tokens stay.
    """
    entries: dict[str, str] = {}
    if path.exists():
        try:
            entries = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except msgspec.MsgspecError:
            raise typer.BadParameter(
                f"--secrets: {path} is no JSON object of texts; name another file"
            ) from None
    entries |= {secret.name: secret.text for secret in new}
    data = msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _show(applied: Applied, *, dry_run: bool, secrets: Path | None, as_json: bool) -> None:
    changes, texts = applied.plan.changes, {} if secrets else applied.secrets
    data = {
        "changed": bool(changes) and not dry_run,
        "changes": [to_builtins(change) for change in changes],
        "secrets": texts,
    }
    shown: list[PrintedLine] = []
    if dry_run:
        shown.extend(diff_lines(changes))
    shown.append(PrintedLine(_summary(len(changes), dry_run=dry_run)))
    shown.extend(PrintedLine(f"{safe(name)}\t{text}") for name, text in texts.items())
    if applied.secrets:
        where = (
            f"{secrets} has the secrets of new tokens"
            if secrets
            else "keep these secrets: they are shown only now"
        )
        shown.append(PrintedLine(f"{where}; the store has no copy", note=True))
    Printed(data, *shown).show(as_json=as_json)


def _summary(count: int, *, dry_run: bool) -> str:
    if not count:
        return "nothing to change"
    return (
        f"{plural(count, 'change')} would be made" if dry_run else f"{plural(count, 'change')} made"
    )
