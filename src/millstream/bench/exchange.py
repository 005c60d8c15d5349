"""The workloads of exports and imports: JSON Lines with keys and headers, through a file."""

from __future__ import annotations

from pathlib import Path

import millstream
from millstream.bench.measure import ReportRow, StepMeter, seconds
from millstream.bench.ops_bench import OpsBench
from millstream.exchange.export import export as write_export
from millstream.exchange.export import replaced_file
from millstream.exchange.formats import Format, reader_of
from millstream.exchange.importing import ImportSummary, checked_file, import_file
from millstream.exchange.selection import RecordSelection
from millstream.threads.database import Millstream

BATCH = 1_000


def export(bench: OpsBench) -> ReportRow:
    """Write a log of JSON records to a file, durably."""
    meter = StepMeter()
    with _source(bench) as source:
        while not meter.messages or meter.elapsed_s < bench.seconds:
            began = seconds()
            size = _exported(source, bench.directory / "out.jsonl", bench.records)
            _note(meter, bench.records, seconds() - began)
    row = meter.row(batch=BATCH, details={"bytes_per_record": round(size / bench.records, 1)})
    return row.require_rate(150_000)


def import_(bench: OpsBench) -> ReportRow:
    """Check a file and store its records in an empty store, durably."""
    meter = StepMeter()
    path = bench.directory / "in.jsonl"
    with _source(bench) as source:
        _exported(source, path, bench.records)
    read = reader_of(Format.JSONL)
    while not meter.messages or meter.elapsed_s < bench.seconds:
        target = bench.directory / f"target-{len(meter.step_s)}.db"
        with millstream.open(target) as ms, path.open("rb") as stream:
            began = seconds()
            summary = ImportSummary()
            file = checked_file(stream, read, needs_log=True, skip_bad=False)
            import_file(ms, file, summary)
            _note(meter, bench.records, seconds() - began)
            if summary.stored != bench.records or len(ms.log("orders")) != bench.records:
                raise RuntimeError("an import ended early")
        for leftover in bench.directory.glob(f"{target.name}*"):
            leftover.unlink()
    return meter.row(batch=BATCH).require_rate(150_000)


import_.__name__ = "import"  # the name of the row


def _source(bench: OpsBench) -> Millstream:
    """Return a store with a log of JSON records, which have keys; made once in a directory."""
    ms = millstream.open(bench.directory / "exchange.db")
    log = ms.log("orders")
    for first in range(len(log), bench.records, BATCH):
        numbers = range(first, min(first + BATCH, bench.records))
        values = [
            {"id": number, "name": f"customer {number}", "total": number / 4} for number in numbers
        ]
        log.append_many(values, keys=[f"customer-{number % 1_000}" for number in numbers])
    return ms


def _exported(source: Millstream, path: Path, records: int) -> int:
    """Export the log; return the size of the file."""
    with replaced_file(path) as file:
        summary = write_export(
            source, ["orders"], file, format=Format.JSONL, selection=RecordSelection()
        )
    if summary.records != records:
        raise RuntimeError("an export ended early")
    return summary.bytes


def _note(meter: StepMeter, count: int, took_s: float) -> None:
    meter.messages += count
    meter.elapsed_s += took_s
    meter.step_s.append(took_s)
