"""`millstream backup`: add a point to a backup, list its points, verify it."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict
from typer.core import TyperGroup

from millstream.cli.arguments import parse_timestamp
from millstream.cli.command import command
from millstream.cli.display import (
    Printed,
    PrintedLine,
    Table,
    note,
    plural,
    progress,
    safe,
    size,
    when,
)
from millstream.cli.place import ServerAccess, StorePlace
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.backup.keep import Keep
    from millstream.backup.place import BackupPlace
    from millstream.backup.point import BackupPoint
    from millstream.backup.replay import RestoreMoment
    from millstream.backup.run import BackupReport
    from millstream.backup.verify import VerifyReport
    from millstream.engine.row_copy import Heard

EXIT_DAMAGED = 1

Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A folder, a bucket at s3://…, or - for a stream.",
        show_default=False,
    ),
]
StoredPlace = Annotated[
    str,
    typer.Argument(metavar="PLACE", help="A folder, or a bucket at s3://….", show_default=False),
]


class _Backups(TyperGroup):
    """Commands of a backup; `millstream backup STORE PLACE` means `millstream backup create`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, or `create`."""
        if args and args[0] not in self.commands:
            args = ["create", *args]
        return super().resolve_command(ctx, args)


backup = typer.Typer(
    cls=_Backups,
    no_args_is_help=True,
    help="Back up a store: `millstream backup STORE PLACE`.",
)


@command(
    backup,
    "backup create shop.db /mnt/backup/shop",
    "backup create shop.db s3://bucket/shop --keep 7d",
    "backup create shop.db s3://bucket/shop --keep 7d --follow",
    "backup create https://shop.example:8080 /mnt/backup/shop --token @backup.token",
)
def create(
    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE", help="A file, a bucket, or a server at http://… or https://…."
        ),
    ],
    place: Place,
    access: ServerAccess,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|N",
            help="Delete points that no time of an age such as 7d needs, or all but the newest N.",
            show_default="keep all",
        ),
    ] = None,
    compress: Annotated[
        bool | None,
        typer.Option(
            "--compress/--no-compress",
            help="Compress chunks.",
            show_default="only for a bucket",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Stay, and store every commit about a second after it was made."
        ),
    ] = False,
) -> Printed:
    """Add a point to a backup. A point is the whole state as of one commit.

    The store may be in use: writers do not wait. Only changed parts are stored. A point holds logs,
    queues, cursors, rooms, tokens, schedules and the application's own tables. After an
    interruption run the same command again: stored parts are not stored again. A server needs a
    token with the permission store:backup.
    """
    from millstream.backup.keep import parse_keep

    rule = None if keep is None else parse_keep(keep)
    if place == "-":
        if follow or keep is not None or compress is not None:
            raise typer.BadParameter("a stream (-) takes no --keep, --compress and --follow")
        return _stream(access.at(store))
    source = access.at(store)
    if follow:
        _refuse_server(source)
        return _follow(store, place, keep=rule, compress=compress)
    with progress("opening") as show:
        report = _added(source, place, keep=rule, compress=compress, show=show)
    point, store = report.point, source.store.rpartition("@")[2]
    shown = [
        f"commit {point.seq} of {safe(store)} ({size(point.file_bytes)}) is in {safe(place)}: "
        f"{plural(report.stored_chunks, 'chunk')} of {report.chunks:,} were new "
        f"({size(report.stored_bytes)})"
    ]
    if report.deleted_points:
        shown.append(f"{plural(report.deleted_points, 'old point')} deleted")
    facts = {
        **_facts(point),
        "place": place,
        "chunks": report.chunks,
        "stored_chunks": report.stored_chunks,
        "stored_bytes": report.stored_bytes,
        "deleted_points": report.deleted_points,
    }
    return Printed(facts, *shown)


def _added(
    source: StorePlace, place: str, *, keep: Keep | None, compress: bool | None, show: Heard | None
) -> BackupReport:
    """Add a point of a file, a bucket or a server."""
    if source.is_server:
        from millstream.remote.backup import ServerStore, back_up_server

        server = ServerStore(source.store, token=source.token(), ca=source.ca)
        return back_up_server(server, place, keep=keep, compress=compress, heard=show)
    from millstream.backup.run import back_up

    return back_up(source.store, place, keep=keep, compress=compress, heard=show)


def _refuse_server(source: StorePlace) -> None:
    if source.is_server:
        raise InvalidInput(
            f"{source.store.rpartition('@')[2]} is a server, and only a file can be followed: set "
            "`follow = true` in the section [backup] of the server's millstream.toml, or run "
            "`millstream backup` without --follow by a timer"
        )


def _stream(source: StorePlace) -> Printed:
    """Write a complete backup to standard output, and the result to standard error."""
    from millstream.backup.source import open_source
    from millstream.backup.stream import write_stream
    from millstream.clock import SystemClock

    if sys.stdout.isatty():
        raise typer.BadParameter("a stream (-) goes to a pipe or a file, not to a terminal")
    store, output = source.store, sys.stdout.buffer
    with progress("opening") as show:
        hear = show or _quiet
        if source.is_server:
            from millstream.remote.backup import ServerStore, stream_server

            server = ServerStore(store, token=source.token(), ca=source.ca)
            point = stream_server(server, output, heard=hear)
        else:
            now_ms = SystemClock().wall_ms()
            with open_source(store, hear) as opened:
                point = write_stream(opened, output, now_ms=now_ms, heard=hear)
    shown = safe(store.rpartition("@")[2])
    note(f"commit {point.seq} of {shown} ({size(point.file_bytes)}) was written")
    raise typer.Exit


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""


def _follow(store: str, place: str, *, keep: Keep | None, compress: bool | None) -> Printed:
    """Follow a store until a signal."""
    from millstream.backup.follow import FollowState, follow

    stop = threading.Event()
    states: list[FollowState] = []

    def note_state(state: FollowState) -> None:
        if not states:
            note(f"following {safe(store)}; commit {state.seq} is in {safe(place)}. Ctrl-C ends it")
        states[:] = [state]

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        follow(
            store,
            place,
            stop=stop,
            keep=keep,
            compress=compress,
            on_state=note_state,
            on_failure=lambda error: note(f"warning: {safe(error.message)}"),
        )
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    (state,) = states
    facts = {"place": place, "seq": state.seq, "stored_ms": state.stored_ms}
    return Printed(facts, f"commit {state.seq} of {safe(store)} is in {safe(place)}")


@command(backup, "backup list /mnt/backup/shop", name="list")
def list_points(place: StoredPlace) -> Printed:
    """List the commits that can be restored. These are points, and the commits behind a point.

    All commits between the two of a line can be restored. Without --follow a point is one commit.
    """
    from millstream.backup.place import BackupPlace, in_order

    source = BackupPlace(place)
    source.require()
    stored = list(source.read_points())
    points = in_order(stored)
    damage = [one.damage for one in stored if one.point is None]
    ends = [_end(source, point) for point in points]
    rows = [
        (
            point.seq,
            when(point.committed_ms),
            end["seq"],
            when(end["committed_ms"]),
            size(point.file_bytes),
        )
        for point, end in zip(points, ends, strict=True)
    ]
    lines = [PrintedLine(f"damage: {safe(text)}", "red") for text in damage]
    table = Table(("from commit", "at", "to commit", "at", "size"), rows, none="no points yet")
    listed = [{**_facts(point), "end": end} for point, end in zip(points, ends, strict=True)]
    facts = {"points": listed, "damage": damage}
    return Printed(facts, table, *lines, code=EXIT_DAMAGED if damage else 0)


@command(backup, "backup verify /mnt/backup/shop", "backup verify s3://bucket/shop --deep")
def verify(
    place: StoredPlace,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME|SEQ",
            help="Only the point from which the commit of a time, or with a number, is restored.",
            show_default="all points",
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also restore the newest point to a temporary file and examine it."
        ),
    ] = False,
) -> Printed:
    """Compare all chunks of a backup with their hashes.

    Exit code 0: every point can be restored; 1: the backup is damaged.
    """
    from millstream.backup.verify import verify as verify_place

    with progress("reading") as show:
        report = verify_place(
            place, at=moment_of(at), examine=_examined if deep else None, heard=show
        )
    lines = [PrintedLine(f"damage: {safe(text)}", "red") for text in report.damage]
    facts = {"place": place, **report._asdict(), "sound": not lines}
    texts = [_verdict(report)]
    if report.damaged_chunks:
        texts.append(
            "next: delete these chunks, then run `millstream backup` again: it stores those that the "
            "store still has"
        )
        texts += [f"  {safe(place)}/{name}" for name in report.damaged_chunks[:_SHOWN_MAX]]
        more = len(report.damaged_chunks) - _SHOWN_MAX
        texts += [f"  and {more:,} more; --json lists all"] if more > 0 else []
    return Printed(facts, *lines, *texts, code=EXIT_DAMAGED if lines else 0)


_SHOWN_MAX = 100


def _verdict(report: VerifyReport) -> str:
    """Return the result of a check as a sentence."""
    if not report.points:
        return "sound: the backup has no points yet"
    amount = f"{plural(report.chunks, 'chunk')} ({size(report.bytes)})"
    if report.segments:
        amount += f" and {plural(report.segments, 'segment')} of later commits"
    if report.points > 1:
        amount += ", each once,"
    if report.damage:
        verdict = (
            f"damaged: {report.points_damaged} of {plural(report.points, 'point')} cannot be "
            "restored completely"
        )
        if report.damaged_chunks:
            verdict += f"; {plural(len(report.damaged_chunks), 'chunk')} damaged or missing"
        return f"{verdict}; {amount} read and sound" if report.chunks else verdict
    return (
        f"sound: {plural(report.points, 'point')} can be restored; {amount} were read and fit "
        "their hashes"
    )


def moment_of(text: str | None) -> RestoreMoment | None:
    """Parse the value of --at: the number of a commit, or a time."""
    from millstream.backup.replay import RestoreMoment

    if text is None:
        return None
    if text.isdecimal():
        return RestoreMoment(seq=int(text))
    return RestoreMoment(time_ms=parse_timestamp(text))


def _examined(path: Path) -> list[str]:
    """Examine a file as `millstream doctor` does."""
    from millstream.doctor import examine

    report = examine(path)
    return [problem.message for problem in report.problems] if not report.healthy else []


def _end(place: BackupPlace, point: BackupPoint) -> dict[str, int]:
    """Return the newest commit that can be restored from a point."""
    from millstream.backup.segments import list_chain

    chain = list_chain(place.objects, point)
    unbroken = [segment for number, segment in enumerate(chain) if segment.number == number]
    end = unbroken[-1] if unbroken else point
    return {"seq": end.seq, "committed_ms": end.committed_ms}


def _facts(point: BackupPoint) -> dict[str, Any]:
    facts = asdict(point)
    del facts["lists"]
    return {**facts, "bytes": point.file_bytes}
