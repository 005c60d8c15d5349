"""`millstream doctor`: is everything there, and if not, what is lost?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath

if TYPE_CHECKING:
    from millstream.doctor import Problem, Progress, Report
    from millstream.doctor.environment import Environment

EXIT_DAMAGED = 1
SHOWN_MAX = 50
"""Problems that are printed; `--json` has more."""


def doctor(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The store's file; or --store.")
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Look at the machine instead: interpreter, Spark, Java, host name, disk.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Verify every checksum, that nothing is missing, and SQLite's own structure.

    Only reads, also while others write. Ends with 0 if the store is healthy, 1 if something is
    damaged, 2 if it cannot be opened. With --environment: 1 if something installed cannot work.
    """
    from millstream.cli import display
    from millstream.doctor import examine

    if environment:
        _look_around(path or store, json=json)
        return
    with _progress() as progress:
        report = examine(path or store, progress=progress)
    if json:
        display.say_json(report)
    else:
        _show(report)
    if not report.healthy:
        raise typer.Exit(EXIT_DAMAGED)


def _look_around(store: Path, *, json: bool) -> None:
    """Report what this machine offers."""
    from millstream.cli import display
    from millstream.doctor.environment import survey

    found = survey(store)
    if json:
        display.say_json(found)
    else:
        _show_environment(found)
    if found.problems:
        raise typer.Exit(EXIT_DAMAGED)


def _show_environment(found: Environment) -> None:
    from millstream.cli import display

    java = found.java
    facts = [
        ("Python", f"{found.python}, {found.interpreter}"),
        ("SQLite", found.sqlite),
        ("machine", f"{found.platform}, {display.plural(found.cores, 'core')}"),
        ("host name", f"{found.hostname}, {found.address or 'which leads to no address'}"),
        *((name, version or "not installed") for name, version in found.packages.items()),
        ("Java", f"{java.major} at {java.home}, by {java.source}" if java else "none of use"),
        *found.variables.items(),
        *(
            (name, f"{display.size(disk.free_bytes)} free of {display.size(disk.total_bytes)}")
            for name, disk in found.disks.items()
        ),
    ]
    display.say_facts((name, display.safe(fact)) for name, fact in facts)
    for problem in found.problems:
        display.say_styled(f"problem: {display.safe(problem)}", "yellow")
    if not found.problems:
        ready = "Spark can run here" if found.packages["pyspark"] else "Spark is not installed"
        display.say_styled(f"no problems; {ready}", "bold green")


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from millstream.cli.display import console

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=None)
        yield lambda stage, done, total: bar.update(
            task, description=stage, completed=done, total=total or None
        )


def _show(report: Report) -> None:
    from millstream.cli import display

    checksums = "in every page" if report.page_checksums else "beside rows only"
    lost = f"{report.records_lost:,}"
    if not report.complete:
        lost = f"at least {lost}: parts of the file cannot be read"
    display.say_facts(
        [
            ("store", f"{display.safe(report.path)}, format {report.format}"),
            ("checksums", checksums),
            ("SQLite's own check", display.safe(report.sqlite)),
            ("rows checked", f"{sum(report.rows.values()):,} ({display.size(report.bytes)})"),
            ("logs", f"{report.logs:,} with {display.plural(report.records, 'record')}"),
            ("cursors, producers", f"{report.cursors:,}, {report.producers:,}"),
            ("queues", f"{report.queues:,} holding {display.plural(report.messages, 'message')}"),
            ("unfolded commits", f"{report.commits_unfolded:,}"),
            ("records lost", lost),
            ("payloads lost", f"{report.payloads_lost:,}"),
            ("messages without payload", f"{report.payloads_missing:,}"),
            ("payloads unreachable", f"{report.payloads_unreachable:,}"),
        ]
    )
    for problem in report.problems[:SHOWN_MAX]:
        display.say_styled(_line(problem), "red" if problem.severity == "damage" else "yellow")
    hidden = len(report.problems) - SHOWN_MAX + report.problems_left_off
    if hidden > 0:
        display.say(f"and {display.plural(hidden, 'more problem')}; --json lists them")
    if report.healthy:
        display.say_styled("healthy", "bold green")
    else:
        display.say_styled("damaged", "bold red")


def _line(problem: Problem) -> str:
    from millstream.cli import display

    where = ""
    if problem.log is not None and problem.kind != "queue":  # whose messages say where
        where = f"log {problem.log!r}"
        if problem.lost is not None:
            where += f", {display.offsets(*problem.lost)} lost"
    return f"{problem.severity}: {where}{': ' if where else ''}{display.safe(problem.message)}"
