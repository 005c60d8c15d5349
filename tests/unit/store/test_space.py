"""Promise: a store says where its bytes are, without reading its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.embedded.space import KEPT_S, UNCOUNTED_S
from millstream.engine.sqlite import table_sizes
from millstream.testing import Probe, SimulatedClock

VALUE = b"%0999d" % 7


def space(ms: millstream.Millstream, clock: SimulatedClock) -> dict[str, Any]:
    """Count anew."""
    clock.advance(2 * KEPT_S)
    used = ms.stats()["space"]
    assert isinstance(used, dict)
    return used


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def test_records_are_live_and_wait_for_the_slowest_reader(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    with millstream.open(tmp_path / "s.db", clock=clock) as ms:
        log = ms.log("a")
        log.append_many([VALUE] * 100)
        used = space(ms, clock)
        assert used["live_bytes"] >= 100 * 999
        assert used["waiting_bytes"] == used.get("held_bytes", 0) == 0
        log.cursor("fast").ack(range(90))
        log.cursor("slow").ack(range(50))
        assert space(ms, clock)["waiting_bytes"] == pytest.approx(used["live_bytes"] / 2, rel=0.02)
        log.cursor("slow").ack(range(50, 100))
        log.cursor("fast").ack(range(90, 100))
        assert space(ms, clock)["waiting_bytes"] == 0


def test_messages_of_a_queue_wait_until_they_are_done(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    with millstream.open(tmp_path / "s.db", clock=clock) as ms:
        queue = ms.create_queue("mail")
        queue.put_many([VALUE] * 10)
        before = space(ms, clock)
        assert before["waiting_bytes"] == before["live_bytes"] >= 10 * 999
        queue.ack(queue.claim(10))
        assert space(ms, clock)["waiting_bytes"] == 0


def test_deleted_records_that_a_fork_needs_are_held_and_then_free(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    with millstream.open(tmp_path / "s.db", clock=clock) as ms:
        probe = Probe(ms)
        probe.pause_keeper()
        ms.log("a").append_many([VALUE] * 500)
        ms.log("a").fork("branch")
        ms.log("a").truncate(before=500)
        probe.upkeep()
        used = space(ms, clock)
        assert used["held_bytes"] >= 500 * 999
        ms.log("branch").delete()
        for _ in range(20):
            clock.advance(10)
            probe.upkeep()
        ms.fold()
        used = space(ms, clock)
        assert used["held_bytes"] == 0
        assert used["free_bytes"] > 400 * 999


def test_tables_of_the_application_are_counted_unless_that_takes_long(
    tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(tmp_path / "s.db", clock=clock) as ms:
        assert space(ms, clock)["application_bytes"] == 0
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (text)")
            tx.sql("INSERT INTO mine VALUES (zeroblob(100000))")
        used = space(ms, clock)
        assert 100_000 < used["application_bytes"] < 120_000
        parts = ("live_bytes", "held_bytes", "free_bytes", "application_bytes", "other_bytes")
        assert sum(used[part] for part in parts) >= ms.stats()["file_bytes"]
        monkeypatch.setattr(table_sizes, "STEPS_PER_LOOK", 1)
        monkeypatch.setattr("millstream.embedded.space.LOOK_S_MAX", 0)
        used = space(ms, clock)
        assert "application_bytes" not in used
        monkeypatch.undo()
        assert "application_bytes" not in space(ms, clock)
        clock.advance(UNCOUNTED_S)
        assert space(ms, clock)["application_bytes"] > 100_000


def test_a_result_is_kept_for_some_seconds(tmp_path: Path, clock: SimulatedClock) -> None:
    with millstream.open(tmp_path / "s.db", clock=clock) as ms:
        used = space(ms, clock)
        ms.log("a").append_many([VALUE] * 10)
        clock.advance(KEPT_S / 2)
        later = ms.stats()["space"]
        assert later["live_bytes"] == used["live_bytes"]
        assert later["age_s"] == KEPT_S / 2
        assert space(ms, clock)["live_bytes"] > used["live_bytes"]


def test_a_store_in_memory_has_no_file() -> None:
    with millstream.open(":memory:") as ms:
        ms.log("a").append(VALUE)
        used = ms.stats()["space"]
        assert used["live_bytes"] >= len(VALUE)
        assert "free_bytes" not in used


def test_logs_beyond_the_time_limit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.embedded.space.LOGS_WITH_READERS_MAX", 1)
    clock = SimulatedClock()
    with millstream.open(tmp_path / "s.db", clock=clock) as ms:
        for number in range(3):
            ms.log(f"log {number}").append(VALUE * (1 + number))
            ms.log(f"log {number}").cursor("reader").ack([])
        used = space(ms, clock)
        assert used["logs_left_off"] == 2
        assert len(VALUE) * 3 <= used["waiting_bytes"] < used["live_bytes"]
