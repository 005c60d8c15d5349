"""Slow commands are logged with the reason of their wait."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from millstream.log.commands import CreateLog, DescribeLog
from millstream.server.observe.slow import SlowCommands
from millstream.testing import SimulatedClock
from tests.unit.server.asking import Rest, served
from tests.unit.server.guarded import guarded, in_loop


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hear the lines of the server, even if another test has sent them elsewhere."""
    monkeypatch.setattr(logging.getLogger("millstream"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="millstream.server")


class SlowWorld:
    """A clock, and the slow commands by it; the limit is a second."""

    def __init__(self, caplog: pytest.LogCaptureFixture, slow_ms: int = 1_000) -> None:
        self.clock = SimulatedClock()
        self.slow = SlowCommands(self.clock, slow_ms)
        self._caplog = caplog

    def commit(self, *, commit_s: float, sync_s: float = 0.0, lock_s: float = 0.0) -> None:
        """Let a commit take its time."""
        self.clock.advance(commit_s)
        self.slow.committed(1, commit_s, sync_s, lock_s)

    def noted(self, command: Any, began_s: float) -> dict[str, Any]:
        """Note a command that ends now, and return the facts of its line."""
        self._caplog.clear()
        self.slow.note(command, "ada", began_s, self.clock.seconds())
        (record,) = self._caplog.records
        assert (record.getMessage(), record.levelno) == ("slow_command", logging.WARNING)
        names = ("command", "client", "log", "ms", "waited_for", "disk_ms", "lock_ms")
        names += ("writer_turn_ms",)
        return {name: vars(record)[name] for name in names if name in vars(record)}


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> SlowWorld:
    return SlowWorld(caplog)


def test_a_wait_for_the_disk_is_named(world: SlowWorld) -> None:
    began_s = world.clock.seconds()
    world.commit(commit_s=2.0, sync_s=1.75, lock_s=0.125)
    assert world.noted(CreateLog("orders"), began_s) == {
        "command": "CreateLog",
        "client": "ada",
        "log": "orders",
        "ms": 2_000,
        "waited_for": "disk",
        "disk_ms": 1_750,
        "lock_ms": 125,
        "writer_turn_ms": 0,
    }


def test_a_wait_for_the_lock_of_another_process_is_named(world: SlowWorld) -> None:
    began_s = world.clock.seconds()
    world.commit(commit_s=2.0, sync_s=0.25, lock_s=1.5)
    assert world.noted(CreateLog("orders"), began_s)["waited_for"] == "lock"


def test_a_wait_for_other_commits_is_the_turn_of_the_writer(world: SlowWorld) -> None:
    began_s = world.clock.seconds()
    world.commit(commit_s=2.0, sync_s=2.0)
    world.commit(commit_s=0.5, sync_s=0.5)
    facts = world.noted(CreateLog("orders"), began_s)
    assert (facts["waited_for"], facts["writer_turn_ms"], facts["disk_ms"]) == (
        "writer turn",
        2_000,
        500,
    )


def test_without_a_long_commit_a_write_waited_for_its_turn_and_a_read_for_reading(
    world: SlowWorld,
) -> None:
    world.commit(commit_s=5.0, sync_s=5.0)  # over before the command came
    began_s = world.clock.seconds()
    world.commit(commit_s=0.0625)
    world.clock.advance(2)
    assert world.noted(CreateLog("orders"), began_s)["waited_for"] == "writer turn"
    assert world.noted(DescribeLog("orders"), began_s)["waited_for"] == "reading"


def test_zero_turns_it_off(caplog: pytest.LogCaptureFixture) -> None:
    world = SlowWorld(caplog, slow_ms=0)
    world.commit(commit_s=1e6)
    assert world.slow.slow_s > 1e9


def test_a_server_logs_a_slow_command_and_no_fast_one(caplog: pytest.LogCaptureFixture) -> None:
    @served
    async def ask(rest: Rest) -> None:
        await rest.post("/logs/a/records", content=b"x")
        assert not [r for r in caplog.records if r.getMessage() == "slow_command"]
        rest.core.admission.slow.slow_s = 0.0
        await rest.post("/logs/a/records", content=b"x")
        assert [r for r in caplog.records if r.getMessage() == "slow_command"]

    ask()


def test_a_wait_for_the_client_is_logged_with_its_direction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> None:
        async with guarded() as at:
            at.core.admission.slow.slow_s = 0.0
            bearer = at.token("log:read:a")
            await at.ask("POST", "/echo", content=b"four", bearer=bearer)

    in_loop(ask)
    lines = [vars(r) for r in caplog.records if r.getMessage() == "slow_client"]
    assert {line["waited_for"] for line in lines} == {"client"}
    assert {line["request"] for line in lines} == {"POST /echo"}
    sizes = {(line["direction"], line["bytes"] > 0) for line in lines}
    assert {("body", True), ("answer", True)} <= sizes
    assert sum(line["bytes"] for line in lines if line["direction"] == "body") == len(b"four")
