"""`millstream bench`: speed, measured here and now against a limit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(help="Measure speed against a limit, in one run.", no_args_is_help=True)


@bench.command()
def core(
    json: Annotated[bool, typer.Option("--json", help="One JSON object per workload.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A workload; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Time per workload.")] = 4.0,
    sync_delay_ms: Annotated[
        float, typer.Option("--sync-delay-ms", help="Pause after every sync, as on slow disks.")
    ] = 0.0,
    directory: Annotated[
        Path | None, typer.Option("--directory", help="Where to write; default: temporary files.")
    ] = None,
) -> None:
    """Appends, reads and opening, beside a raw file that is synced as often."""
    from millstream.bench import core as workloads

    names = _chosen(only, workloads.WORKLOADS)
    rows = []
    for row in workloads.run(
        names,
        directory=directory,
        seconds_each=seconds,
        sync_delay_ms=sync_delay_ms,
        started=lambda name: print(f"{name} …", file=sys.stderr, flush=True),
    ):
        rows.append(row)
        if json:
            import msgspec

            print(msgspec.json.encode(row).decode(), flush=True)
    if not json:
        _show(rows)


def _chosen(only: list[str] | None, known: Iterable[str]) -> list[str]:
    names = list(known)
    unknown = [name for name in only or [] if name not in names]
    if unknown:
        raise typer.BadParameter(f"no workload {unknown[0]!r}; there are {', '.join(names)}")
    return [name for name in names if not only or name in only]


def _show(rows: Sequence[object]) -> None:
    from msgspec import UNSET
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "batch", "per second", "p50 ms", "p99 ms", "limit/s", "ratio")
    table.add_column("required")
    table.add_column("reached")
    for row in rows:
        limit, ratio, passed = (getattr(row, n) for n in ("limit_per_second", "ratio", "passed"))
        void = getattr(row, "void", "")
        reached = "void: " + void if void else "" if passed is UNSET else "yes" if passed else "no"
        details = getattr(row, "details", {})
        if details:
            reached += " " + ", ".join(f"{name} {value:g}" for name, value in details.items())
        table.add_row(
            getattr(row, "workload", ""),
            str(getattr(row, "batch", "")),
            f"{getattr(row, 'per_second', 0):,.0f}",
            f"{getattr(row, 'p50_ms', 0):.3f}",
            f"{getattr(row, 'p99_ms', 0):.3f}",
            "" if limit is UNSET else f"{limit:,.0f}",
            "" if ratio is UNSET else f"{ratio:.2f}",
            getattr(row, "required", ""),
            reached,
        )
    Console().print(table)
