"""`millstream log fork`, `merge` and `owner`: forks of a log, and its owner."""

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
        typer.Argument(metavar="NAME", help="The fork's name.", show_default="LOG~fork-…"),
    ] = None,
) -> Printed:
    """Create a fork of a log. It shares all present records without copying."""
    forked = log.fork(name)
    end = forked.end_offset()
    return Printed(
        {"log": log.name, "fork": forked.name, "end_offset": end},
        f"{safe(forked.name)} is a fork of {safe(log.name)}, from {end} on",
    )


def merge(
    log: Log,
    consent: Consent,
    on_fork: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="If both logs have new records: refuse, rebase (append the fork's records again), "
            "or longest (the longer log counts).",
        ),
    ] = "refuse",
) -> Printed:
    """Merge a fork's records into its parent."""
    if on_fork == "longest":
        consent.ask("Let the longer log count, and set the records of the other log aside?")
    merged = log.merge(on_fork=on_fork)
    shown: list[str | PrintedLine] = [
        f"{plural(merged.adopted, 'record')} merged into {safe(merged.parent)}, "
        f"which ends at {merged.end}"
    ]
    if merged.set_aside is not None:
        shown.append(PrintedLine(f"its own records are in {safe(merged.set_aside)} now", note=True))
    data = {
        "fork": log.name,
        "log": merged.parent,
        "adopted": merged.adopted,
        "start_offset": merged.start,
        "end_offset": merged.end,
        "set_aside": merged.set_aside,
    }
    return Printed(data, *shown)


def owner(
    log: Log,
    consent: Consent,
    hand_over: Annotated[
        str | None, typer.Option(metavar="STORE", help="Let the store with this id append.")
    ] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Let this store append.")] = False,
) -> Printed:
    """Show or change the store that may append to a log."""
    if hand_over is not None and take_over:
        raise typer.BadParameter("--hand-over or --take-over, not both")
    owner_now = log.owner()
    if hand_over is not None:
        consent.ask(f"Let store {hand_over!r} append to log {log.name!r}, instead of this store?")
        owner_now = log.hand_over(hand_over)
    elif take_over:
        if not owner_now.here:
            consent.ask(
                f"Append to log {log.name!r} here, instead of in store {owner_now.store!r}?"
            )
        owner_now = log.take_over()
    whose = "this store" if owner_now.here else "another store"
    return Printed(
        {
            "log": log.name,
            "owner": owner_now.store,
            "epoch": owner_now.epoch,
            "here": owner_now.here,
        },
        f"owned by {safe(owner_now.store)}, {whose}, at epoch {owner_now.epoch}",
    )
