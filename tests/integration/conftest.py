"""What tests on object storage share: moto's S3, a proxy before it, and a place for a store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from millstream.bench.objects import BUCKET, object_server, variables
from tests.kit.objects import ObjectProxy

_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of objects."""
    with object_server() as address:
        yield address


@pytest.fixture
def proxy(server: str) -> Iterator[ObjectProxy]:
    """A proxy before that server, to which the environment leads."""
    with ObjectProxy(server) as made, variables(made.address):
        yield made


@pytest.fixture
def address() -> str:
    """The place of a store that is not there yet."""
    return f"s3://{BUCKET}/store-{next(_NUMBERS)}"
