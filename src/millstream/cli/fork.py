"""`millstream log fork`, `merge` and `owner`: copies of a log, and who may append to it."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream import Log
from millstream.cli.command import Consent
from millstream.cli.display import Printed, PrintedLine, plural, safe


def fork(
    log: Log,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="What the fork is called.", show_default="LOG~fork-…"),
    ] = None,
) -> Printed:
    """Create a log that begins as another one is now, without copying."""
    made = log.fork(name)
    end = made.end_offset()
    return Printed(
        {"log": log.name, "fork": made.name, "end_offset": end},
        f"{safe(made.name)} is a fork of {safe(log.name)}, from {end} on",
    )


def merge(
    log: Log,
    consent: Consent,
    on_fork: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="If both have gone on: refuse, rebase (append the fork's records again), or "
            "longest (the longer one counts).",
        ),
    ] = "refuse",
) -> Printed:
    """Bring a fork's records into the log that it was forked from."""
    if on_fork == "longest":
        consent.ask("Let the longer one count, and set the other one's records aside?")
    found = log.merge(on_fork=on_fork)
    shown: list[str | PrintedLine] = [
        f"{plural(found.adopted, 'record')} merged into {safe(found.parent)}, "
        f"which ends at {found.end}"
    ]
    if found.set_aside is not None:
        shown.append(
            PrintedLine(f"what it had of its own is in {safe(found.set_aside)}", note=True)
        )
    data = {
        "fork": log.name,
        "log": found.parent,
        "adopted": found.adopted,
        "start_offset": found.start,
        "end_offset": found.end,
        "set_aside": found.set_aside,
    }
    return Printed(data, *shown)


def owner(
    log: Log,
    consent: Consent,
    hand_over: Annotated[
        str | None, typer.Option(metavar="STORE", help="Let the store of that id append.")
    ] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Append here.")] = False,
) -> Printed:
    """Show which store may append to a log, or change it."""
    if hand_over is not None and take_over:
        raise typer.BadParameter("--hand-over or --take-over, not both")
    one = log.owner()
    if hand_over is not None:
        consent.ask(f"Let store {hand_over!r} append to log {log.name!r}, and this one not?")
        one = log.hand_over(hand_over)
    elif take_over:
        if not one.here:
            consent.ask(f"Append to log {log.name!r} here, and not in store {one.store!r}?")
        one = log.take_over()
    whose = "this store" if one.here else "another store"
    return Printed(
        {"log": log.name, "owner": one.store, "epoch": one.epoch, "here": one.here},
        f"owned by {safe(one.store)}, {whose}, at epoch {one.epoch}",
    )
