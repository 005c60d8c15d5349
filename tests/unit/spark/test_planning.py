"""Planning: which logs a read finds, and what damage of one of them does to the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.spark.options import ReadOptions, read_options
from millstream.spark.source.losses import Loss
from millstream.spark.source.planning import find_logs
from millstream.testing import Probe
from millstream.testing.probe import corrupt

pytestmark = pytest.mark.requires("spark")

LOGS = ("a", "b", "c", "d")


@pytest.fixture(params=[keys.NAME, keys.HEAD])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of some logs; a row by which b is known is damaged."""
    found = str(tmp_path / "store.db")
    with millstream.open(found) as ms:
        for name in LOGS:
            ms.log(name).append(b"x")
        ms.fold()
        store = Probe(ms).store
        log_id = int(store.seen(keys.log_name("b")))
        corrupt(
            store.engine, keys.log_name("b") if request.param == keys.NAME else keys.head(log_id)
        )
    return found


@contextmanager
def opened(path: str, *, served: bool) -> Iterator[Millstream]:
    if not served:
        with millstream.open(path) as ms:
            yield ms
        return
    with running(path, Settings(port=0)) as server, millstream.open(server.url) as ms:
        yield ms


def options(path: str, *, strict: bool, **chosen: str) -> ReadOptions:
    return read_options({"path": path, "failOnDataLoss": str(strict), **chosen})


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("chosen", [{"subscribePattern": "[a-c]"}, {"subscribe": "a,b,c"}])
def test_a_log_whose_own_rows_are_damaged_is_left_out_alone(
    path: str, chosen: dict[str, str], served: bool
) -> None:
    lost: list[Loss] = []
    with opened(path, served=served) as ms:
        session = ms.session
        with pytest.raises(CorruptionError):
            find_logs(session, options(path, strict=True, **chosen))
        found = find_logs(session, options(path, strict=False, **chosen), tell=lost.append)
    assert [*found] == ["a", "c"]
    assert [(one.log, len(one)) for one in lost] == [("b", 0)]
    assert "damaged" in lost[0].reason or "checksum" in lost[0].reason


def test_damage_of_a_log_that_is_not_wanted_is_not_told(path: str) -> None:
    lost: list[Loss] = []
    wanted = options(path, strict=False, subscribePattern="[cd]")
    with millstream.open(path) as ms:
        assert [*find_logs(ms.session, wanted, tell=lost.append)] == ["c", "d"]
    assert lost == []


@pytest.mark.parametrize("partitions", [False, True])
def test_a_listing_says_which_log_is_damaged(path: str, partitions: bool) -> None:
    with millstream.open(path) as ms, pytest.raises(CorruptionError, match="log 'b'"):
        [*ms.logs(partitions=partitions)]
