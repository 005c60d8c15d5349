"""The doctor and queues: nothing is missing or left over after whatever was done, and what was
broken by hand is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from millstream import Millstream
from millstream.doctor import Report, examine
from millstream.engine.checksum import row_checksum
from millstream.errors import LeaseLost
from millstream.format import block as blocks
from millstream.format import keys
from millstream.format.ids import make_claim_id
from millstream.log.reading.reader import log_id_of
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import HAS_DONE
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, fold_all, upkeep

pytestmark = pytest.mark.embedded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def told(report: Report) -> str:
    return "\n".join(problem.message for problem in report.problems)


def change(path: Path, statement: str, *values: Any) -> None:
    with closing(apsw.Connection(str(path))) as file:
        file.execute(statement, values)
        assert file.changes(), "the statement has found nothing to damage"


def put(path: Path, key: bytes, value: bytes) -> None:
    """Write a row as a bug would: with a checksum that fits."""
    crc = row_checksum(key, value)
    tables = {keys.PAYLOAD_BLOCK: "block", keys.PAYLOAD: "payload"}
    table = tables.get(key[1])
    place: Any = key if table is None else keys.number(key)
    column = "key" if table is None else "id"
    change(
        path,
        f"INSERT OR REPLACE INTO millstream_{table or 'record'}({column}, value, crc) "
        "VALUES (?, ?, ?)",
        place,
        value,
        crc,
    )


def get(path: Path, key: bytes) -> bytes:
    with closing(apsw.Connection(str(path))) as file:
        query = "SELECT value FROM millstream_record WHERE key = ?"
        (found,) = [row[0] for row in file.execute(query, (key,))]
        assert isinstance(found, bytes)
        return found


def keys_of(path: Path, kind: int) -> list[bytes]:
    start, stop = keys.range_of(keys.prefix(kind))
    with closing(apsw.Connection(str(path))) as file:
        query = "SELECT key FROM millstream_record WHERE key >= ? AND key < ? ORDER BY key"
        return [row[0] for row in file.execute(query, (start, stop))]


def worked_on(reopen: Reopen) -> int:
    """A folded store with messages in every state, some of them below the start of their log."""
    ms = reopen()
    queue = ms.queue("jobs", sources="events", backoff=50, bucket_exponent=2)
    log = ms.log("events")
    log.append_many([b"%d" % n for n in range(50)])
    for n in range(50, 60):
        log.append(b"%d" % n)
        if n >= 55:
            fold_all(ms)  # so that these are not joined
    messages = queue.claim(58)
    queue.fail([messages[3], messages[55]])
    queue.nack([messages[4], messages[56]])
    queue.ack([*messages[5:55]])
    fold_all(ms)
    log.truncate(before=58)
    log.enforce_retention()
    fold_all(ms)
    log_id = log_id_of(Probe(ms).store, "events")
    ms.close()
    return log_id


def test_a_store_that_was_worked_on_is_healthy(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    report = examine(path)
    assert report.healthy
    assert report.problems == []
    assert (report.queues, report.messages) == (1, 10)
    assert (report.payloads_missing, report.payloads_unreachable) == (0, 0)
    with closing(apsw.Connection(str(path))) as file:
        for table, seen in report.rows.items():
            assert file.execute(f"SELECT count(*) FROM millstream_{table}").get == seen


@pytest.mark.parametrize("offset", [56, 57, 59])
def test_a_payload_that_a_queue_misses_is_damage(reopen: Reopen, path: Path, offset: int) -> None:
    worked_on(reopen)
    change(path, "DELETE FROM millstream_payload WHERE CAST(value AS TEXT) = ?", str(offset))
    report = examine(path)
    assert not report.healthy
    assert report.payloads_missing == 1
    found = [one for one in report.problems if one.message.startswith("missing payload")]
    assert [(one.log, one.lost) for one in found] == [("events", (offset, offset + 1))]
    claim = make_claim_id(2, offset)
    assert f"queue 'jobs', claim {claim}," in told(report)


def test_a_block_of_joined_singles_that_a_queue_misses_is_damage(
    reopen: Reopen, path: Path
) -> None:
    worked_on(reopen)
    change(path, "DELETE FROM millstream_block WHERE id = 0")
    report = examine(path)
    assert report.payloads_missing == 5, "what was needed of the batch lies side by side"
    found = [one for one in report.problems if one.message.startswith("missing payload")]
    assert {one.log for one in found} == {"events"}


def test_an_entry_that_a_queue_misses_is_damage(reopen: Reopen, path: Path) -> None:
    log_id = worked_on(reopen)
    change(path, "DELETE FROM millstream_record WHERE key = ?", keys.entry(log_id, 4))
    report = examine(path)
    assert not report.healthy
    assert report.payloads_missing == 5, "singles that lie side by side were folded into one entry"
    assert report.payloads_unreachable == 1


def test_a_lost_block_is_missed_by_every_message_in_it(reopen: Reopen, path: Path) -> None:
    ms = reopen()
    queue = ms.queue("jobs", lease=30)
    queue.put_many([b"x"] * 20)
    queue.put_many([b"y"] * 20)
    queue.ack(queue.claim(5))
    fold_all(ms)
    ms.close()
    change(path, "DELETE FROM millstream_block WHERE id = 0")
    report = examine(path)
    assert report.payloads_missing == 15
    assert "claim" in told(report)


def test_payloads_that_nothing_leads_to_are_counted(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    body = blocks.encode_values([b"orphan"])
    orphan = blocks.place(
        body,
        kind=blocks.PAYLOAD,
        count=1,
        first_id=2_000,
        columns=blocks.VALUE,
        body_crc=blocks.checksum(body),
    )
    put(path, keys.payload_block(2_000), orphan)
    put(path, keys.payload(2_001), b"orphan")
    report = examine(path)
    assert (report.payloads_missing, report.payloads_unreachable) == (0, 2)
    assert report.healthy, "waste is no damage"


@pytest.mark.parametrize(("field", "left_out"), [(5, 0), (6, 0), (6, -1)])
def test_the_attempts_that_are_told_are_compared_with_their_number(
    reopen: Reopen, path: Path, field: int, left_out: int
) -> None:
    worked_on(reopen)
    assert examine(path).problems == []
    (key,) = [key for key in keys_of(path, keys.BUCKET) if key.endswith(bytes(7))]
    fields = msgspec.msgpack.decode(get(path, key))
    del fields[field][left_out]
    put(path, key, msgspec.msgpack.encode(fields))
    report = examine(path)
    assert not report.healthy
    assert "are not all told" in told(report)


def test_done_messages_that_would_never_be_forgotten_are_found(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    listed = keys_of(path, keys.AGING)
    change(path, "DELETE FROM millstream_record WHERE key = ?", listed[0])
    assert "would never be forgotten" in told(examine(path))
    put(path, listed[0], b"")
    assert examine(path).problems == []
    put(path, keys.aging(77, HAS_DONE, 5, 0), b"")
    assert "a bucket of queue 77, which is gone, is listed as aging" in told(examine(path))
    put(path, listed[0][:20], b"")
    assert "its key is cut" in told(examine(path))


def test_columns_of_different_lengths_are_found(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    key = keys_of(path, keys.BUCKET)[0]
    fields = msgspec.msgpack.decode(get(path, key))
    fields[2] += b"\x00\x00"
    put(path, key, msgspec.msgpack.encode(fields))
    assert "its columns differ in length" in told(examine(path))


def test_the_list_of_those_that_wait_is_compared(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    start, stop = keys.range_of(keys.prefix(keys.RETRY))
    with closing(apsw.Connection(str(path))) as file:
        query = "SELECT key FROM millstream_record WHERE key >= ? AND key < ?"
        (first, _) = [row[0] for row in file.execute(query, (start, stop))]
    queue_id = int.from_bytes(first[2:10], "big")
    change(path, "DELETE FROM millstream_record WHERE key = ?", first)
    assert "counts 2 messages as waiting, 1 are listed" in told(examine(path))
    put(path, keys.retry(queue_id, 7, make_claim_id(2, 10)), b"")
    report = examine(path)
    assert "is listed as waiting, but it is not available" in told(report)
    assert not report.healthy


def test_counts_are_compared_with_the_buckets(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    key = keys.queue("jobs")
    queue = msgspec.msgpack.decode(get(path, key), type=QueueState)
    queue.counts.failed = 7
    put(path, key, msgspec.msgpack.encode(queue))
    report = examine(path)
    assert "queue 'jobs' counts 7 messages as failed, there are 2" in told(report)
    assert not report.healthy


def test_a_bucket_without_its_queue_is_found(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    change(path, "DELETE FROM millstream_record WHERE key = ?", keys.queue("jobs"))
    assert "which is gone" in told(examine(path))


def test_records_of_later_types_are_only_checked_for_damage(reopen: Reopen, path: Path) -> None:
    worked_on(reopen)
    for kind in range(0x15, 0x1B):
        put(path, bytes((keys.VERSION, kind)) + b"\x00" * 7 + b"\x01abc", b"whatever")
    report = examine(path)
    assert report.problems == []


class Mill:
    """Does this and that to a store."""

    def __init__(self, seed: int, reopen: Reopen, clock: SimulatedClock) -> None:
        self.random = random.Random(seed)
        self.reopen = reopen
        self.clock = clock
        self.ms: Millstream = reopen()
        self.specify()

    def specify(self) -> None:
        self.ms.queue("inbox only", bucket_exponent=1, done_retention=300, backoff=5, lease=20)
        self.ms.queue(
            "some", sources="events", filter="n > 3", bucket_exponent=2, dead_letter="dead", lease=9
        )
        self.ms.queue("all", sources="*", bucket_exponent=3, max_attempts=2, backoff=0)
        self.ms.queue("grouped", sources="events", group_by="n", priority_by="p", backoff=3)

    def step(self) -> None:
        steps: list[Callable[[], Any]] = [
            self.put,
            self.put,
            self.append,
            self.append,
            self.work,
            self.work,
            self.work,
            self.work,
            self.truncate,
            self.redrive,
            self.pass_time,
            self.purge,
            self.begin_anew,
            self.fold,
            self.upkeep,
        ]
        self.random.choice(steps)()

    def put(self) -> None:
        queue = self.ms.queue(self.random.choice(["inbox only", "some"]))
        for _ in range(self.random.randrange(3)):
            queue.put_many([b"m" * self.random.randrange(60)] * self.random.randrange(1, 40))
            queue.put(b"one")
        later = self.ms.queue(self.random.choice(["inbox only", "grouped"]))
        if later.exists():
            later.put(b"later", delay=self.random.choice([1, 20, 500]))

    def append(self) -> None:
        log = self.ms.log(self.random.choice(["events", "events", "news"]))
        count = self.random.randrange(1, 80)
        log.append_many([b"r"] * count, headers=[{"n": n % 9, "p": n % 4} for n in range(count)])
        log.append(b"one", headers={"n": 7})

    def work(self) -> None:
        queue = self.ms.queue(self.random.choice(["inbox only", "some", "all", "grouped"]))
        if not queue.exists():
            return
        messages = queue.claim(self.random.randrange(1, 60))
        self.random.shuffle(messages)
        cut = self.random.randrange(len(messages) + 1)
        with suppress(LeaseLost):
            queue.ack(messages[:cut])
            for message in messages[cut : cut + 6]:
                self.random.choice([queue.nack, queue.fail])(message)
        queue.pop(self.random.randrange(3))

    def truncate(self) -> None:
        log = self.ms.log(
            self.random.choice(["events", "news", "queue:some", "dead", "queue-later:grouped"])
        )
        if self.random.random() < 0.3:
            log.retain(count=self.random.randrange(50))
        log.truncate(before=self.random.randrange(log.start_offset(), log.end_offset() + 1))
        log.enforce_retention()
        if self.random.random() < 0.1:
            log.delete()

    def redrive(self) -> None:
        queue = self.ms.queue(self.random.choice(["some", "all"]))
        if queue.exists():
            queue.redrive(limit=self.random.randrange(1, 9))

    def pass_time(self) -> None:
        self.clock.advance(self.random.choice([1, 6, 30, 400]))

    def purge(self) -> None:
        if self.random.random() < 0.3:
            queue = self.ms.queue(self.random.choice(["inbox only", "some", "all", "grouped"]))
            queue.purge(state=self.random.choice(["available", "failed"]))

    def begin_anew(self) -> None:
        if self.random.random() < 0.3:
            self.ms.queue(self.random.choice(["some", "all", "grouped"])).delete()
            self.upkeep()
        self.specify()
        if self.random.random() < 0.5:
            self.ms = self.reopen()

    def fold(self) -> None:
        fold_all(self.ms)

    def upkeep(self) -> None:
        upkeep(self.ms)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_missing_or_left_over_after_a_lively_mix(
    reopen: Reopen, clock: SimulatedClock, path: Path, seed: int
) -> None:
    mill = Mill(seed, reopen, clock)
    for turn in range(150):
        mill.step()
        if turn % 10 == 9:
            report = examine(path)
            assert report.problems == [], f"after {turn} steps"
            assert (report.payloads_missing, report.payloads_unreachable) == (0, 0)
    for info in mill.ms.queues():
        queue = mill.ms.queue(info.name)
        for state in ("available", "in_flight", "failed"):
            for message in queue.peek(10_000, state=state):
                assert message.value is not None
    mill.ms.close()
    assert examine(path).problems == []


@pytest.mark.parametrize("seed", range(2))
def test_in_the_end_everything_goes(
    reopen: Reopen, clock: SimulatedClock, path: Path, seed: int
) -> None:
    mill = Mill(100 + seed, reopen, clock)
    for _ in range(100):
        mill.step()
    ms = mill.ms
    for queue in ms.queues():
        ms.queue(queue.name).purge()
        ms.queue(queue.name).purge(state="failed")
    clock.advance(1_000)
    for _ in range(3):
        for info in ms.queues():
            queue = ms.queue(info.name)
            queue.claim(0)
            queue.purge()
            queue.purge(state="failed")
        for log in ms.logs():
            ms.log(log.name).truncate(before=log.end_offset)
        fold_all(ms)
        clock.advance(10)
        upkeep(ms)
    ms.queue("all").purge()
    for log in ms.logs():
        ms.log(log.name).truncate(before=log.end_offset)
        ms.log(log.name).enforce_retention()
    assert {log.name: log.bytes for log in ms.logs() if log.bytes} == {}
    ms.close()
    with closing(apsw.Connection(str(path))) as file:
        assert file.execute("SELECT count(*) FROM millstream_block").get == 0
        assert file.execute("SELECT count(*) FROM millstream_payload").get == 0
    assert examine(path).problems == []


def test_positions_that_cannot_be_right_are_told(reopen: Reopen, path: Path) -> None:
    ms = reopen()
    ms.queue("jobs", sources="events")
    ms.log("events").append_many([b"a", b"b", b"c"])
    ms.log("events").truncate(before=10, past_end=True)
    ms.queue("jobs").claim(1)
    fold_all(ms)
    log_id = log_id_of(Probe(ms).store, "events")
    ms.close()
    assert examine(path).healthy
    with closing(apsw.Connection(str(path))) as file:
        ((value,),) = file.execute(
            "SELECT value FROM millstream_record WHERE key = ?", (keys.queue("jobs"),)
        )
    queue = msgspec.msgpack.decode(value, type=QueueState)
    queue.positions[log_id] = 11
    put(path, keys.queue("jobs"), msgspec.msgpack.encode(queue))
    assert "queue 'jobs' stands at offset 11 of log 'events', which ends at 10" in told(
        examine(path)
    )


def test_what_was_not_routed_and_is_gone_is_told(reopen: Reopen, path: Path) -> None:
    ms = reopen()
    ms.queue("jobs", sources="events")
    ms.log("events").append_many([b"a", b"b", b"c"])
    ms.log("events").truncate(before=10, past_end=True)
    ms.log("events").append(b"d")
    fold_all(ms)
    log_id = log_id_of(Probe(ms).store, "events")
    ms.close()
    assert examine(path).healthy
    change(path, "DELETE FROM millstream_record WHERE key = ?", keys.entry(log_id, 2))
    assert "the records from 0 to 2, which it has not looked at, are missing" in told(examine(path))


def test_what_is_left_of_a_deleted_queue_is_waste_only_if_nothing_says_that_it_goes(
    reopen: Reopen, path: Path
) -> None:
    ms = reopen()
    queue = ms.queue("jobs", bucket_exponent=0)
    for number in range(3):
        queue.put(b"%d" % number, delay=60)
    queue.peek()
    fold_all(ms)
    ms.close()
    with closing(apsw.Connection(str(path))) as file:
        ((name,),) = file.execute("SELECT key FROM millstream_record WHERE key >= x'0112' LIMIT 1")
        ((bucket,),) = file.execute(
            "SELECT key FROM millstream_record WHERE key >= x'0113' LIMIT 1"
        )
    change(path, "DELETE FROM millstream_record WHERE key = ?", name)
    assert "which is gone" in told(examine(path))

    leaving = keys.remains(keys.pair(bucket)[0])
    put(path, leaving, b"")
    assert "which is gone" not in told(examine(path))
    change(path, "UPDATE millstream_record SET crc = 7 WHERE key = ?", leaving)
    assert "which is deleted, has rows left" in told(examine(path))
