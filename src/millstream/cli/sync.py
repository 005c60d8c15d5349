"""`millstream sync`: exchange the records that one of two stores lacks."""

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
    plural,
    progress,
    safe,
    say,
    size,
)
from millstream.cli.events import report_event, warnings_shown
from millstream.cli.place import StorePlace
from millstream.engine.place import is_bucket
from millstream.errors import CannotOpen, MillstreamError
from millstream.replica.sync.outcome import LeftBehind, Outcome, Progress, SetBack
from millstream.worker.stop_signals import stopped_by_signals

RETRY_S_MAX = 30.0
"""The longest pause between attempts to reach a lost peer, while following."""


def sync(
    peer: Annotated[
        str, typer.Argument(metavar="PEER", help="Another store's file, or a server's address.")
    ],
    place: StorePlace,
    peer_token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The peer's token, if it differs from --token."),
    ] = None,
    push: Annotated[bool, typer.Option("--push", help="Only send; change nothing here.")] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Only fetch; change nothing there.")] = False,
    logs: Annotated[str, typer.Option(metavar="PATTERN", help="Names such as 'device/*'.")] = "*",
    on_fork: Annotated[
        str,
        typer.Option(metavar="RULE", help="For copies that differ: refuse, longest or rebase."),
    ] = "refuse",
    compress: Annotated[
        bool, typer.Option("--compress", help="Compress the data with zstd.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep records that the other store has deleted.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue: sync after every change, until Ctrl-C."),
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the peer's file, or this store, if missing.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --follow one object per line.")
    ] = False,
) -> None:
    """Exchange the records that one of two stores lacks.

    This includes truncations, metadata and owners of logs. Queues, cursors, rooms, tokens and the
    application's tables are not transferred, and the result names them: use `backup` for them. A
    server gets the token of --token or MILLSTREAM_TOKEN. Data that both stores have is not sent.
    """
    if push and pull:
        raise typer.BadParameter("--push or --pull; without either, data goes both ways")
    if on_fork not in ("refuse", "longest", "rebase"):
        raise typer.BadParameter(f"--on-fork must be refuse, longest or rebase, not {on_fork!r}")
    peer_place = replace(place, store=peer, secret=peer_token or place.secret)
    if not peer_place.is_server:
        peer_place = StorePlace(peer)
        if not create and not is_bucket(peer) and not Path(peer).exists():
            raise CannotOpen(f"peer_place is no store at {peer}; --create creates one", path=peer)
    own_place = place if place.is_server else StorePlace(place.store)
    options: dict[str, Any] = {
        "direction": "push" if push else "pull" if pull else "both",
        "logs": logs,
        "on_fork": on_fork,
        "compress": compress,
        "truncate": not keep,
    }
    with own_place.opened(create=create) as ms:
        if follow:
            _follow(ms, peer_place, options, create=create, json=json)
            return
        with peer_place.opened(create=create) as peer_store:
            outcome = _once(ms, peer_store, options)
    _answer(outcome).show(as_json=json)


def _once(ms: Millstream, peer: Millstream, options: dict[str, Any]) -> Outcome:
    """Sync once; logs that could not be synced are part of the outcome."""
    with progress("comparing") as show:

        def heard(step: Progress) -> None:
            if show is not None:
                show(f"{step.direction} {step.log}", step.done, step.total)

        try:
            return ms.sync(peer, **options, progress=heard)
        except MillstreamError as error:
            outcome = error.data.get("outcome")
            if not isinstance(outcome, Outcome):
                raise
            return outcome


def _follow(
    ms: Millstream, peer_place: StorePlace, options: dict[str, Any], *, create: bool, json: bool
) -> None:
    """Sync until Ctrl-C, which lets the present step finish; wait for a peer that is lost."""
    pause_s = 1.0
    stop = threading.Event()
    with stopped_by_signals(stop.set), warnings_shown():
        while not stop.is_set():
            try:
                with peer_place.opened(create=create) as peer:
                    for outcome in ms.follow(peer, stop=stop, **options):
                        pause_s = 1.0
                        _tell(outcome, json=json)
            except MillstreamError as error:
                lost = isinstance(error, CannotOpen) and error.data.get("again")
                if not lost and not error.retry:
                    raise
                report_event(f"{error.message}; again in {pause_s:.0f} s", "warning")
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)


def _tell(outcome: Outcome, *, json: bool) -> None:
    """Print the outcome of one round; a log that failed is tried again in the next round."""
    if json:
        say(msgspec.json.encode(outcome).decode())
    else:
        _answer(outcome, code=0).show(as_json=False)
    sys.stdout.flush()


def _set_back(reader: SetBack) -> str:
    """Return a line about a reader that was set back, for the table."""
    withdrawn = f", {reader.withdrawn:,} withdrawn" if reader.withdrawn else ""
    return f"{reader.kind} {reader.name} from {reader.passed:,} to {reader.offset:,}{withdrawn}"


def _left_behind(outcome: Outcome) -> list[str]:
    """Return a line per store about the contents that were not transferred."""
    by_store: dict[str, list[str]] = {}
    for item in outcome.left_behind:
        by_store.setdefault(item.store, []).append(_contents(item))
    return [
        f"not transferred, in store {safe(store)}: {'; '.join(contents)}. `millstream copy` copies "
        "a complete store"
        for store, contents in by_store.items()
    ]


def _contents(item: LeftBehind) -> str:
    if item.kind == "unknown":
        return "queues, cursors, rooms, tokens and tables, if any (the store does not list them)"
    counted = plural(item.count, item.kind)
    if item.kind == "queue":
        counted += f" with {plural(item.messages, 'message')}"
    if item.kind == "table":
        counted += " of the application"
    names = ", ".join(map(safe, item.names))
    more = ", …" if item.count > len(item.names) else ""
    return f"{counted} ({names}{more})" if names else counted


def _answer(outcome: Outcome, *, code: int = 1) -> Printed:
    rows = [
        (
            log.log,
            log.pulled,
            log.pushed,
            log.truncated,
            log.metadata,
            log.set_aside,
            [_set_back(reader) for reader in log.set_back],
            log.error,
        )
        for log in outcome.logs
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
