"""`millstream doctor`: verify a store, and show what is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    from millstream.doctor.repair import RepairReport

EXIT_DAMAGED = 1
STANDARD = "-"
"""The name of standard input."""
_ADVICE = (
    "repair the store from a backup (`millstream doctor STORE --repair --from BACKUP`), restore it, or "
    "copy all readable records to a new one (`millstream sync`)"
)
SHOWN_MAX = 50
"""Most problems that are printed; `--json` has more."""


@dataclass(frozen=True)
class RepairOptions:
    """The options of a repair."""

    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Show which damaged rows and pages --from can replace; see --apply."
        ),
    ] = False
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE|URL",
            help="A backup, a copy of the store, or a server with it, for --repair.",
        ),
    ] = None
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="With --repair: replace them. The damaged file is kept aside."
        ),
    ] = False


def doctor(
    place: StorePlace,
    repairs: RepairOptions,
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
    log_lines: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --bundle: add lines of a server's log, without names; - is standard input.",
        ),
    ] = None,
) -> Printed:
    """Verify all checksums and the completeness of a store.

    SQLite's own structure is verified, too. The command only reads, and others may write meanwhile.
    Exit code 0: healthy; 1: damaged; 2: the store cannot be opened. With --environment, 1: an
    installed package cannot work.

    With --repair the command looks for the damaged rows and pages in a backup, a copy or a server.
    A part is replaced only if it has the checksum that the damaged part had. Without --apply
    nothing is changed.
    """
    if log_lines is not None and bundle is None:
        raise typer.BadParameter("--log-lines adds lines to a bundle: name it by --bundle FILE")
    file = place.home("doctor", path)
    if repairs != RepairOptions():
        return _repaired(place, file, repairs)
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
        with _lines_of(log_lines) as lines:
            write_bundle(bundle, file.absolute(), report, log_lines=lines)
        note(f"{safe(str(bundle))} has facts without payloads, names and secrets")
    return _findings(report)


@contextmanager
def _lines_of(name: str | None) -> Iterator[Iterable[bytes] | None]:
    """Open a file of log lines, or standard input; None without a name."""
    if name is None:
        yield None
    elif name == STANDARD:
        yield sys.stdin.buffer
    else:
        with open(name, "rb") as file:
            yield file


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


def _repaired(place: StorePlace, file: Path | str, options: RepairOptions) -> Printed:
    """Repair a store, or show what a repair would do."""
    donor_place = options.from_
    if not options.repair or donor_place is None:
        raise typer.BadParameter("--repair and --from belong together; --apply needs both")
    from millstream.doctor.donor import open_donor
    from millstream.doctor.repair import apply_repair, plan_repair

    if not isinstance(file, Path):
        raise InvalidInput(
            f"--repair is for files, and {safe(str(file))} is a bucket: restore its backup to a file, "
            "then `millstream copy` the file to a new bucket"
        )
    with progress("opening") as tell:
        opening = open_donor(
            donor_place,
            folder=file.absolute().parent,
            token=place.token(),
            ca=place.ca,
            heard=tell,
        )
        with opening as donor:
            if options.apply:
                report = apply_repair(file, donor, progress=tell)
            else:
                report = plan_repair(file, donor)
    verb = "replaced" if report.applied else "can replace"
    lines = [PrintedLine(f"{verb}: {safe(text)}", "green") for text in report.replaced]
    lines += [PrintedLine(f"cannot repair: {safe(text)}", "red") for text in report.remaining]
    is_done = (
        report.healthy if options.apply and report.replaced else not (lines or report.remaining)
    )
    shown = [*lines[:SHOWN_MAX], PrintedLine(_verdict(report))]
    return Printed(report, *shown, code=0 if is_done else EXIT_DAMAGED)


def _verdict(report: RepairReport) -> str:
    """Return the result of a repair as a sentence."""
    if not report.replaced and not report.remaining:
        return "no damaged row or page; `millstream doctor` examines the store in full"
    if not report.replaced:
        return f"{safe(report.donor)} can repair nothing of this: restore the store"
    count = plural(len(report.replaced), "damaged part")
    if not report.applied:
        return f"{count} can be replaced from {safe(report.donor)}: --apply does it"
    state = "healthy" if report.healthy else "still damaged: `millstream doctor` shows where"
    return f"{count} replaced; the store is {state}. The damaged file is {safe(str(report.aside))}"


def _line(problem: Finding) -> PrintedLine:
    where = ""
    if problem.log is not None and problem.kind != "queue":  # its messages name the place
        where = f"log {problem.log!r}"
        if problem.lost is not None:
            where += f", {offsets(*problem.lost)} lost"
    text = f"{problem.severity}: {where}{': ' if where else ''}{safe(problem.message)}"
    return PrintedLine(text, "red" if problem.severity == "damage" else "yellow")
