"""Promise: what a pipeline is not told, it finds out or asks for in one sentence."""

from __future__ import annotations

import pytest

import millstream
from millstream.embedded.session import EmbeddedSession
from millstream.errors import InvalidInput, NotFound
from millstream.spark.pipelines.replay import format_of
from millstream.spark.pipelines.report import STEPS_MAX, step_of
from millstream.spark.pipelines.target import find_queues
from millstream.testing import Probe


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x.csv", "csv"),
        ("rows/*.CSV.gz", "csv"),
        ("a.b/rows.ndjson", "json"),
        ("a.b/rows", "parquet"),
        ("s3://bucket/kept/", "parquet"),
        ("old.parquet", "parquet"),
        ("./rows.orc", "orc"),
    ],
)
def test_a_format_is_told_by_the_ending(source: str, expected: str) -> None:
    assert format_of(source) == expected


@pytest.mark.parametrize("source", ["rows.txt", "rows.tsv.gz", "x.xlsx"])
def test_a_format_that_cannot_be_told_is_asked_for(source: str) -> None:
    with pytest.raises(InvalidInput, match=r"say which it is: parquet, json, csv, orc, table"):
        format_of(source)


def test_a_queue_that_is_missing_advises_the_list_of_queues() -> None:
    with (
        millstream.open(":memory:") as store,
        pytest.raises(NotFound, match="`millstream queue list` shows what there is"),
    ):
        find_queues(EmbeddedSession(Probe(store).store), ["none"])


@pytest.mark.parametrize(
    ("length_s", "step_s"),
    [(0, 1), (100, 1), (300, 5), (3_600, 30), (7_200, 60), (86_400, 900), (10**7, 86_400)],
)
def test_the_step_of_a_chart_follows_from_the_length_of_what_it_shows(
    length_s: int, step_s: int
) -> None:
    assert step_of(1_000 * length_s) == 1_000 * step_s


def test_a_chart_never_has_more_steps_than_fit() -> None:
    for length_s in (1, 119, 121, 4_000, 10**5, 10**6, 10**8):
        assert -(-length_s * 1_000 // step_of(1_000 * length_s)) <= STEPS_MAX
