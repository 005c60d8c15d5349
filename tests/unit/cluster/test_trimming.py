"""What the shared log may forget, and when."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from millstream.cluster.node.trimmer import TRIM_BYTES, URGENT_BYTES, Trimmer, trim_before
from millstream.cluster.reports import NodeReport, Role
from millstream.cluster.shared_log import Held


class Log(NamedTuple):
    bytes: int
    held: Held


LARGE = Log(TRIM_BYTES * 2, Held(1, 1_000))
FULL = Log(URGENT_BYTES, Held(1, 1_000))


def heard(*sequences: int, role: Role = "follower", age_s: float = 0.1) -> dict[str, object]:
    return {
        name: (NodeReport(name, "", role, 1, sequence, b"%d" % sequence), age_s)
        for name, sequence in zip("abc", sequences, strict=False)
    }


def before(log: Log, reports: dict[str, object], *, leads: bool = True) -> int:
    return trim_before(log, reports, members=3, leads=leads)  # type: ignore[arg-type]


def test_a_small_log_stays_whole() -> None:
    assert before(Log(TRIM_BYTES - 1, Held(1, 1_000)), heard(1_000, 1_000, 1_000)) == 0


def test_a_large_log_is_cut_to_half_of_the_mark() -> None:
    assert before(LARGE, heard(1_000, 1_000, 1_000)) == 1 + int(999 * 0.75)


def test_a_node_that_is_slow_is_waited_for_and_one_that_is_silent_is_not() -> None:
    assert before(LARGE, heard(1_000, 1_000, 10)) == 10
    silent = heard(1_000, 1_000) | {"c": (NodeReport("c", "", "follower", 1, 10, b""), 60.0)}
    assert before(LARGE, silent) == 1 + int(999 * 0.75)


def test_only_the_leader_trims_unless_it_is_urgent() -> None:
    assert before(LARGE, heard(1_000, 1_000, 1_000), leads=False) == 0
    assert before(FULL, heard(1_000, 1_000, 1_000), leads=False) > 0


@pytest.mark.parametrize("log", [LARGE, FULL])
def test_nothing_goes_that_a_majority_does_not_have(log: Log) -> None:
    assert before(log, heard(1_000)) == 0
    assert before(log, heard(1_000, 1)) == 0
    assert before(log, heard(1_000, 5, 3)) <= 5
    assert before(log, heard(1_000, 1_000, 1_000, role="halted")) == 0


def test_when_it_is_urgent_a_majority_is_enough() -> None:
    assert before(FULL, heard(1_000, 900, 3)) == min(900, 1 + int(999 * 0.8))


def test_nodes_that_differ_keep_everything_as_evidence() -> None:
    reports = heard(1_000, 1_000, 1_000)
    reports["b"] = NodeReport("b", "", "follower", 1, 1_000, b"other"), 0.1
    assert before(FULL, reports) == 0


def test_a_look_trims_once_and_counts_it() -> None:
    class Trimmed:
        trimmed: list[int] = []  # noqa: RUF012

        def span(self, *, timeout_s: float) -> Log:
            return FULL

        def trim(self, before: int, *, timeout_s: float) -> None:
            self.trimmed.append(before)

    class Board:
        def post(self, report: NodeReport) -> None: ...

        def reports(self) -> dict[str, tuple[NodeReport, float]]:
            return heard(1_000, 1_000, 1_000)  # type: ignore[return-value]

    log = Trimmed()
    trimmer = Trimmer(log, Board(), members=3, leads=lambda: True)
    trimmer.look()
    assert log.trimmed == [1 + int(999 * 0.8)]
    assert trimmer.trims == 1
