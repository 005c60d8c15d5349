"""`millstream log fork`, `merge` and `owner`: copies of a log, and who may append to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, opened
from millstream.cli.confirm import confirm
from millstream.cli.read import existing

if TYPE_CHECKING:
    from millstream.record import Owner

LogName = Annotated[str, typer.Argument(metavar="LOG", help="The log.")]


def fork(
    log: LogName,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What the fork is called.")
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    json: AsJson = False,
) -> None:
    """Make a log that begins as another one is now; nothing is copied."""
    from millstream.cli import display

    with opened(store) as ms:
        made = existing(ms, log).fork(name)
        end = made.end_offset()
    if json:
        display.say_json({"log": log, "fork": made.name, "end_offset": end})
    else:
        display.say(f"{display.safe(made.name)} is a fork of {display.safe(log)}, from {end} on")


def merge(
    log: Annotated[str, typer.Argument(metavar="FORK", help="The fork.")],
    on_fork: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="If both have gone on: refuse, rebase (append the fork's records again), or "
            "longest (the longer one counts).",
        ),
    ] = "refuse",
    store: StorePath = Path(DEFAULT_STORE),
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Bring a fork's records into the log that it was forked from."""
    from millstream.cli import display

    with opened(store) as ms:
        fork = existing(ms, log)
        if on_fork == "longest":
            confirm("Let the longer one count, and set the other one's records aside?", yes=yes)
        found = fork.merge(on_fork=on_fork)
    if json:
        display.say_json(
            {
                "fork": log,
                "log": found.parent,
                "adopted": found.adopted,
                "start_offset": found.start,
                "end_offset": found.end,
                "set_aside": found.set_aside,
            }
        )
        return
    display.say(
        f"{display.plural(found.adopted, 'record')} merged into {display.safe(found.parent)}, "
        f"which ends at {found.end}"
    )
    if found.set_aside is not None:
        display.note(f"what it had of its own is in {display.safe(found.set_aside)}")


def owner(
    log: LogName,
    store: StorePath = Path(DEFAULT_STORE),
    hand_over: Annotated[
        str | None, typer.Option(metavar="STORE", help="Let the store of that id append.")
    ] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Append here.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Show which store may append to a log, or change it."""
    from millstream.cli import display

    if hand_over is not None and take_over:
        raise typer.BadParameter("--hand-over or --take-over, not both")
    with opened(store) as ms:
        found = existing(ms, log)
        before = found.owner()
        after = before
        if hand_over is not None:
            confirm(f"Let store {hand_over!r} append to {log!r}, and this one not?", yes=yes)
            after = found.hand_over(hand_over)
        elif take_over:
            if not before.here:
                confirm(f"Append to {log!r} here, and not in store {before.store!r}?", yes=yes)
            after = found.take_over()
    if json:
        display.say_json(
            {"log": log, "owner": after.store, "epoch": after.epoch, "here": after.here}
        )
    else:
        display.say(_described(after))


def _described(owner: Owner) -> str:
    from millstream.cli import display

    whose = "this store" if owner.here else "another store"
    return f"owned by {display.safe(owner.store)}, {whose}, at epoch {owner.epoch}"
