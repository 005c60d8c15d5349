"""Stores for the tests of workers: each surface, over a file and over a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.surfaces import SURFACES, Surface, surface_of


@pytest.fixture(params=SURFACES)
def surface(request: pytest.FixtureRequest) -> Iterator[Surface]:
    with surface_of(request.param) as found:
        yield found


@pytest.fixture
def ms(surface: Surface, tmp_path: Path) -> Iterator[Any]:
    with surface.open(tmp_path / "a.db", durability="relaxed") as store:
        yield store


@pytest.fixture
def jobs(ms: Any) -> Any:
    return ms.queue("jobs", max_attempts=3, backoff=0)
