"""Every number that a public method takes is checked, and the error names the parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

import millstream
from millstream import aio
from millstream.aio import worker as aio_worker
from millstream.errors import InvalidInput, MillstreamError
from millstream.numbers import check_duration, check_whole, checked
from millstream.queue.model.spec import QueueSettings
from millstream.record import Seconds
from millstream.rooms.settings import RoomOptions
from millstream.threads import worker as threads_worker
from tests.unit.surfaces import SURFACES, jobs_on, surface_of

NUMERIC = re.compile(r"\b(int|float|Seconds)\b")
NOT_A_NUMBER = ["1", b"1", True, object(), {"a"}]
WRONG_WHOLE = [*NOT_A_NUMBER, 1.5, float("nan"), Decimal(1), [1]]
EXTREME = [-1, 2**63, 2**70, -(2**70), 10**5000]
WRONG_SECONDS = [*NOT_A_NUMBER, float("nan"), float("inf"), -float("inf"), 10**400, [1]]
WRONG_EACH = [5, "12", ["1"], [1.5], [True], [None], {0: 1}, object()]
WRONG_MAP = [5, "1", [1], {"a": 1}, {0: 1.5}, {0: True}, object()]

REQUIRED = {
    "value": b"x",
    "values": [b"x"],
    "handler": print,
    "user": "ann",
    "messages": [],
    "queue": "jobs",
    "offsets": [0, 0],
}
"""Arguments that are not numbers, for methods which need them."""


class Numeric(NamedTuple):
    """One parameter for a number."""

    noun: str
    method: str
    parameter: str
    annotation: str
    needs: tuple[str, ...]


def nouns() -> dict[str, type]:
    found = {name: kind for name in aio.__all__ if inspect.isclass(kind := getattr(aio, name))}
    del found["InteractiveTransaction"]  # has the methods of `Steps`, as `Transaction` has
    del found["JobGroup"], found["Signature"]  # take no numbers
    del found["Task"]  # takes the parameters of its function; `tests/unit/jobs` has its numbers
    for producer in ("LogProducer", "PartitionedProducer", "QueueProducer"):
        del found[
            producer
        ]  # a wrong number fails the handle of its message; see the tests of producers
    return {**found, "Worker": aio_worker.Worker}


def numeric_parameters() -> Iterator[Numeric]:
    for noun, kind in nouns().items():
        for method, function in inspect.getmembers(kind, inspect.isfunction):
            if method.startswith("_"):
                continue
            parameters = list(inspect.signature(function).parameters.values())[1:]
            for one in parameters:
                if isinstance(one.annotation, str) and NUMERIC.search(one.annotation):
                    needs = tuple(
                        other.name
                        for other in parameters
                        if other.default is other.empty
                        and other.name != one.name
                        and other.kind in (other.POSITIONAL_OR_KEYWORD, other.KEYWORD_ONLY)
                    )
                    yield Numeric(noun, method, one.name, one.annotation, needs)


EVERY = list(numeric_parameters())


def wrong_values(annotation: str) -> list[Any]:
    kinds = [kind.strip() for kind in annotation.split("|")]
    if "Mapping[int, int]" in kinds:
        wrong = WRONG_MAP
    elif "Sequence[int]" in kinds:
        wrong = [one for one in WRONG_EACH if "int" not in kinds or one != 5]
    elif "Seconds" in kinds or "float" in kinds:
        wrong = WRONG_SECONDS
    else:
        wrong = WRONG_WHOLE
    if "str" in kinds:
        wrong = [one for one in wrong if not isinstance(one, str)]
    return wrong if "None" in kinds else [*wrong, None]


def test_the_methods_with_numbers_are_found() -> None:
    assert len(EVERY) > 60
    assert {one.noun for one in EVERY} == set(nouns()) - {"LogConsumer", "Metadata"}


def holders(ms: Any) -> dict[str, Any]:
    """An object of each noun."""
    log = ms.log("x")
    log.append_many([b"0", b"1", b"2"])
    queue = ms.create_queue("jobs")
    parts = ms.log("parts", partitions=2)
    jobs = jobs_on(ms)
    handles = {
        "AppendHandle": ms.log("y").producer().append(b"x"),
        "PartitionedHandle": parts.producer().append(b"x"),
        "PutHandle": queue.producer().put(b"x"),
    }
    for name, handle in handles.items():
        getattr(handle, "id" if name == "PutHandle" else "offset")()
    return {
        **handles,
        "Millstream": ms,
        "Log": log,
        "Cursor": log.cursor("reader"),
        "PartitionedLog": parts,
        "PartitionedCursor": parts.cursor("reader"),
        "Queue": queue,
        "QueueConsumer": queue.consumer(),
        "Room": ms.room("hall", user="ann"),
        "Stage": ms.log("staged").stage(),
        "Transaction": ms.transaction(),
        "Worker": queue.worker(print),
        "Jobs": jobs,
        "Job": jobs.get("jobs-0"),
        "JobWorker": jobs.worker(),
        "GatheredJobs": jobs.gathered("none"),
    }


@pytest.mark.parametrize("name", SURFACES)
def test_a_wrong_number_is_refused_by_the_name_of_its_parameter(name: str, tmp_path: Path) -> None:
    with surface_of(name) as surface, surface.open(tmp_path / "a.db") as ms:
        held = holders(ms)
        for one in EVERY:
            method = getattr(held[one.noun], one.method)
            named = {key: REQUIRED.get(key, 0) for key in one.needs if key != "name"}
            if "name" in one.needs:
                named["name"] = "y"
            for value in wrong_values(one.annotation):
                with pytest.raises(InvalidInput, match=rf"\b{one.parameter}\b"):  # noqa: PT012
                    found = method(**named, **{one.parameter: value})
                    list(found)
                    pytest.fail(f"{one} took {value!r:.50}")
        assert ms.log("x").append(b"3") == 3


@pytest.mark.parametrize("name", SURFACES)
def test_a_number_of_any_size_is_taken_or_refused_by_an_error_of_ours(
    name: str, tmp_path: Path
) -> None:
    with surface_of(name) as surface, surface.open(tmp_path / "a.db") as ms:
        held = holders(ms)
        for one in EVERY:
            if one.method in WAITS_FOR_EVER:
                continue
            method = getattr(held[one.noun], one.method)
            for value in EXTREME:
                given = extreme(one.annotation, value)
                named = {key: REQUIRED.get(key, 0) for key in one.needs if key != "name"}
                if "name" in one.needs:
                    named["name"] = "y"
                try:
                    found = method(**named, **{one.parameter: given})
                    if isinstance(found, Iterator):
                        list(found)
                except MillstreamError:
                    pass
                except Exception as error:
                    pytest.fail(f"{one} with {value!r:.50}: {error!r:.200}")
        assert ms.log("x").get(0).value == b"0"


WAITS_FOR_EVER = {"wait", "wait_cancels", "result", "stream", "tail", "listen", "join", "open"}
"""Methods that would wait for what never comes; `open` of a partitioned cursor is not for callers."""


def extreme(annotation: str, value: int) -> Any:
    """A number of an extreme size, as a parameter with this annotation takes it."""
    if "Mapping" in annotation:
        return {0: value}
    return [value] if "Sequence" in annotation else value


@pytest.mark.parametrize("name", SURFACES)
def test_whatever_stands_for_a_whole_number_is_one(name: str, tmp_path: Path) -> None:
    class Index:
        def __init__(self, number: int) -> None:
            self.number = number

        def __index__(self) -> int:
            return self.number

    with surface_of(name) as surface, surface.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        log.append_many([b"0", b"1", b"2"], timestamps=[Index(1), Index(2), Index(3)])
        assert log.get(Index(1)).value == b"1"
        assert log.get(-1) is None
        assert [one.offset for one in log.read(Index(1), Index(2))] == [1]
        assert log.truncate(before=Index(2)) == 2
        jobs = ms.create_queue("jobs", priority_by="urgency")
        jobs.put(b"x", priority=Index(3))
        assert len(jobs.claim(Index(1), lease=Decimal("2.5"))) == 1
        tail = log.cursor("c")
        assert [one.offset for one in tail.take(Index(5), wait=0)] == [2]


SETTINGS = [
    (kind, field)
    for kind, hints in (
        ("queue", get_type_hints(QueueSettings)),
        ("room", get_type_hints(RoomOptions)),
    )
    for field, hint in hints.items()
    if hint in (int, float, Seconds)
]


@pytest.mark.parametrize(("kind", "field"), SETTINGS)
def test_a_wrong_setting_is_refused_by_its_name(kind: str, field: str, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        for value in [*NOT_A_NUMBER, float("nan"), float("inf"), [1], 10**400, -1]:
            made = partial(ms.create_queue, "jobs") if kind == "queue" else ms.room("hall").specify
            with pytest.raises(InvalidInput, match=field):
                made(**{field: value})


@pytest.mark.parametrize("value", [1.5, True, [1.5], [True], ["1"], object()])
def test_what_is_acknowledged_is_checked(value: Any, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        log.append_many([b"0", b"1"])
        cursor = log.cursor("c")
        with pytest.raises(InvalidInput):
            cursor.ack(value)


def test_opening_checks_its_numbers(tmp_path: Path) -> None:
    for name in ("connect_timeout", "retry_for"):
        for value in WRONG_SECONDS:
            with pytest.raises(InvalidInput, match=name):
                millstream.open("http://localhost:1", **{name: value})
    for value in WRONG_WHOLE:
        with pytest.raises(InvalidInput, match="file_mode"):
            millstream.open(tmp_path / "a.db", file_mode=value)


def test_workers_of_both_surfaces_have_the_check() -> None:
    assert hasattr(threads_worker.Worker.join, "__wrapped__")


def test_a_function_without_numbers_is_left_as_it_is() -> None:
    def named(name: str) -> str:
        return name

    assert checked(named) is named
    assert check_whole("n", 5) == 5
    assert check_duration("s", 2.5) == 2.5
