"""The doctor: examines a store's file and says what is wrong, and what is lost by it.

It verifies SQLite's own structure and write-ahead log, the checksum of every row, that commits and offsets have no
gap, that every record's payload is there, and that names, cursors, queues, rooms and counters agree. It never
writes, works in one snapshot while others use the store, and goes on behind damage.
"""

from __future__ import annotations

import os
from pathlib import Path

from millstream.doctor.examined import ExaminedRows, Progress
from millstream.doctor.findings import Finding, Findings, Report
from millstream.doctor.logs import LogExamination
from millstream.doctor.object_rows import ObjectRows
from millstream.doctor.queues import QueueExamination
from millstream.doctor.replay import Replay
from millstream.doctor.rooms import RoomExamination
from millstream.doctor.rows import FileRows
from millstream.engine.place import is_bucket
from millstream.errors import CorruptionError
from millstream.format import ids, keys

__all__ = ["Finding", "Progress", "Report", "examine"]


def examine(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Examine a whole store.

    Raises `CannotOpen` if no store can be opened, and `CorruptionError` if the damage hides all rows.
    """
    tell = progress or (lambda _stage, _done, _total: None)
    if is_bucket(path):
        return _examine_bucket(str(path), tell)
    place = Path(path)
    findings = Findings(Report(path=str(place)))
    rows = FileRows(place, findings, tell)
    try:
        rows.enter("write-ahead log")
        cut_off = rows.break_in_log()
        if cut_off is not None:
            findings.add("file", str(cut_off))
        return _examine(rows, findings)
    finally:
        rows.close()


def _examine_bucket(address: str, progress: Progress) -> Report:
    findings = Findings(Report(path=address))
    rows = ObjectRows(address, findings, progress)
    try:
        return _examine(rows, findings)
    except CorruptionError as error:  # report the findings up to this point
        findings.report.complete = False
        findings.add("file", f"rows cannot be read any further: {error.message}")
        return findings.finish()
    finally:
        rows.close()


def _examine(rows: ExaminedRows, findings: Findings) -> Report:
    report = findings.report
    report.format, report.page_checksums = rows.format, rows.page_checksums
    rows.enter(f"{rows.backend}'s own check")
    wrong = rows.integrity()
    report.sqlite = "; ".join(wrong[:3]) or report.sqlite
    for line in wrong:
        findings.add("file", f"{rows.backend}: {line}")
    present = rows.count()

    rows.enter("commits")
    replay = Replay(rows, findings)
    replay.run()
    next_id = max(replay.next_id, _reserved(rows, findings))

    rows.enter("logs")
    logs = LogExamination(rows, replay, findings)
    logs.check_names()
    rows.enter("records")
    logs.check_entries()
    rows.enter("payloads")
    logs.check_payloads()
    rows.enter("queues")
    queues = QueueExamination(replay, findings, logs)
    queues.check_messages()
    rows.enter("rooms")
    RoomExamination(replay, findings, logs).check_rooms()
    rows.enter("hashes")
    logs.check_marks()
    rows.enter("cursors")
    logs.check_readers()
    _check_rest(rows, replay, findings)
    if replay.last_seq == 0 and report.rows:
        findings.add("commit", "the newest commit is gone, and with it the store's counters")
    elif logs.highest_id >= 0 or replay.next_log > 1:
        logs.check_counter(next_id)
    _check_all_seen(present, findings)
    rows.enter("done")
    return findings.finish()


def _reserved(rows: ExaminedRows, findings: Findings) -> int:
    """The end of the ids that are marked as given out."""
    try:
        value = rows.get(keys.ID_BLOCK_KEY)
        return 0 if value is None else ids.decode_seq_block(value).end
    except CorruptionError as error:
        findings.add("counter", f"the id counter is damaged: {error}")
        return 0


def _check_rest(rows: ExaminedRows, replay: Replay, findings: Findings) -> None:
    """The rows that belong to none of the parts."""
    bounds = (
        (b"", keys.prefix(keys.ENTRY)),
        (keys.ID_BLOCK_KEY, keys.prefix(keys.QUEUE)),
        (keys.after(keys.prefix(keys.RETRY)), keys.prefix(keys.FORKS)),
        (keys.prefix(keys.FORMER), keys.prefix(keys.AGING)),
        (keys.after(keys.prefix(keys.AGING)), keys.prefix(keys.REMAINS)),
        (keys.after(keys.prefix(keys.REMAINS)), keys.prefix(keys.ROOM)),
        (keys.after(keys.prefix(keys.ROSTER)), keys.prefix(keys.NOTE)),
        (keys.after(keys.prefix(keys.NOTE)), b"\xff" * 32),
    )
    for start, stop in bounds:
        for row in rows.walk(start, stop):
            if row.problem and row.key != keys.ID_BLOCK_KEY:
                replay.report_row(row.key, row.problem)


def _check_all_seen(present: dict[str, int], findings: Findings) -> None:
    """Rows that SQLite counts but that no walk has reached."""
    report = findings.finish()  # a damaged row is not counted as reached
    for table, count in present.items():
        reached = report.rows.get(table, 0)
        if reached < count and report.healthy:
            findings.add(
                "row",
                f"table {table} has {count:,} rows, and {reached:,} could be reached by their key",
            )
