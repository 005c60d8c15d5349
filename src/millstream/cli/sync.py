"""`millstream sync`: exchange with another store what one has and the other lacks."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from millstream.cli.config import DEFAULT_STORE, StorePath, opened

if TYPE_CHECKING:
    from millstream.replica.sync.outcome import Outcome, Progress, SetBack
    from millstream.threads.database import Millstream

RETRY_S_MAX = 30.0
"""Between attempts to reach a peer that went away, while following."""


def sync(
    peer: Annotated[
        str, typer.Argument(metavar="PEER", help="Another store's file, or a server's address.")
    ],
    store: StorePath = Path(DEFAULT_STORE),
    push: Annotated[bool, typer.Option("--push", help="Only send; change nothing here.")] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Only fetch; change nothing there.")] = False,
    logs: Annotated[
        str, typer.Option("--logs", metavar="PATTERN", help="Names such as 'device/*'.")
    ] = "*",
    on_fork: Annotated[
        str,
        typer.Option(
            "--on-fork",
            metavar="RULE",
            help="For copies that differ: refuse, longest or rebase.",
        ),
    ] = "refuse",
    compress: Annotated[
        bool, typer.Option("--compress", help="Pack what is sent by zstd.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Forget nothing because the other side has.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on: sync after every change, until Ctrl-C.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make the peer's file, or this store, if missing.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --follow one object per line.")
    ] = False,
) -> None:
    """Bring this store and another one together: records, truncations, metadata, owners.

    A server is shown the token in MILLSTREAM_TOKEN. What is the same on both sides is not sent.
    """
    if push and pull:
        raise typer.BadParameter("--push or --pull; without either it goes both ways")
    if on_fork not in ("refuse", "longest", "rebase"):
        raise typer.BadParameter(f"--on-fork is refuse, longest or rebase, not {on_fork!r}")
    _check_peer(peer, create=create)
    direction: Literal["push", "pull", "both"] = "push" if push else "pull" if pull else "both"
    options: dict[str, Any] = {
        "direction": direction,
        "logs": logs,
        "on_fork": on_fork,
        "compress": compress,
        "truncate": not keep,
        "create": create,
    }
    with opened(store, create=create) as ms:
        if follow:
            _follow(ms, peer, options, json=json)
            return
        with _progress() as progress:
            outcome = _once(ms, peer, {**options, "progress": progress})
    _show(outcome, json=json)
    if outcome.failed:
        raise typer.Exit(1)


def _check_peer(peer: str, *, create: bool) -> None:
    from millstream.errors import CannotOpen
    from millstream.remote.address import is_address

    if not create and not is_address(peer) and not Path(peer).exists():
        raise CannotOpen(f"there is no store at {peer}; --create makes one", path=peer)


def _once(ms: Millstream, peer: str, options: dict[str, Any]) -> Outcome:
    """Sync; logs that could not be brought together are part of the outcome."""
    from millstream.errors import MillstreamError
    from millstream.replica.sync.outcome import Outcome

    try:
        return ms.sync(peer, **options)
    except MillstreamError as error:
        found = error.data.get("outcome")
        if not isinstance(found, Outcome):
            raise
        return found


def _follow(ms: Millstream, peer: str, options: dict[str, Any], *, json: bool) -> None:
    """Sync until Ctrl-C; a peer that goes away is waited for."""
    from millstream.cli import display
    from millstream.errors import CannotOpen, MillstreamError

    pause_s = 1.0
    with _stopped_by_interrupt() as stop:
        while not stop.is_set():
            try:
                for outcome in ms.follow(peer, stop=stop, **options):
                    pause_s = 1.0
                    _show(outcome, json=json, line=True)
                    sys.stdout.flush()
            except MillstreamError as error:
                lost = isinstance(error, CannotOpen) and error.data.get("again")
                if not lost and not error.retry:
                    raise
                display.note(f"{error.message}; again in {pause_s:.0f} s")
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)


@contextmanager
def _stopped_by_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C ends it after the step that it is at."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda *_: stop.set()) for kind in kinds]
    try:
        yield stop
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None] | None]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from millstream.cli.display import console, safe

    columns = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("comparing", total=None)

        def tell(found: Progress) -> None:
            what = f"{found.direction} {safe(found.log)}"
            bar.update(task, description=what, completed=found.done, total=found.total)

        yield tell


def _set_back(one: SetBack) -> str:
    """A reader that went back, as the table says it."""
    gone = f", {one.withdrawn:,} withdrawn" if one.withdrawn else ""
    return f"{one.kind} {one.name} from {one.passed:,} to {one.offset:,}{gone}"


def _show(outcome: Outcome, *, json: bool, line: bool = False) -> None:
    from millstream.cli import display

    if json:
        import msgspec

        found = msgspec.to_builtins(outcome)
        if line:
            display.say(msgspec.json.encode(found).decode())
        else:
            display.say_json(found)
        return
    rows = [
        (
            display.safe(one.log),
            f"{one.pulled:,}",
            f"{one.pushed:,}",
            f"{one.truncated:,}",
            f"{one.metadata:,}",
            display.safe(", ".join(one.set_aside)),
            display.safe(", ".join(map(_set_back, one.set_back))),
            display.safe(one.error or ""),
        )
        for one in outcome.logs
    ]
    if rows:
        display.say_table(
            ("log", "pulled", "pushed", "truncated", "metadata", "set aside", "set back", "error"),
            rows,
            numbers=("pulled", "pushed", "truncated", "metadata"),
            spare=("truncated", "metadata", "set aside", "set back", "error"),
        )
    done = outcome.looked_at - len(outcome.failed)
    display.note(
        f"{display.plural(done, 'log')} in step with {outcome.peer}: {outcome.pulled:,} pulled, "
        f"{outcome.pushed:,} pushed, {display.size(outcome.bytes)} in {outcome.seconds:.2f} s"
        + (f"; {display.plural(len(outcome.failed), 'log')} failed" if outcome.failed else "")
    )
