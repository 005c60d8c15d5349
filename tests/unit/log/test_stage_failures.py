"""Staging while commits fail: after an error nothing of the call is staged, and a repeat counts once.

Each test runs on both surfaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream import Limits, aio
from millstream.errors import InvalidInput, Locked, OutcomeUnknown, Overloaded
from millstream.log import commands as c
from millstream.testing import Probe, memory_store
from tests.unit.surfaces import SURFACES, surface_of

SECTION = 3


class Line:
    """A session whose next commits fail, before they are carried out or after."""

    def __init__(self, session: Any) -> None:
        self.session, self.limits, self.clock = session, session.limits, session.clock
        self.failures: list[tuple[Exception, bool]] = []

    def execute(self, command: Any) -> Any:
        stores = isinstance(command, c.Append) and command.expect_end < 1_000
        error, after = self.failures.pop(0) if stores and self.failures else (None, False)
        if error is not None and not after:
            raise error
        answer = self.session.execute(command)
        if error is not None:
            raise error
        return answer


@pytest.fixture(params=SURFACES)
def staged(request: pytest.FixtureRequest) -> Any:
    """A store, the line to it, and a stage over it."""
    with memory_store() as ms, surface_of(request.param) as surface:
        line = Line(ms.session)
        yield ms, line, surface.over(line).log("x").stage


def found(ms: Any) -> list[bytes]:
    return [record.value for record in ms.log("x").read()]


def seen(stage: Any) -> list[bytes]:
    return [record.value for record in stage.read()]


def test_after_an_error_nothing_of_the_call_is_staged(staged: Any) -> None:
    ms, line, make = staged
    stage = make(section=SECTION)
    stage.append(b"0")
    stage.append(b"1")
    line.failures = [(Overloaded("busy"), False)] * 2
    for _ in range(2):
        with pytest.raises(Overloaded):
            stage.append(b"2")
        assert (stage.end_offset(), seen(stage)) == (2, [b"0", b"1"])
    assert stage.append(b"2") == 2
    assert found(ms) == [b"0", b"1", b"2"]
    assert stage.append(b"3") == 3
    assert stage.commit() == 4


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("timestamp", [None, 7])
def test_a_repeat_counts_once_though_nobody_knew_how_it_ended(
    staged: Any, after: bool, timestamp: int | None
) -> None:
    ms, line, make = staged
    stage = make(section=SECTION)
    stage.append(b"0")
    stage.append(b"1")
    line.failures = [(OutcomeUnknown("the line was cut"), after)]
    with pytest.raises(OutcomeUnknown):
        stage.append(b"2", key=b"k", timestamp=timestamp)
    assert stage.append(b"2", key=b"k", timestamp=timestamp) == 2
    assert [stage.append(b"%d" % n) for n in (3, 4, 5)] == [3, 4, 5]
    assert found(ms) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("after", [False, True])
def test_whoever_goes_on_with_another_record_keeps_what_was_staged(
    staged: Any, after: bool
) -> None:
    ms, line, make = staged
    stage = make(section=SECTION)
    stage.append(b"0")
    stage.append(b"1")
    line.failures = [(OutcomeUnknown("the line was cut"), after)]
    with pytest.raises(OutcomeUnknown):
        stage.append(b"2")
    stage.append(b"other")
    stage.commit()
    assert found(ms) == [b"0", b"1", *[b"2"] * after, b"other"]


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_is_repeated_once(staged: Any, after: bool) -> None:
    ms, line, make = staged
    stage = make(section=100)
    stage.append(b"0")
    stage.append(b"1")
    line.failures = [(OutcomeUnknown("the line was cut"), after)] * 2
    for _ in range(1 if after else 2):
        with pytest.raises(OutcomeUnknown):
            stage.commit()
        assert seen(stage)[:2] == [b"0", b"1"]
    line.failures = []
    assert stage.commit() == 2
    assert stage.append(b"2") == 2
    assert stage.commit() == 3
    assert found(ms) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("after", [False, True])
def test_what_is_discarded_while_in_doubt_leaves_the_handle_usable(
    staged: Any, after: bool
) -> None:
    ms, line, make = staged
    stage = make(section=100)
    stage.append(b"0")
    line.failures = [(OutcomeUnknown("the line was cut"), after)]
    with pytest.raises(OutcomeUnknown):
        stage.commit()
    assert stage.discard() == (0 if after else 1)
    stage.append(b"1")
    stage.commit()
    assert found(ms) == [*[b"0"] * after, b"1"]


def test_a_handle_leaves_nothing_behind(staged: Any) -> None:
    ms, _, make = staged
    for n in range(3):
        stage = make(section=2)
        for m in range(3):
            stage.append(b"%d" % (n + m))
        stage.close()
        stage.append(b"late")
        with pytest.raises(Locked):
            stage.commit()
    store = Probe(ms).store
    producers = store.look(
        lambda state, snapshot: state.find(b"\x01\x0d", b"\x01\x0e", snapshot, limit=9)
    )
    assert producers == []


def test_a_section_has_at_least_one_record(staged: Any) -> None:
    _, _, make = staged
    for section in (0, -1, 1.5, "2"):
        with pytest.raises(InvalidInput, match="section"):
            make(section=section)


def test_a_cancelled_append_is_stored_once_when_it_is_repeated() -> None:
    async def work() -> None:
        async with aio.Millstream(memory_session()) as ms:
            stage = await ms.log("x").stage(section=2)
            await stage.append(b"0")
            task = asyncio.ensure_future(stage.append(b"1"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await stage.append(b"1") == 1
            await stage.append(b"2")
            await stage.commit()
            assert [r.value async for r in ms.log("x").read()] == [b"0", b"1", b"2"]

    def memory_session() -> Any:
        from millstream.embedded.loop.session import AsyncEmbeddedSession

        return AsyncEmbeddedSession(Probe(memory_store()).store)

    asyncio.run(work())


def test_batches_stay_within_the_limits(staged: Callable[..., Any]) -> None:
    ms, line, make = staged  # type: ignore[misc]
    line.limits = Limits(batch_records_max=4, batch_bytes_max=400)
    stage = make(section=10**6)
    for n in range(10):
        stage.append(b"%d" % n)
    assert len(found(ms)) == 8
    for _ in range(4):
        stage.append(b"", key=b"k" * 150)
    assert ms.log("x").end_offset() == 14
