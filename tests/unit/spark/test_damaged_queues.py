"""Damage of one queue, or of a log that it takes from: the others are found and read all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream.errors import CorruptionError, NotFound
from millstream.format import keys
from millstream.spark.pipelines.route import routed_queues
from millstream.spark.pipelines.target import find_queues
from millstream.spark.pipelines.unreadable import readable_queues
from millstream.spark.source.losses import Loss
from millstream.testing import Probe
from millstream.testing.probe import corrupt
from tests.unit.spark.test_planning import opened

pytestmark = pytest.mark.requires("spark")

QUEUES = ("first", "hit", "last")


@pytest.fixture(params=[keys.NAME, keys.HEAD, keys.QUEUE, keys.BUCKET])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of some queues, each on a log of its own; a row of hit, or of its log, is damaged."""
    found = str(tmp_path / "store.db")
    with millstream.open(found) as ms:
        for name in QUEUES:
            ms.log(f"of {name}").append_many([b"x"] * 10)
            queue = ms.queue(name, sources=[f"of {name}"], start="earliest", max_attempts=1)
            queue.fail(queue.claim(5), reason="no")
        ms.log("later").append(b"x")  # else the newest commit would be about a queue
        ms.fold()
        store = Probe(ms).store
        log_id = int(store.seen(keys.log_name("of hit")))
        with store.engine.read() as snapshot:
            queue_ids = [
                int.from_bytes(key[2:10])
                for key, _ in snapshot.scan(*bounds(keys.BUCKET), limit=100)
            ]
            bucket_keys = [key for key, _ in snapshot.scan(*bounds(keys.BUCKET), limit=100)]
        middle = sorted(set(queue_ids))[1]
        bucket = next(key for key in bucket_keys if int.from_bytes(key[2:10]) == middle)
        row = {
            keys.NAME: keys.log_name("of hit"),
            keys.HEAD: keys.head(log_id),
            keys.QUEUE: keys.queue("hit"),
            keys.BUCKET: bucket,
        }[request.param]
        corrupt(store.engine, row)
    return found


def bounds(kind: int) -> tuple[bytes, bytes]:
    return bytes((keys.VERSION, kind)), bytes((keys.VERSION, kind + 1))


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("names", [(), QUEUES])
def test_a_queue_that_cannot_be_described_is_left_out_alone_and_named(
    path: str, names: tuple[str, ...], served: bool
) -> None:
    lost: list[Loss] = []
    with opened(path, served=served) as ms:
        with pytest.raises(CorruptionError, match=r"queue 'hit': .*damaged"):
            readable_queues(ms.session, find_queues(ms.session, names), raising)
        found = find_queues(ms.session, names, lost.append)
        found = readable_queues(ms.session, found, lost.append)
    assert [one.name for one in found] == ["first", "last"]
    assert [(one.log, len(one)) for one in lost] == [("", 0)]
    assert lost[0].reason.startswith("queue 'hit': ")
    assert lost[0].reason.count("queue 'hit'") == 1
    assert "the queue was left out" in lost[0].reason


def raising(loss: Loss) -> None:
    raise CorruptionError(loss.reason, what="queue", where="")


def test_a_queue_that_is_left_out_is_not_taken_for_one_that_routes_itself(path: str) -> None:
    lost: list[Loss] = []
    with millstream.open(path) as ms:
        ms.queue("by spark", sources=["later"], router="spark")
        assert [*routed_queues(ms.session, ["by spark"], lost.append)] == ["by spark"]
        assert lost == []
        with pytest.raises(NotFound, match="there is no queue 'none'"):
            routed_queues(ms.session, ["none"], lost.append)
