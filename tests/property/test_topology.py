"""Random topologies: what is applied is dumped, and a dump makes an equal store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream import topology
from millstream.queue.model.spec import QueueSpec
from millstream.schema.outputs import json_schema_of
from millstream.testing import SimulatedClock, memory_store
from millstream.topology.applying import parse_text
from millstream.topology.document import is_public_log
from millstream.topology.toml_file import plain
from millstream.topology.writing import toml_of
from tests.unit.schema.schemas import STRUCTS

names = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), max_codepoint=0x2FF), min_size=1, max_size=8
).filter(is_public_log)
seconds = st.integers(1, 10**8).map(lambda ms: ms / 1000) | st.sampled_from(["1s", "5m", "250ms"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=5,
)


def as_plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return JSON values as a file has them."""
    return {key: plain(value) for key, value in values.items()}


retentions = st.fixed_dictionaries(
    {},
    optional={
        "age": seconds,
        "bytes": st.integers(0, 2**50) | st.sampled_from(["64MiB", "3KiB"]),
        "count": st.integers(0, 2**40),
        "consumed": st.booleans(),
    },
)
schemas = STRUCTS.map(lambda schema: plain(json_schema_of(schema)))
logs = st.fixed_dictionaries(
    {},
    optional={
        "schema": schemas,
        "partitions": st.integers(1, 4),
        "retention": retentions,
        "metadata": st.dictionaries(names, json_values, max_size=3).map(as_plain),
    },
)
backoffs = (
    st.sampled_from(["5s", "1s,10s", "1s*3"])
    | st.lists(st.integers(0, 1000), min_size=1, max_size=3)
    | st.fixed_dictionaries({}, optional={"factor": st.floats(1, 100), "jitter": st.floats(0, 1)})
)
rates = st.just(0.0) | st.floats(1e-3, 1e6)
headers = st.sampled_from(["", "tenant", "_key"])
QUEUE_SETTINGS: dict[str, Any] = {
    "filter": st.sampled_from(["", "kind = 'refund'"]),
    "start": st.sampled_from(["latest", "earliest", 0]),
    "start_ms": st.integers(0, 10**12),
    "max_attempts": st.integers(1, 65_535),
    "lease": st.integers(1, 10**6).map(lambda ms: ms / 1000),
    "lease_max": st.sampled_from(["1d", "7d"]),
    "backoff": backoffs,
    "delay": seconds,
    "priority_by": st.sampled_from(["", "prio"]),
    "priority_step": st.integers(1, 10**6),
    "group_by": headers,
    "group_in_flight": st.integers(0, 10),
    "group_order": st.booleans(),
    "group_rate": rates,
    "group_burst": st.integers(0, 100),
    "max_in_flight": st.integers(0, 100),
    "rate": rates,
    "burst": st.integers(0, 100),
    "dedup_by": headers,
    "dedup_window": st.integers(1, 600_000),
    "dedup_while": st.sampled_from(["", "waiting", "running"]),
    "done_retention": st.integers(0, 10**6),
    "keep_payloads": st.booleans(),
    "bucket_exponent": st.integers(0, 4),
    "dead_letter": st.sampled_from(["", "the letters"]),
    "changes": st.sampled_from(["", "the changes"]),
    "lossy": st.booleans(),
    "description": st.text(max_size=20),
    "router": st.sampled_from(["", "spark"]),
}
queues = st.fixed_dictionaries({}, optional={**QUEUE_SETTINGS, "schema": schemas})
types = st.lists(st.sampled_from(["chat", "rect", "x"]), max_size=2)
rooms = st.fixed_dictionaries(
    {},
    optional={
        "ttl": st.just(0) | seconds,
        "conflated": st.just(["pointer"]),
        "tick": st.floats(0.001, 60),
        "retained": types,
        "priority": types,
        "messages_per_second": st.floats(0, 1e6),
        "message_bytes_max": st.integers(1, 2**20) | st.just("64KiB"),
        "waiting_bytes_max": st.integers(1, 2**24),
    },
)
schedules = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["shop:report", "b"]),
        "every": st.integers(1, 10**6) | st.sampled_from(["5m", "30 1 * * *"]),
    },
    optional={
        "queue": st.sampled_from(["jobs", "other"]),
        "arguments": st.dictionaries(st.sampled_from("abc"), json_values, max_size=2).map(as_plain),
        "unique": st.text(min_size=1, max_size=5),
        "headers": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), max_size=2),
        "tz": st.sampled_from(["UTC", "Europe/Lisbon"]),
        "missed": st.sampled_from(["skip", "once", "all"]),
    },
)
tokens = st.fixed_dictionaries(
    {
        "permissions": st.lists(
            st.sampled_from(["admin", "log:write:orders*", "store:read"]), min_size=1, max_size=3
        )
    },
    optional={
        "expires": st.datetimes(
            datetime(2040, 1, 1), datetime(2050, 1, 1), timezones=st.just(UTC)
        ).map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
    },
)


def test_every_setting_of_a_queue_is_tried() -> None:
    assert {"sources", *QUEUE_SETTINGS} == set(QueueSpec.__struct_fields__)


@st.composite
def topologies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a topology whose queues take from its logs."""
    drawn_logs = draw(st.dictionaries(names, logs, max_size=4))
    drawn_queues = draw(st.dictionaries(names, queues, max_size=3))
    sources = st.lists(st.sampled_from([*drawn_logs, "later"]), unique=True, max_size=3)
    return {
        "logs": drawn_logs,
        "queues": {
            name: {**table, "sources": draw(sources)} for name, table in drawn_queues.items()
        },
        "rooms": draw(st.dictionaries(names, rooms, max_size=3)),
        "schedules": draw(st.dictionaries(names, schedules, max_size=3)),
        "tokens": draw(st.dictionaries(names, tokens, max_size=3)),
    }


@given(wanted=topologies())
def test_a_dump_makes_an_equal_store(wanted: dict[str, Any]) -> None:
    clock = SimulatedClock()
    with memory_store(clock=clock) as first, memory_store(clock=clock) as second:
        topology.apply(first, wanted)
        assert topology.apply(first, wanted).plan.changes == []
        dumped = topology.dump(first)
        text = toml_of(dumped)
        again = parse_text(text, clock.wall_ms(), file="dump")
        assert topology.plan(first, again, prune=True).changes == []

        topology.apply(second, again)

        assert topology.dump(second) == dumped
        assert toml_of(topology.dump(second)) == text


@given(before=topologies(), after=topologies())
def test_a_file_is_applied_completely_or_not_at_all(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    clock = SimulatedClock()
    with memory_store(clock=clock) as ms, memory_store(clock=clock) as fresh:
        topology.apply(ms, before)
        dumped = topology.dump(ms)
        try:
            topology.apply(ms, after, prune=True)
        except topology.TopologyRefused:
            assert topology.dump(ms) == dumped
            return
        topology.apply(fresh, after)
        assert without_history(topology.dump(ms)) == without_history(topology.dump(fresh))


def without_history(document: dict[str, Any]) -> dict[str, Any]:
    """Return a dump without the settings that a log or a queue keeps from before."""
    for table in document["logs"].values():
        table.pop("metadata", None)
        table.pop("schema", None)
    for table in document["queues"].values():
        table.pop("schema", None)
        table.pop("start", None)
        table.pop("start_ms", None)
    return document
