"""`millstream doctor`: verify a store, and show what is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.display import (
    FactSheet,
    Printed,
    PrintedLine,
    note,
    offsets,
    plural,
    progress,
    safe,
    size,
)
from millstream.cli.place import StorePlace
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.doctor import Finding, Report
    from millstream.doctor.environment import Environment

EXIT_DAMAGED = 1
_ADVICE = (
    "restore a copy of the store, or copy all readable records to a new one (`millstream sync`)"
)
SHOWN_MAX = 50
"""Most problems that are printed; `--json` has more."""


def doctor(
    place: StorePlace,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The store's file; default: --store.")
    ] = None,
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Check the machine instead: interpreter, Spark, Java, host name, disk.",
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a zip for a maintainer: versions, sizes, findings; no data, no secrets.",
        ),
    ] = None,
) -> Printed:
    """Verify all checksums and the completeness of a store.

    SQLite's own structure is verified, too. The command only reads, and others may write meanwhile.
    Exit code 0: healthy; 1: damaged; 2: the store cannot be opened. With --environment, 1: an
    installed package cannot work.
    """
    file = place.home("doctor", path)
    if environment:
        from millstream.doctor.environment import survey

        return _surroundings(survey(file if isinstance(file, Path) else Path.cwd()))
    from millstream.doctor import examine

    with progress("opening") as tell:
        report = examine(file, progress=tell)
    if bundle is not None:
        from millstream.doctor.bundle import write_bundle

        if not isinstance(file, Path):
            raise InvalidInput(f"--bundle is for files, and {safe(str(file))} is a bucket")
        write_bundle(bundle, file.absolute(), report)
        note(f"{safe(str(bundle))} has facts without payloads, names and secrets")
    return _findings(report)


def _surroundings(environment: Environment) -> Printed:
    java = environment.java
    pairs = [
        ("Python", f"{environment.python}, {environment.interpreter}"),
        ("SQLite", environment.sqlite),
        ("machine", f"{environment.platform}, {plural(environment.cores, 'core')}"),
        ("host name", f"{environment.hostname}, {environment.address or 'without an address'}"),
        *((name, version or "not installed") for name, version in environment.packages.items()),
        ("Java", f"{java.major} at {java.home}, by {java.source}" if java else "not usable"),
        *environment.variables.items(),
        *(
            (name, f"{size(disk.free_bytes)} free of {size(disk.total_bytes)}")
            for name, disk in environment.disks.items()
        ),
    ]
    shown = [PrintedLine(f"problem: {safe(problem)}", "yellow") for problem in environment.problems]
    if not shown:
        ready = (
            "Spark can run here" if environment.packages["pyspark"] else "Spark is not installed"
        )
        shown = [PrintedLine(f"no problems; {ready}", "bold green")]
    return Printed(
        environment, FactSheet(pairs), *shown, code=EXIT_DAMAGED if environment.problems else 0
    )


def _findings(report: Report) -> Printed:
    lost = f"{report.records_lost:,}"
    if not report.complete:
        lost = f"at least {lost}: parts of the file cannot be read"
    pairs = [
        ("store", f"{report.path}, format {report.format}"),
        ("checksums", "in every page" if report.page_checksums else "beside rows only"),
        ("engine's own check", report.sqlite),
        ("rows checked", f"{sum(report.rows.values()):,} ({size(report.bytes)})"),
        ("logs", f"{report.logs:,} with {plural(report.records, 'record')}"),
        ("cursors, producers", f"{report.cursors:,}, {report.producers:,}"),
        ("queues", f"{report.queues:,} holding {plural(report.messages, 'message')}"),
        ("rooms", f"{report.rooms:,}"),
        ("unfolded commits", report.commits_unfolded),
        ("records lost", lost),
        ("payloads lost", report.payloads_lost),
        ("messages without payload", report.payloads_missing),
        ("payloads unreachable", report.payloads_unreachable),
    ]
    shown = [_line(problem) for problem in report.problems[:SHOWN_MAX]]
    hidden = len(report.problems) - SHOWN_MAX + report.problems_left_off
    if hidden > 0:
        shown.append(PrintedLine(f"and {plural(hidden, 'more problem')}; --json lists them"))
    is_healthy = report.healthy
    if not is_healthy:
        shown.append(PrintedLine(_ADVICE))
    shown.append(
        PrintedLine("healthy", "bold green") if is_healthy else PrintedLine("damaged", "bold red")
    )
    return Printed(report, FactSheet(pairs), *shown, code=0 if is_healthy else EXIT_DAMAGED)


def _line(problem: Finding) -> PrintedLine:
    where = ""
    if problem.log is not None and problem.kind != "queue":  # its messages name the place
        where = f"log {problem.log!r}"
        if problem.lost is not None:
            where += f", {offsets(*problem.lost)} lost"
    text = f"{problem.severity}: {where}{': ' if where else ''}{safe(problem.message)}"
    return PrintedLine(text, "red" if problem.severity == "damage" else "yellow")
