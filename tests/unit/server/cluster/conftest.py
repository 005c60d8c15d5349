"""Two nodes over one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.aio.conftest import pytest_pyfunc_call as pytest_pyfunc_call

if TYPE_CHECKING:
    from tests.unit.server.cluster.pretending import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    from tests.unit.server.cluster.pretending import paired

    with paired(tmp_path / "shared.db") as found:
        yield found
