"""A server process and its siblings: which process keeps staged parts, and which processes serve."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from millstream.server.cluster.role import Asker
from millstream.server.processes.figures import create_figures
from millstream.server.processes.place import VARIABLE, ProcessPlace, take_place
from millstream.server.processes.siblings import SILENT_MS, Siblings
from millstream.testing import SimulatedClock


@pytest.fixture
def group() -> Iterator[list[Siblings]]:
    descriptor, clock = create_figures(3), SimulatedClock()
    places = [
        ProcessPlace(number=number, count=3, listening_fd=0, group_fd=0, figures_fd=descriptor)
        for number in (1, 2, 3)
    ]
    processes = [Siblings(place, clock) for place in places]
    yield processes
    for process in processes:
        process.close()
    os.close(descriptor)


def request(path: str) -> dict[str, object]:
    return {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}


def test_one_process_keeps_all_parts_of_a_transaction(group: list[Siblings]) -> None:
    alone = Asker()
    for name in map(str, range(20)):
        paths = [f"/staging/{name}/p1", f"/staging/{name}/commit", f"/staging/{name}"]
        keepers = [
            [number for number, process in enumerate(group) if not process.takes(request(p), alone)]
            for p in paths
        ]
        assert len(keepers[0]) == 1
        assert keepers == [keepers[0]] * 3
    assert not any(process.takes(request("/logs/a/records"), alone) for process in group)


def test_a_request_is_passed_on_once(group: list[Siblings]) -> None:
    passed = Asker(is_handed_on=True)
    assert not any(process.takes(request("/staging/t/p"), passed) for process in group)


def test_a_process_that_does_not_serve_is_a_warning() -> None:
    descriptor, clock = create_figures(2), SimulatedClock()
    clock.advance(100)
    one, two = (
        Siblings(
            ProcessPlace(number=number, count=2, listening_fd=0, group_fd=0, figures_fd=descriptor),
            clock,
        )
        for number in (1, 2)
    )
    try:
        assert one.check().status == "warning"
        assert "2" in one.check().detail
        two.serve_at(8_000)
        two.write(0, [0] * len(two.figures()[0].commits))
        assert one.check().status == "healthy"
        clock.advance(SILENT_MS / 1000)
        assert one.check().status == "warning"
    finally:
        one.close()
        two.close()
        os.close(descriptor)


def test_a_place_is_taken_once() -> None:
    place = ProcessPlace(number=2, count=3, listening_fd=4, group_fd=5, figures_fd=6)
    variables = {VARIABLE: place.encoded(), "HOME": "/"}
    assert take_place(variables) == place
    assert variables == {"HOME": "/"}
    assert take_place(variables) is None
