"""`millstream bench`: speed, measured here and now against a limit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from millstream.bench.measure import Row

bench = typer.Typer(help="Measure speed against a limit, in one run.", no_args_is_help=True)


Json = Annotated[bool, typer.Option("--json", help="One JSON object per workload.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="A workload; may be repeated.")]
Length = Annotated[float, typer.Option("--seconds", help="Time per workload.")]
SyncDelay = Annotated[
    float, typer.Option("--sync-delay-ms", help="Pause after every sync, as on slow disks.")
]
Directory = Annotated[
    Path | None, typer.Option("--directory", help="Where to write; default: temporary files.")
]


@bench.command()
def core(
    json: Json = False,
    only: Only = None,
    seconds: Length = 4.0,
    sync_delay_ms: SyncDelay = 0.0,
    directory: Directory = None,
) -> None:
    """Appends, reads and opening, beside a raw file that is synced as often."""
    from millstream.bench import core as workloads

    _run(workloads, only, json, seconds, directory, sync_delay_ms=sync_delay_ms)


@bench.command()
def queue(
    json: Json = False,
    only: Only = None,
    seconds: Length = 20.0,
    sync_delay_ms: SyncDelay = 0.0,
    directory: Directory = None,
) -> None:
    """Claims and routing, beside a plain queue in an SQLite table."""
    from millstream.bench import queue as workloads

    _run(workloads, only, json, seconds, directory, sync_delay_ms=sync_delay_ms)


@bench.command()
def server(
    json: Json = False,
    only: Only = None,
    seconds: Length = 5.0,
    directory: Directory = None,
) -> None:
    """A server process over loopback: its socket, REST, latency and memory."""
    from millstream.bench import server as workloads

    _run(workloads, only, json, seconds, directory)


@bench.command()
def spark(
    json: Json = False,
    only: Only = None,
    seconds: Length = 20.0,
    records: Annotated[int, typer.Option(min=1, help="Records per workload.")] = 1_000_000,
    directory: Directory = None,
) -> None:
    """Spark's source, sink and routing, beside Spark's own Parquet files."""
    from millstream.bench import spark as workloads

    _run(workloads, only, json, seconds, directory, records=records)


@bench.command()
def replica(
    json: Json = False,
    only: Only = None,
    seconds: Length = 5.0,
    records: Annotated[int, typer.Option(min=1, help="Records in the large log.")] = 1_000_000,
    directory: Directory = None,
) -> None:
    """A sync of a large log between two files, and one with nothing new."""
    from millstream.bench import replica as workloads

    _run(workloads, only, json, seconds, directory, records=records)


def _run(
    workloads: Any,
    only: list[str] | None,
    json: bool,
    seconds: float,
    directory: Path | None,
    **more: float,
) -> None:
    """Run the workloads of a module that were asked for, and report them."""
    names = _chosen(only, workloads.SUITE.workloads)
    rows = workloads.SUITE.run(
        names, directory=directory, seconds_each=seconds, started=_progress, **more
    )
    _report(rows, json=json)


def _progress(name: str) -> None:
    print(f"{name} …", file=sys.stderr, flush=True)


def _report(found: Iterable[Row], *, json: bool) -> None:
    """Each row as soon as it is there; or a table of all, at the end."""
    if not json:
        _show(list(found))
        return
    import msgspec

    for row in found:
        print(msgspec.json.encode(row).decode(), flush=True)


def _chosen(only: list[str] | None, known: Iterable[str]) -> list[str]:
    names = list(known)
    unknown = [name for name in only or [] if name not in names]
    if unknown:
        raise typer.BadParameter(f"no workload {unknown[0]!r}; there are {', '.join(names)}")
    return [name for name in names if not only or name in only]


def _show(rows: Sequence[Row]) -> None:
    from msgspec import UNSET
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "batch", "per second", "p50 ms", "p99 ms", "beside/s", "ratio")
    table.add_column("required")
    table.add_column("reached")
    for row in rows:
        beside = row.beside_per_second
        table.add_row(
            row.workload,
            str(row.batch),
            f"{row.per_second:,.0f}",
            f"{row.p50_ms:.3f}",
            f"{row.p99_ms:.3f}",
            "" if beside is UNSET else f"{beside:,.0f}",
            "" if row.ratio is UNSET else f"{row.ratio:.2f}",
            row.required,
            _reached(row),
        )
    Console().print(table)


def _reached(row: Row) -> str:
    from msgspec import UNSET

    details = ", ".join(_details(row.details))
    if row.void:
        verdict = "void: " + row.void
    else:
        verdict = "" if row.passed is UNSET else "yes" if row.passed else "no"
    return f"{verdict} {details}".strip()


def _details(found: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _details(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name} {value:g}"
