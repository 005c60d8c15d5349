"""Two nodes over one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.aio.conftest import pytest_pyfunc_call as pytest_pyfunc_call
from tests.unit.server.cluster.pretending import Pair, paired


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with paired(tmp_path / "shared.db") as found:
        yield found
