"""The workloads of rooms run, and report what the documentation says; how fast is not judged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millstream.bench import rooms as workloads
from millstream.bench.rooms import RoomSizes, lost_messages

TINY = RoomSizes(
    cross_rooms=2,
    cross_clients=2,
    cross_rate=100,
    fanout_clients=5,
    writers=2,
    poll_rooms=4,
    loss_clients=8,
    loss_messages=11,
    loss_reconnecting=3,
    idle_clients=20,
    idle_rooms=2,
    settle_s=0.0,
)
DETAILS = {
    "rooms_cross": {"cross_p95_ms", "same_p95_ms", "lost", "disorder"},
    "rooms_fanout": {"listeners", "singly_per_second", "lost"},
    "rooms_write": {"threads", "p95_ms"},
    "rooms_poll": {"rooms", "p95_ms", "looks_per_second_max", "memory_mib"},
    "rooms_loss": {"clients", "missing", "twice", "disorder", "gaps", "reconnects"},
    "rooms_idle": {"clients", "kib_each", "lost"},
}
ALWAYS_ZERO = {"lost", "missing", "twice", "disorder", "gaps"}


@pytest.mark.embedded
@pytest.mark.parametrize("name", workloads.SUITE.workloads)
def test_a_workload_reports_the_documented_fields(name: str, tmp_path: Path) -> None:
    (row,) = workloads.SUITE.run(
        [name], directory=tmp_path, seconds_each=0.4, started=lambda _: None, sizes=TINY
    )
    found = msgspec.to_builtins(row)
    assert {"workload", "required", "passed", "details"} <= set(found)
    assert DETAILS[name] <= set(found["details"])
    assert not any(found["details"].get(one) for one in ALWAYS_ZERO)
    assert not list(tmp_path.iterdir()), "the files of a run are removed"


def test_what_is_lost_between_two_clients_of_a_room_is_counted() -> None:
    told = {
        "sent": {"a": 3, "b": 2, "c": 5},
        "rooms": {"a": "x", "b": "x", "c": "y"},
        "received": {"a": {"b": 2}, "b": {"a": 1}, "c": {}},
    }
    assert sum(lost_messages([told])) == 2
