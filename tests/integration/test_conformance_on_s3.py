"""What the conformance suite asks of every engine, asked of SlateDB on moto's S3."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from millstream.bench.objects import BUCKET, object_server, variables
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine
from tests.conformance.kits import EngineKit
from tests.conformance.test_engine import *  # noqa: F403

pytestmark = [pytest.mark.requires("s3"), pytest.mark.slow]

_NUMBERS = count()


class _OnS3:
    def make(self, folder: Path) -> Engine:
        return open_engine(f"s3://{BUCKET}/store-{next(_NUMBERS)}")

    def reopen(self, engine: Engine) -> Engine:
        return open_engine(engine.place)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with object_server() as address, variables(address):
        yield address


@pytest.fixture
def kit(server: str) -> EngineKit:
    return _OnS3()
