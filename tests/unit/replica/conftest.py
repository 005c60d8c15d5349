"""Three stores without a disk, and as many more as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millstream import Millstream
from millstream.testing import SimulatedClock, memory_store


@pytest.fixture
def make(clock: SimulatedClock) -> Iterator[Callable[[], Millstream]]:
    made: list[Millstream] = []

    def one() -> Millstream:
        made.append(memory_store(clock=clock))
        return made[-1]

    yield one
    for ms in made:
        ms.close()


@pytest.fixture
def a(make: Callable[[], Millstream]) -> Millstream:
    return make()


@pytest.fixture
def b(make: Callable[[], Millstream]) -> Millstream:
    return make()


@pytest.fixture
def c(make: Callable[[], Millstream]) -> Millstream:
    return make()


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with memory_store() as one:
        yield one


@pytest.fixture
def other() -> Iterator[Millstream]:
    """A store at another time."""
    with memory_store(clock=SimulatedClock(5_000_000)) as one:
        yield one
