"""`millstream sync`: exchange with another store what one has and the other lacks."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from millstream import Millstream
from millstream.cli.display import (
    Printed,
    PrintedLine,
    Table,
    note,
    plural,
    progress,
    safe,
    say,
    size,
)
from millstream.cli.place import StorePlace
from millstream.engine.place import is_bucket
from millstream.errors import CannotOpen, MillstreamError
from millstream.replica.sync.outcome import LeftBehind, Outcome, Progress, SetBack
from millstream.worker.stopping import stopped_by_signals

RETRY_S_MAX = 30.0
"""Between attempts to reach a peer that went away, while following."""


def sync(
    peer: Annotated[
        str, typer.Argument(metavar="PEER", help="Another store's file, or a server's address.")
    ],
    place: StorePlace,
    peer_token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the peer is shown, if not what --token says."),
    ] = None,
    push: Annotated[bool, typer.Option("--push", help="Only send; change nothing here.")] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Only fetch; change nothing there.")] = False,
    logs: Annotated[str, typer.Option(metavar="PATTERN", help="Names such as 'device/*'.")] = "*",
    on_fork: Annotated[
        str,
        typer.Option(metavar="RULE", help="For copies that differ: refuse, longest or rebase."),
    ] = "refuse",
    compress: Annotated[
        bool, typer.Option("--compress", help="Pack what is sent by zstd.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Delete nothing because the other side has.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on: sync after every change, until Ctrl-C.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the peer's file, or this store, if missing.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --follow one object per line.")
    ] = False,
) -> None:
    """Exchange with another store what one has and the other lacks.

    That is records, truncations, metadata and owners of logs. Queues, cursors, rooms, tokens and
    tables of the application are not carried, and the result names them: `copy` makes a backup. A
    server is shown --token, or what is in MILLSTREAM_TOKEN. What is the same on both sides is not
    sent.
    """
    if push and pull:
        raise typer.BadParameter("--push or --pull; without either it goes both ways")
    if on_fork not in ("refuse", "longest", "rebase"):
        raise typer.BadParameter(f"--on-fork is refuse, longest or rebase, not {on_fork!r}")
    there = replace(place, store=peer, secret=peer_token or place.secret)
    if not there.is_server:
        there = StorePlace(peer)
        if not create and not is_bucket(peer) and not Path(peer).exists():
            raise CannotOpen(f"there is no store at {peer}; --create creates one", path=peer)
    here = place if place.is_server else StorePlace(place.store)
    options: dict[str, Any] = {
        "direction": "push" if push else "pull" if pull else "both",
        "logs": logs,
        "on_fork": on_fork,
        "compress": compress,
        "truncate": not keep,
    }
    with here.opened(create=create) as ms:
        if follow:
            _follow(ms, there, options, create=create, json=json)
            return
        with there.opened(create=create) as other:
            outcome = _once(ms, other, options)
    _answer(outcome).show(as_json=json)


def _once(ms: Millstream, other: Millstream, options: dict[str, Any]) -> Outcome:
    """Sync; logs that could not be brought together are part of the outcome."""
    with progress("comparing") as tell:

        def heard(found: Progress) -> None:
            if tell is not None:
                tell(f"{found.direction} {found.log}", found.done, found.total)

        try:
            return ms.sync(other, **options, progress=heard)
        except MillstreamError as error:
            found = error.data.get("outcome")
            if not isinstance(found, Outcome):
                raise
            return found


def _follow(
    ms: Millstream, there: StorePlace, options: dict[str, Any], *, create: bool, json: bool
) -> None:
    """Sync until Ctrl-C, which lets the step finish; a peer that goes away is waited for."""
    pause_s = 1.0
    stop = threading.Event()
    with stopped_by_signals(stop.set):
        while not stop.is_set():
            try:
                with there.opened(create=create) as other:
                    for outcome in ms.follow(other, stop=stop, **options):
                        pause_s = 1.0
                        _tell(outcome, json=json)
            except MillstreamError as error:
                lost = isinstance(error, CannotOpen) and error.data.get("again")
                if not lost and not error.retry:
                    raise
                note(f"{error.message}; again in {pause_s:.0f} s")
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)


def _tell(outcome: Outcome, *, json: bool) -> None:
    """One round of many: a log that failed is tried again in the next."""
    if json:
        say(msgspec.json.encode(outcome).decode())
    else:
        _answer(outcome, code=0).show(as_json=False)
    sys.stdout.flush()


def _set_back(one: SetBack) -> str:
    """A reader that went back, as the table says it."""
    gone = f", {one.withdrawn:,} withdrawn" if one.withdrawn else ""
    return f"{one.kind} {one.name} from {one.passed:,} to {one.offset:,}{gone}"


def _left_behind(outcome: Outcome) -> list[str]:
    """What the stores hold that was not carried, in a line for each store."""
    by_store: dict[str, list[str]] = {}
    for one in outcome.left_behind:
        by_store.setdefault(one.store, []).append(_things(one))
    return [
        f"not carried, in store {safe(store)}: {'; '.join(things)}. `millstream copy` copies all of a "
        "store"
        for store, things in by_store.items()
    ]


def _things(one: LeftBehind) -> str:
    if one.kind == "unknown":
        return "queues, cursors, rooms, tokens and tables, if it has any (it does not tell them)"
    counted = plural(one.count, one.kind)
    if one.kind == "queue":
        counted += f" with {plural(one.messages, 'message')}"
    if one.kind == "table":
        counted += " of the application"
    names = ", ".join(map(safe, one.names))
    more = ", …" if one.count > len(one.names) else ""
    return f"{counted} ({names}{more})" if names else counted


def _answer(outcome: Outcome, *, code: int = 1) -> Printed:
    rows = [
        (
            one.log,
            one.pulled,
            one.pushed,
            one.truncated,
            one.metadata,
            one.set_aside,
            [_set_back(reader) for reader in one.set_back],
            one.error,
        )
        for one in outcome.logs
    ]
    columns = ("log", "pulled", "pushed", "truncated", "metadata", "set aside", "set back", "error")
    failed = f"; {plural(len(outcome.failed), 'log')} failed" if outcome.failed else ""
    summary = (
        f"{plural(outcome.looked_at - len(outcome.failed), 'log')} in step with "
        f"{safe(outcome.peer)}: {outcome.pulled:,} pulled, {outcome.pushed:,} pushed, "
        f"{size(outcome.bytes)} in {outcome.seconds:.2f} s{failed}"
    )
    return Printed(
        outcome,
        Table(columns, rows, spare=columns[3:], styles={"error": "red"}),
        PrintedLine(summary, note=True),
        *(PrintedLine(text, note=True) for text in _left_behind(outcome)),
        code=code if outcome.failed else 0,
    )
