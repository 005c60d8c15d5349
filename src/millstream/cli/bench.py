"""`millstream bench`: measure speed on this machine, and compare it with a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import UNSET

from millstream.cli.display import Amount, Table, note, report

if TYPE_CHECKING:
    from millstream.bench.measure import ReportRow


class SuiteName(StrEnum):
    """The suites; each is a module of `millstream.bench`."""

    CORE = "core"
    QUEUE = "queue"
    JOBS = "jobs"
    SERVER = "server"
    SPARK = "spark"
    REPLICA = "replica"
    ROOMS = "rooms"
    CLUSTER = "cluster"
    S3 = "s3"
    OPS = "ops"
    SQS = "sqs"


_DEFAULTS: dict[SuiteName, dict[str, float]] = {
    SuiteName.CORE: {"seconds": 4.0, "sync_delay_ms": 0.0},
    SuiteName.QUEUE: {"seconds": 20.0, "sync_delay_ms": 0.0},
    SuiteName.JOBS: {"seconds": 5.0},
    SuiteName.SERVER: {"seconds": 5.0, "sync_delay_ms": 0.0},
    SuiteName.SPARK: {"seconds": 20.0, "records": 1_000_000},
    SuiteName.REPLICA: {"seconds": 5.0, "records": 1_000_000},
    SuiteName.ROOMS: {"seconds": 20.0},
    SuiteName.CLUSTER: {"seconds": 8.0, "records": 1_000_000},
    SuiteName.S3: {"seconds": 5.0, "records": 1_000_000},
    SuiteName.OPS: {"seconds": 5.0, "records": 200_000},
    SuiteName.SQS: {"seconds": 5.0},
}
"""The settings of each suite, with their defaults."""


def bench(
    suite: Annotated[
        SuiteName,
        typer.Argument(
            metavar="SUITE",
            help="core: appends, reads and opening; queue: claims and routing; jobs: functions on queues; server: over "
            "loopback; spark: source, sink and routing; replica: syncs; rooms: live push; s3: object storage; "
            "cluster: three nodes; ops: exports, imports, backups; sqs: clients of SQS.",
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="A workload; may be repeated."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="N", min=0.01, help="Time per workload.", show_default="4 to 20"),
    ] = None,
    sync_delay_ms: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="For core, queue and server: a pause after every sync, as on slow disks.",
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many records, for spark, replica, s3, cluster and ops.",
            show_default="1000000; 200000 for ops",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where to write.", show_default="temporary files"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per workload.")] = False,
) -> None:
    """Measure speed on this machine, and compare it with a limit.

    Each workload alternates with its limit or peer. The ratio is the result.
    """
    settings = dict(_DEFAULTS[suite])
    typed = {"seconds": seconds, "sync_delay_ms": sync_delay_ms, "records": records}
    for name, value in typed.items():
        if value is not None and name not in settings:
            raise typer.BadParameter(f"--{name.replace('_', '-')} is not for {suite}")
        if value is not None:
            settings[name] = value
    measured = import_module(f"millstream.bench.{suite}").SUITE
    rows = measured.run(
        _chosen(only, measured.workloads),
        directory=directory,
        seconds_each=settings.pop("seconds"),
        started=lambda name: note(f"{name} …"),
        **settings,
    )
    if not json:
        _table(rows).show()
        return
    for row in rows:
        report(msgspec.json.encode(row).decode())


def _chosen(only: list[str] | None, workloads: Iterable[str]) -> list[str]:
    names = list(workloads)
    unknown = [name for name in only or [] if name not in names]
    if unknown:
        raise typer.BadParameter(f"no workload {unknown[0]!r}; there are {', '.join(names)}")
    return [name for name in names if not only or name in only]


def _table(rows: Iterable[ReportRow]) -> Table:
    columns = "workload", "batch", "per second", "p50 ms", "p99 ms", "beside/s", "ratio", "required"
    cells = [
        (
            row.workload,
            row.batch,
            round(row.per_second),
            Amount(f"{row.p50_ms:.3f}"),
            Amount(f"{row.p99_ms:.3f}"),
            None if row.beside_per_second is UNSET else round(row.beside_per_second),
            None if row.ratio is UNSET else Amount(f"{row.ratio:.2f}"),
            row.required,
            _reached(row),
        )
        for row in rows
    ]
    return Table((*columns, "reached"), cells)


def _reached(row: ReportRow) -> str:
    details = ", ".join(_details(row.details))
    if row.void:
        verdict = "void: " + row.void
    else:
        verdict = "" if row.passed is UNSET else "yes" if row.passed else "no"
    return f"{verdict} {details}".strip()


def _details(details: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in details.items():
        if isinstance(value, dict):
            yield from _details(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name} {value:g}"
