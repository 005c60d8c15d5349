"""What a task of Spark reads at a node that does not lead, also if that node is still behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

import millstream  # noqa: E402
from millstream.errors import InvalidInput  # noqa: E402
from millstream.spark.options import read_options  # noqa: E402
from millstream.spark.source.bins import Range  # noqa: E402
from millstream.spark.source.task import read_ranges  # noqa: E402
from tests.unit.server.cluster.electing import ServedNodes, serving_nodes  # noqa: E402

SCHEMA = pa.schema([("value", pa.binary()), ("offset", pa.int64())])


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ServedNodes]:
    with serving_nodes(tmp_path, "a", "b", "c") as found:
        yield found


def test_a_task_reads_from_a_follower_what_was_planned_elsewhere(nodes: ServedNodes) -> None:
    follower = nodes.followers()[0]
    options = read_options(
        {"server": nodes.url(follower), "subscribe": "a", "readLevel": "eventual"}
    )
    handed_on = nodes.core(follower).seat.handed_on
    with millstream.open(nodes.url(nodes.leader())) as ms:
        for number in range(50):
            ms.log("a").append(b"%d" % number)
            wanted = [Range("a", 0, number + 1)]
            batches = list(read_ranges(options, wanted, SCHEMA))
            assert sum(batch.num_rows for batch in batches) == number + 1
    assert nodes.core(follower).seat.handed_on == handed_on


def test_a_level_is_checked_and_is_for_servers() -> None:
    with pytest.raises(InvalidInput, match="option readLevel"):
        read_options({"server": "http://a", "subscribe": "a", "readLevel": "weak"})
    with pytest.raises(InvalidInput, match="option readLevel"):
        read_options({"path": "a.db", "subscribe": "a", "readLevel": "eventual"})
