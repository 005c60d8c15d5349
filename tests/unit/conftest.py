"""Tests of logs and queues run twice: over an open file, and over a server (`home`).

A test that looks inside the process of its store, or that is about files, says
`@pytest.mark.embedded`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import millstream
from millstream import Limits, Millstream, aio
from millstream.engine.protocol import Durability
from millstream.testing import SimulatedClock

Reopen = Callable[..., Millstream]

SHARED = {"log", "queue", "worker", "aio"}
OPENING = {"ms", "reopen", "real", "tmp_path"}
"""Fixtures by which a test comes to a store."""
TABLES = {"rows"}
"""Fixtures with tables of the application's own beside it: a server offers none."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what is shared in both places."""
    if Path(metafunc.definition.path).parent.name not in SHARED:
        return
    names = set(metafunc.fixturenames)
    opens = not OPENING.isdisjoint(names) and TABLES.isdisjoint(names)
    if opens and metafunc.definition.get_closest_marker("embedded") is None:
        metafunc.parametrize("home", ["embedded", "remote"], indirect=True)


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where stores are that are opened in the test's own process."""
    found: str = getattr(request, "param", "embedded")
    if found == "embedded":
        yield found
        return
    from tests.unit.remote.places import Served

    served = Served()
    monkeypatch.setattr(millstream, "open", served.open)
    monkeypatch.setattr(aio, "open", served.open_async)
    yield found
    served.end()


@pytest.fixture(autouse=True)
def quiet_loggers() -> Iterator[None]:
    """Takes away what a server or an example in the test's process has changed of the loggers.

    Its handler would write to the closed output of that test, and say so in the output of another.
    The workers of the demo turn logging off for their whole process.
    """
    names = ("millstream", "millstream.access", "millstream.cursor", "uvicorn")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.level, one.propagate, [*one.handlers]) for one in loggers]
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Keeps the command line that Typer has built for the next test.

    Typer's runner builds all commands for each run of one: that took nine tenths of these tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.lru_cache(8)(get_command))
        yield


@pytest.fixture
def clock() -> SimulatedClock:
    """A clock that moves only when told to."""
    return SimulatedClock()


@pytest.fixture
def durability() -> Durability:
    """How durable commits of the store are; the tests of a folder may say something else."""
    return "full"


@pytest.fixture
def reopen(tmp_path: Path, clock: SimulatedClock, durability: Durability) -> Iterator[Reopen]:
    """Opens a store in a file; again, it closes it before."""
    opened: list[Millstream] = []

    def again(limits: Limits | None = None) -> Millstream:
        for before in opened:
            before.close()
        path = tmp_path / "store.db"
        opened.append(millstream.open(path, clock=clock, limits=limits, durability=durability))
        return opened[-1]

    yield again
    for ms in opened:
        ms.close()


@pytest.fixture
def ms(reopen: Reopen) -> Millstream:
    """The store in a file."""
    return reopen()
