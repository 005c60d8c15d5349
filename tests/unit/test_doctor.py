"""The doctor finds what was broken, says what is lost by it, goes on, and changes nothing."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import millstream
from millstream.doctor import Finding, Report, examine
from millstream.doctor.findings import PROBLEMS_MAX, Findings
from millstream.doctor.message_ids import Visited
from millstream.engine.checksum import row_checksum
from millstream.errors import CannotOpen, CorruptionError
from millstream.format import keys

SINGLES = 60
APART = 30
"""Of the singles, so many at the start are folded one by one; the fold joins the others."""

BATCHES = 5
PER_BATCH = 50


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folded store with singles and batches, and a few unfolded commits on top."""
    place = tmp_path / "store.db"
    with millstream.open(place) as ms:
        orders, events = ms.log("orders"), ms.log("events")
        for number in range(SINGLES):
            orders.append({"number": number}, key=f"k{number}")
            if number <= APART:
                ms.fold()
        for _ in range(BATCHES):
            events.append_many([b"x" * 100] * PER_BATCH)
        orders.cursor("billing").ack([0, 1, 5])
        orders.append(b"", producer=millstream.Producer("shop", 1))
        orders.metadata["owner"] = "me"
        ms.fold()
        orders.append("late")
        orders.append("later")
    return place


def change(path: Path, statement: str, *values: Any) -> None:
    with closing(apsw.Connection(str(path))) as file:
        file.execute(statement, values)
        assert file.changes(), "the statement has found nothing to damage"


def put(path: Path, key: bytes, value: bytes) -> None:
    """Replace a record as a bug would: with a checksum that fits."""
    change(
        path,
        "UPDATE millstream_record SET value = ?, crc = ? WHERE key = ?",
        value,
        row_checksum(key, value),
        key,
    )


def damages(report: Report) -> list[Finding]:
    return [problem for problem in report.problems if problem.severity == "damage"]


def losses(report: Report) -> list[tuple[str | None, tuple[int, int] | None]]:
    return [(problem.log, problem.lost) for problem in damages(report) if problem.lost]


def told(report: Report) -> str:
    return "\n".join(problem.message for problem in report.problems)


def test_a_healthy_store_is_seen_whole_and_left_as_it_was(path: Path) -> None:
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    report = examine(path)
    assert report.healthy
    assert report.problems == []
    assert (report.logs, report.records) == (2, SINGLES + 3 + BATCHES * PER_BATCH)
    assert (report.cursors, report.producers, report.format) == (1, 1, 1)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before
    with closing(apsw.Connection(str(path))) as file:
        for table, seen in report.rows.items():
            assert file.execute(f"SELECT count(*) FROM millstream_{table}").get == seen


def test_a_store_that_was_only_created_is_healthy(tmp_path: Path) -> None:
    millstream.open(tmp_path / "new.db").close()
    report = examine(tmp_path / "new.db")
    assert (report.healthy, report.logs) == (True, 0)


def test_it_works_while_others_write(path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with millstream.open(path) as ms:
            while not stop.is_set():
                ms.log("orders").append(b"x")
                ms.log("events").append_many([b"y" * 2000] * 3)
                for name in ("orders", "events"):  # so that the store does not grow without end
                    log = ms.log(name)
                    log.truncate(before=log.end_offset() - 20)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            report = examine(path)
            assert report.healthy, told(report)
    finally:
        stop.set()
        writer.join()


def test_truncated_deleted_and_unfolded_things_are_not_damage(path: Path) -> None:
    with millstream.open(path) as ms:
        ms.log("orders").truncate(before=10)
        ms.log("events").truncate(before=PER_BATCH + 7)
        ms.log("gone").append_many([b"z" * 3000] * 4)
        ms.log("gone").delete()
        ms.log("empty").cursor("c")
        ms.log("far").append("x")
        ms.log("far").truncate(before=1000, past_end=True)
        report = examine(path)
        assert report.healthy, told(report)
    report = examine(path)
    assert report.healthy, told(report)


def test_a_missing_payload_is_one_lost_record(path: Path) -> None:
    change(path, "DELETE FROM millstream_payload WHERE id = 7")
    report = examine(path)
    assert losses(report) == [("orders", (7, 8))]
    assert (report.records_lost, report.payloads_lost) == (1, 1)


def test_neighbouring_losses_are_told_as_one(path: Path) -> None:
    change(path, "DELETE FROM millstream_payload WHERE id BETWEEN 7 AND 11 OR id = 20")
    assert losses(examine(path)) == [("orders", (7, 12)), ("orders", (20, 21))]


def test_a_damaged_block_of_joined_singles_loses_all_of_them(path: Path) -> None:
    change(path, "DELETE FROM millstream_block WHERE id = ?", APART)
    assert losses(examine(path)) == [("orders", (APART, SINGLES + 1))]


def test_a_damaged_payload_block_loses_its_batch(path: Path) -> None:
    change(
        path,
        "UPDATE millstream_block SET value = zeroblob(length(value)) "
        "WHERE id = (SELECT id FROM millstream_block ORDER BY id LIMIT 1 OFFSET 3)",
    )
    report = examine(path)
    assert losses(report) == [("events", (2 * PER_BATCH, 3 * PER_BATCH))]
    assert "checksum" in told(report)
    assert len(report.problems) == 1


def test_a_payload_block_of_another_batch_is_noticed(path: Path) -> None:
    """Its checksum fits its row, but it is not what the entry points to."""
    with closing(apsw.Connection(str(path))) as file:
        query = "SELECT id FROM millstream_block LIMIT 2 OFFSET 1"
        first, second = [row[0] for row in file.execute(query)]
        value = file.execute("SELECT value FROM millstream_block WHERE id = ?", (second,)).get
    change(
        path,
        "UPDATE millstream_block SET value = ?, crc = ? WHERE id = ?",
        value,
        row_checksum(keys.payload_block(first), value),
        first,
    )
    assert losses(examine(path)) == [("events", (0, PER_BATCH))]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM millstream_record WHERE key = ?", "the entry is missing"),
        ("UPDATE millstream_record SET value = x'00' WHERE key = ?", "the entry is damaged"),
        ("UPDATE millstream_record SET crc = 'no' WHERE key = ?", "the entry is damaged"),
    ],
)
def test_an_entry_that_is_gone_loses_the_offsets_up_to_the_next(
    path: Path, statement: str, why: str
) -> None:
    change(path, statement, keys.entry(2, 2 * PER_BATCH - 1))
    report = examine(path)
    assert losses(report) == [("events", (PER_BATCH, 2 * PER_BATCH))]
    assert why in told(report)
    assert report.payloads_unreachable == 1


def test_a_blob_that_became_text_is_damaged_though_its_bytes_are_the_same(path: Path) -> None:
    change(path, "UPDATE millstream_payload SET value = CAST(value AS TEXT) WHERE id = 7")
    report = examine(path)
    assert losses(report) == [("orders", (7, 8))]
    assert "text and integer" in told(report)


def test_a_lost_last_entry_is_seen_by_the_head(path: Path) -> None:
    change(path, "DELETE FROM millstream_record WHERE key = ?", keys.entry(2, 5 * PER_BATCH - 1))
    assert losses(examine(path)) == [("events", (4 * PER_BATCH, 5 * PER_BATCH))]


@pytest.mark.parametrize("how", ["DELETE FROM", "UPDATE"])
def test_a_lost_head_loses_its_log_and_no_other(path: Path, how: str) -> None:
    head = keys.head(2)
    if how == "UPDATE":
        change(path, "UPDATE millstream_record SET value = x'c0' WHERE key = ?", head)
    else:
        change(path, "DELETE FROM millstream_record WHERE key = ?", head)
    report = examine(path)
    assert report.records_lost == BATCHES * PER_BATCH
    assert "log 'events' is lost" in told(report)
    assert {p.log for p in damages(report)} <= {"events", None}
    assert report.logs == 1


def test_a_log_without_its_name_and_a_name_without_its_log_are_found(path: Path) -> None:
    change(path, "DELETE FROM millstream_record WHERE key = ?", keys.log_name("events"))
    report = examine(path)
    assert [p.log for p in damages(report)] == ["events"]
    assert "its name leads nowhere" in told(report)


def test_a_cursor_past_the_end_and_one_without_a_log_are_found(path: Path) -> None:
    put(path, keys.cursor(1, "billing"), msgspec.msgpack.encode([1, True, 1024, 9_999, [], 0]))
    assert "past the end" in told(examine(path))
    change(path, "DELETE FROM millstream_record WHERE key = ?", keys.cursor(1, "billing"))
    assert examine(path).healthy
    stray = keys.cursor(77, "stray")
    value = msgspec.msgpack.encode([1, True, 1024, 0, [], 0])
    crc = row_checksum(stray, value)
    change(path, "INSERT INTO millstream_record VALUES (?, ?, ?)", stray, value, crc)
    assert "belongs to log 77" in told(examine(path))


def test_a_counter_that_would_give_out_an_id_twice_is_found(path: Path) -> None:
    payload, value = keys.payload(10_000_000), b"stray"
    change(
        path,
        "INSERT INTO millstream_payload VALUES (10000000, ?, ?)",
        value,
        row_checksum(payload, value),
    )
    report = examine(path)
    assert "would overwrite old ones" in told(report)
    assert not report.healthy


def test_an_unreachable_payload_is_waste_and_no_damage(path: Path) -> None:
    value = b"stray"
    # An id below the counter that no entry uses: the gap that reopening leaves is one.
    with closing(apsw.Connection(str(path))) as file:
        free = file.execute("SELECT max(id) + 60 FROM millstream_block").get
    crc = row_checksum(keys.payload(free), value)
    change(path, "INSERT INTO millstream_payload VALUES (?, ?, ?)", free, value, crc)
    report = examine(path)
    assert report.healthy, told(report)
    assert [p.severity for p in report.problems] == ["waste"]
    assert report.payloads_unreachable == 1


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE millstream_delta SET value = x'00' WHERE id = ?", "is damaged"),
        ("DELETE FROM millstream_delta WHERE id = ?", "missing"),
    ],
)
def test_a_broken_commit_tells_what_was_appended_behind_it(
    path: Path, statement: str, why: str
) -> None:
    with millstream.open(path) as ms:
        before = ms.log("orders").end_offset()
        broken = ms.stats()["sequence"] + 1
        for number in range(4):
            ms.log("orders").append(number)
    change(path, statement, broken)
    report = examine(path)
    assert why in told(report)
    assert f"commits {broken} to {broken + 3}" in told(report)
    assert losses(report) == [("orders", (before, before + 3))]


def test_the_newest_commit_cannot_vanish_unnoticed(path: Path) -> None:
    with millstream.open(path) as ms:
        for _ in range(3):
            ms.log("orders").append(b"x")
        ms.fold()
    with closing(apsw.Connection(str(path))) as file:
        last = file.execute("SELECT max(id) FROM millstream_delta").get
    change(path, "DELETE FROM millstream_delta WHERE id = ?", last)
    assert "newest commit" in told(examine(path))


def test_a_record_newer_than_the_newest_commit_shows_that_commits_are_lost(path: Path) -> None:
    key = keys.head(2)
    with closing(apsw.Connection(str(path))) as file:
        value = file.execute("SELECT value FROM millstream_record WHERE key = ?", (key,)).get
    put(path, key, msgspec.msgpack.encode([999, *msgspec.msgpack.decode(value)[1:]]))
    assert "the head of log 2 includes commit 999" in told(examine(path))


def test_a_damaged_counter_and_instance_are_reported(path: Path) -> None:
    for key in (keys.ID_BLOCK_KEY, keys.STORE_KEY):
        change(path, "UPDATE millstream_record SET crc = 1 WHERE key = ?", key)
    report = examine(path)
    assert "the id counter is damaged" in told(report)
    assert "the store's own record is damaged" in told(report)


def test_a_row_under_a_key_that_nobody_seeks_is_counted(path: Path) -> None:
    change(path, "INSERT INTO millstream_record VALUES (5, x'00', 0)")
    assert "45 could be reached by their key" in told(examine(path))


def test_a_cut_file_is_examined_as_far_as_it_goes(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4 // 4096 * 4096])
    report = examine(path)
    assert not report.healthy
    assert report.sqlite != "ok"
    pages = len(data) // 4096
    assert f"the file was cut: it ends in page {pages * 3 // 4 + 1} of {pages}" in told(report)
    assert not report.complete


def pages(data: bytes) -> Iterator[int]:
    yield from range(4096, len(data), 4096)


def test_each_zeroed_page_that_was_in_use_is_noticed_and_survived(path: Path) -> None:
    data = path.read_bytes()
    readable = _records(path)
    for start in pages(data):
        broken = bytearray(data)
        broken[start : start + 4096] = bytes(4096)
        path.write_bytes(broken)
        _verdict_is_right(path, readable)
        assert path.read_bytes() == broken


def test_flipped_bits_are_noticed_and_survived(path: Path) -> None:
    """A verdict of health means that every record can be read, and is what was written."""
    seed = int(os.environ["MILLSTREAM_SEED"])
    print(f"seed {seed}")
    chance = random.Random(seed)
    data = path.read_bytes()
    readable = _records(path)
    for _ in range(150):
        broken = bytearray(data)
        broken[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        _verdict_is_right(path, readable)


def test_every_flipped_bit_of_the_list_of_tables_is_noticed(path: Path) -> None:
    """SQLite cannot go on without this page's own header; the doctor says what to do then."""
    data, readable = path.read_bytes(), _records(path)
    for place, bit in itertools.product(range(100, 116), range(8)):
        broken = bytearray(data)
        broken[place] ^= 1 << bit
        path.write_bytes(broken)
        _verdict_is_right(path, readable)


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b"sqlite_autoindex_millstream", b"sqlite_autoinde\xec_millstream"),
        (b"millstream_payload (id INTEGER", b"millstream_payload (id INTEGES"),
        (b"millstream_block (id INTEGER", b"millstream_block (id INTEGES"),
        (b"tablemillstream_delta", b"tablemillstream_d\xe9lta"),
    ],
)
def test_a_damaged_schema_is_survived(path: Path, whole: bytes, damaged: bytes) -> None:
    readable, data = _records(path), path.read_bytes()
    assert whole in data
    path.write_bytes(data.replace(whole, damaged, 1))
    _verdict_is_right(path, readable)


def _records(path: Path) -> list[tuple[str, int, bytes]]:
    with millstream.open(path) as ms:
        return [(r.log, r.offset, r.value) for n in ("orders", "events") for r in ms.log(n).read()]


def _verdict_is_right(path: Path, readable: list[tuple[str, int, bytes]]) -> None:
    try:
        report = examine(path)
    except CorruptionError as error:
        if "put back a copy" not in str(error):
            raise
        return
    if report.healthy:
        kept = path.read_bytes()
        assert _records(path) == readable
        path.write_bytes(kept)
    for side in ("-wal", "-shm"):
        Path(f"{path}{side}").unlink(missing_ok=True)


def left_by_a_kill(path: Path) -> Path:
    """A copy of the store as a killed process leaves it: its commits in the write-ahead log."""
    copy = path.with_name("killed.db")
    with millstream.open(path) as ms:
        for number in range(6):
            ms.log("orders").append(number)
        for side in ("", "-wal"):
            Path(f"{copy}{side}").write_bytes(Path(f"{path}{side}").read_bytes())
    return copy


def test_an_intact_write_ahead_log_is_left_as_it_is(path: Path) -> None:
    copy = left_by_a_kill(path)
    wal = Path(f"{copy}-wal")
    before = copy.read_bytes(), wal.read_bytes()
    report = examine(copy)
    assert report.healthy, told(report)
    assert report.records == SINGLES + 3 + 6 + BATCHES * PER_BATCH
    assert (copy.read_bytes(), wal.read_bytes()) == before


@pytest.mark.parametrize("at", [0, 20, 32 + 8, 32 + 24 + 100])
def test_commits_behind_a_flipped_bit_of_the_write_ahead_log_are_reported(
    path: Path, at: int
) -> None:
    """SQLite itself ignores them, and finds nothing wrong."""
    copy = left_by_a_kill(path)
    wal = Path(f"{copy}-wal")
    broken = bytearray(wal.read_bytes())
    broken[at] ^= 1
    wal.write_bytes(broken)
    report = examine(copy)
    assert report.sqlite == "ok"
    assert not report.healthy
    assert "at least 6 commits that were acknowledged would be lost" in told(report)


def test_a_commit_that_a_crash_cut_off_is_not_damage(path: Path) -> None:
    copy = left_by_a_kill(path)
    wal = Path(f"{copy}-wal")
    data = wal.read_bytes()
    for cut in (1, 4096 + 24, 4096 + 24 + 1):
        wal.write_bytes(data[:-cut])
        report = examine(copy)
        assert report.healthy, told(report)


def test_a_file_that_cannot_be_written_can_be_examined(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert examine(path).healthy
    finally:
        path.parent.chmod(0o755)


def test_progress_is_told_for_every_stage(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    examine(path, progress=lambda *facts: seen.append(facts))
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == [
        "write-ahead log",
        "SQLite's own check",
        "commits",
        "logs",
        "records",
        "payloads",
        "queues",
        "rooms",
        "hashes",
        "cursors",
        "done",
    ]
    assert seen[-1][1] == seen[-1][2] > 0


def test_further_problems_are_counted() -> None:
    findings = Findings(Report(path="x"))
    for number in range(PROBLEMS_MAX + 5):
        findings.lose("log", "gone", log="a", start=2 * number, stop=2 * number + 1)
    report = findings.finish()
    assert len(report.problems) == PROBLEMS_MAX
    assert report.problems_left_off == 5
    assert report.records_lost == PROBLEMS_MAX + 5


def test_visited_ids_are_remembered_one_by_one() -> None:
    visited = Visited()
    numbers = [0, 1, 7, 8, 65_535, 65_536, 2**62]
    assert all(visited.add(number) for number in numbers)
    assert not any(visited.add(number) for number in numbers)
    assert all(number in visited for number in numbers)
    assert not any(number in visited for number in (2, 9, 65_534, 65_537, 2**62 + 1, -1))


def test_a_journal_that_undoes_nothing_is_no_obstacle(path: Path) -> None:
    """A process that is killed before it writes the journal's header has not changed the file."""
    journal = Path(f"{path}-journal")
    journal.write_bytes(bytes(4_612))
    millstream.open(path).close()
    assert journal.exists()
    assert examine(path).healthy
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    with pytest.raises(CannotOpen, match="open the store once"):
        examine(path)
