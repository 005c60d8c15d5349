"""What the scrub of a store found is told by `/health`, `/metrics` and `/stats`, and goes once it is repaired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.embedded.session import open_store
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.server.core import Core
from millstream.server.observe.health import Checkup, check_scrub, duration_ago
from millstream.server.settings import Settings
from millstream.testing import Probe, SimulatedClock
from tests.unit.server.guarded import Guarded, guarded, in_loop
from tests.unit.server.test_metrics import scrape


async def scrub_check(at: Guarded) -> tuple[str, str]:
    """The status and the detail of the check, as of now."""
    found = await Checkup(at.core.session, at.core.settings).health()
    (check,) = [one for one in found.checks if one.name == "scrub"]
    assert bool(check.advice) == (check.status != "healthy")
    return check.status, check.detail


def test_damage_shows_in_health_metrics_and_stats_until_it_is_repaired(tmp_path: Path) -> None:
    async def test() -> None:
        clock = SimulatedClock()
        engine = SqliteEngine(tmp_path / "s.db", vfs="unix", durability="relaxed", clock=clock)
        core = Core(open_store(engine, clock=clock), Settings())
        probe = Probe(core.store)
        probe.pause_keeper()
        at = Guarded(core, [])

        def minutes(count: int) -> None:
            for _ in range(count * 60):
                clock.advance(1)
                core.store.scrub.turn()

        try:
            for _ in range(5):
                at.ms.log("orders").append(b"x")
            at.ms.fold()
            assert await scrub_check(at) == (
                "healthy",
                "no pass over all rows has ended yet; 0% of the next pass",
            )
            assert ("millstream_scrub_last_pass_age_seconds",) not in await scrape(at)
            minutes(2)
            assert (await scrub_check(at))[0] == "healthy"
            found = await scrape(at)
            assert found[("millstream_scrub_progress_ratio",)] == 1
            assert found[("millstream_scrub_findings",)] == 0
            assert found[("millstream_scrub_rows_total",)] > 3
            assert 0 <= found[("millstream_scrub_last_pass_age_seconds",)] < 120

            (head, *_) = probe.rows(keys.HEAD)
            probe.damage(head)
            minutes(61)
            assert await scrub_check(at) == (
                "warning",
                "the head of log 1: its checksum does not fit",
            )
            assert (await scrape(at))[("millstream_scrub_findings",)] == 1
            stats: Any = (await at.ask("GET", "/stats")).json()
            assert stats["scrub_findings"] == ["the head of log 1: its checksum does not fit"]

            probe.damage(head)  # the same bit once more
            minutes(2)
            assert (await scrub_check(at))[0] == "healthy"
            assert (await scrape(at))[("millstream_scrub_findings",)] == 0
        finally:
            await core.close()

    in_loop(test)


def test_a_store_without_a_file_has_no_such_check_and_no_such_metric() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            found = await Checkup(at.core.session, at.core.settings).health()
            assert "scrub" not in {check.name for check in found.checks}
            assert not [name for name in await scrape(at) if "scrub" in name[0]]

    in_loop(test)


def test_many_findings_are_counted() -> None:
    stats = {"scrub_findings": ["a", "b"], "scrub_findings_left_off": 7, "scrub_age_s": 3.0}
    assert check_scrub(stats).detail == "a; and 8 more"


@pytest.mark.parametrize(
    ("age_s", "told"),
    [
        (0, "less than a minute ago"),
        (61, "1 minute ago"),
        (7_300, "2 hours ago"),
        (9e6, "104 days ago"),
    ],
)
def test_ages_are_told_in_words(age_s: float, told: str) -> None:
    assert duration_ago(age_s) == told


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="scrub_share"):
        Settings(scrub_share=2).check()
