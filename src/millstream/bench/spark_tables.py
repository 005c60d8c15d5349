"""Workloads of tables: files registered as a table, and a table that follows a log.

The continuous table is measured while a writer appends at a fixed rate: how long ago the oldest record
that the table lacks was appended. Then its command is killed again and again, and at the end table and
log are compared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, seconds
from millstream.bench.spark_bench import SCHEMA, TURNS_MIN, SparkBench, typed_values
from millstream.errors import CannotOpen

if TYPE_CHECKING:
    from millstream.threads.log import Log

REGISTERED_FILES = 100
PER_SECOND, APPEND_S = 20_000, 0.05
"""Records that the writer appends per second, and how often it appends."""
INTERVAL_S = 2.0
STEADY_S, STEADY_SHORT_S = 30.0, 1.0
"""How long a table is followed without kills, and how long in a run that only tries the workload."""
KILLS, KILLED_AFTER_S = 10, 4.0
"""A command is killed up to so long after its first commit."""
BEHIND_MAX_S = 10.0
COMMIT_S_MAX = 180.0
"""How long a command may take to its first commit."""


class SteadyWriter:
    """Appends records with a schema at a fixed rate, and knows when each offset was appended."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._ends, self._times = [log.end_offset()], [seconds()]

    def _write(self) -> None:
        random, each = Random(1), int(PER_SECOND * APPEND_S)
        began, batches = seconds(), 0
        while not self._ended.wait(max(0.0, began + batches * APPEND_S - seconds())):
            end = self._ends[-1]
            self.log.append_many(typed_values(random, range(end, end + each)))
            self._times.append(seconds())
            self._ends.append(end + each)
            batches += 1

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def appended_s(self, offset: int) -> float:
        """Return when the record at an offset was appended."""
        return self._times[min(bisect_left(self._ends, offset + 1), len(self._times) - 1)]

    def rate(self) -> float:
        """Return how many records were appended per second."""
        return (self._ends[-1] - self._ends[0]) / (self._times[-1] - self._times[0])


class Delays:
    """How long the oldest record that a table lacked had waited, right before and after each commit."""

    def __init__(self, writer: SteadyWriter, lasts_s: float) -> None:
        """`stop` is set so long after the first commit, and after another commit at least."""
        self._writer, self._lasts_s = writer, lasts_s
        self._covered, self._began = 0, 0.0
        self.stop = threading.Event()
        self.commits = 0
        self.before_s: list[float] = []
        self.after_s: list[float] = []

    def committed(self, _stage: str, end: int, _total: int) -> None:
        """Note a commit; the first one takes what was there before the run, and does not count."""
        now = seconds()
        if not self.commits:
            self._began = now
        else:
            self.before_s.append(now - self._writer.appended_s(self._covered))
            self.after_s.append(now - self._writer.appended_s(end))
            if now - self._began >= self._lasts_s:
                self.stop.set()
        self.commits += 1
        self._covered = end


def spark_table(bench: SparkBench) -> ReportRow:
    """A Delta and an Iceberg table that follow a log, and the Delta table under kills of its command."""
    if refused := _without_lake():
        return refused
    is_short = bench.seconds < 1
    folders = {kind: bench.directory / bench.name(f"lake-{kind}") for kind in ("delta", "iceberg")}
    delays: dict[str, Delays] = {}
    log = bench.client.log(bench.name("followed"), schema=SCHEMA)
    with SteadyWriter(log) as writer:
        for kind, folder in folders.items():
            delays[kind] = Delays(writer, STEADY_SHORT_S if is_short else STEADY_S)
            _follow(bench, log, folder, kind, delays[kind])
        kills = 1 if is_short else KILLS
        gaps_s = _killed(bench, log, folders["delta"], kills)
    for kind, folder in folders.items():
        _follow(bench, log, folder, kind, None)
    end = log.end_offset()
    exact = {kind: _has_each_once(folder, kind, end) for kind, folder in folders.items()}
    worst = {kind: max(each.before_s, default=0.0) for kind, each in delays.items()}
    times_s = sorted(delays["delta"].before_s)
    row = ReportRow(
        payload_bytes=PAYLOAD_BYTES,
        per_second=round(writer.rate()),
        p50_ms=round(median(times_s or [0.0]) * 1000, 1),
        p99_ms=round(worst["delta"] * 1000, 1),
        details={
            "records": end,
            "turns": delays["delta"].commits,
            "behind_s": {kind: round(each, 2) for kind, each in worst.items()},
            "behind_after_commit_s": {
                kind: round(median(each.after_s or [0.0]), 2) for kind, each in delays.items()
            },
            "kills": kills,
            "first_commit_after_a_kill_s": round(median(gaps_s), 1),
        },
    )
    if len(times_s) < TURNS_MIN:
        row.void = f"{delays['delta'].commits} turns are too few; give it a second or more"
    row.require(f"{PER_SECOND:,}/s in", writer.rate() >= 0.95 * PER_SECOND)
    for kind in folders:
        row.require(f"{kind} ≤ {BEHIND_MAX_S:g} s behind", worst[kind] <= BEHIND_MAX_S)
        row.require(f"{kind} exactly once", exact[kind])
    return row


def _follow(bench: SparkBench, log: Log, folder: Path, kind: str, delays: Delays | None) -> None:
    """Let a table follow the log for a while, or without `delays` up to the log's end."""
    from millstream.spark.pipelines.table import table
    from millstream.spark.pipelines.target import quiet

    table(
        bench.spark, bench.store, folder, logs=[log.name], kind=kind, once=delays is None,
        interval=INTERVAL_S, stop=threading.Event() if delays is None else delays.stop,
        progress=quiet if delays is None else delays.committed,
    )  # fmt: skip


def _killed(bench: SparkBench, log: Log, folder: Path, kills: int) -> list[float]:
    """Kill the command of a table some time after a commit, again and again; the times to a commit."""
    random = Random(kills)
    times_s: list[float] = []
    for _ in range(kills):
        began = seconds()
        with _command(bench, log, folder) as (process, output):
            waiting = threading.Event()
            while b"table: " not in output.read_bytes():
                if process.poll() is not None or seconds() - began > COMMIT_S_MAX:
                    raise RuntimeError(output.read_text(errors="replace")[-2_000:])
                waiting.wait(0.02)
            times_s.append(seconds() - began)
            waiting.wait(random.uniform(0, KILLED_AFTER_S))
    return times_s


@contextmanager
def _command(
    bench: SparkBench, log: Log, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the command of a table while the block runs, then kill it with all that it started."""
    output = bench.directory / bench.name("output")
    command = [sys.executable, "-m", "millstream.cli", "spark", "run", "table", str(folder)]
    command += ["--log", log.name, "--store", bench.store, "--kind", "delta"]
    command += ["--master", "local[2]", "--interval", f"{INTERVAL_S:g}s"]
    with output.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, start_new_session=True)
    try:
        yield process, output
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_each_once(folder: Path, kind: str, end: int) -> bool:
    """Return whether a table has each offset of a log once."""
    import numpy as np

    if kind == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(str(folder)).to_pyarrow_table(columns=["offset"])
    else:
        from millstream.spark.archive.folders import folder_of
        from millstream.spark.archive.iceberg import catalog_of, name_of

        place = folder_of(folder)
        scan = catalog_of(place, "").load_table(name_of(place)).scan(selected_fields=("offset",))
        rows = scan.to_arrow()
    return bool(np.array_equal(np.sort(rows.column("offset").to_numpy()), np.arange(end)))


def spark_register(bench: SparkBench) -> ReportRow:
    """Registering the files of an archive as a table: Delta, and beside it Iceberg."""
    from millstream.spark.archive.archive import Archive
    from millstream.spark.archive.lake import KINDS, register
    from millstream.spark.pipelines.archive import archive

    if refused := _without_lake():
        return refused
    bench.many()
    names = [f"many-{number:06}" for number in range(REGISTERED_FILES)]
    logs = [name for name in names if bench.client.log(name).end_offset()]
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(1 if bench.seconds < 1 else TURNS_MIN + 1):
        folder = bench.directory / bench.name("kept")
        archive(bench.spark, bench.store, folder, logs=logs)
        for kind, times in took_s.items():
            began = seconds()
            register(Archive(folder), kind)
            times.append(seconds() - began)
    # The first turn imports the libraries.
    middle_s = {kind: median(times[1:] or times) for kind, times in took_s.items()}
    turns = len(took_s["delta"])
    row = ReportRow(
        payload_bytes=PAYLOAD_BYTES,
        batch=len(logs),
        per_second=round(len(logs) / middle_s["delta"]),
        p50_ms=round(middle_s["delta"] * 1000, 1),
        details={
            "files": len(logs),
            "iceberg_s": round(middle_s["iceberg"], 2),
            "delta_s": round(middle_s["delta"], 2),
            "turns": turns,
        },
    )
    if turns < TURNS_MIN:
        row.void = f"{turns} turns are too few; give it a second or more"
    row.require("iceberg ≤ 5 s", middle_s["iceberg"] <= 5)
    return row.require("delta ≤ 2 s", middle_s["delta"] <= 2)


def _without_lake() -> ReportRow | None:
    """Return a void row if the libraries of tables are missing."""
    from millstream.spark.archive.lake import KINDS, check_table

    try:
        for kind in KINDS:
            check_table(kind)
    except CannotOpen as error:
        return ReportRow(void=error.message, details={"turns": 0})
    return None
