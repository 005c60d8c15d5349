"""Workers speak: how a handler failed is logged, with its traceback and without any payload."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Message, Millstream, Queue
from millstream.clock import SystemClock
from millstream.errors import InvalidInput
from millstream.queue.model.message import Reject, Retry
from millstream.testing import memory_store


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with memory_store(clock=SystemClock()) as store:
        yield store


@pytest.fixture
def jobs(ms: Millstream) -> Queue:
    return ms.queue("jobs", max_attempts=2, backoff=0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="millstream.worker")
    return caplog


def test_a_failed_handler_is_logged_with_its_traceback(
    jobs: Queue, log: pytest.LogCaptureFixture
) -> None:
    jobs.put("a payload of ours", key="a key of ours", headers={"kind": "a header of ours"})

    def deep_inside() -> None:
        raise ValueError("no luck")

    def handle(message: Message) -> None:
        deep_inside()

    jobs.worker(handle).run(drain=True)
    assert [(r.name, r.levelname) for r in log.records] == [("millstream.worker", "ERROR")] * 2
    assert log.messages == [
        f"handler_failed queue=jobs claim_id={r.claim_id} attempt={n}"
        for r in jobs.failed()
        for n in (1, 2)
    ]
    assert "in deep_inside" in log.text
    assert "ValueError: no luck" in log.text
    assert "of ours" not in log.text


@pytest.mark.parametrize(
    ("error", "words"), [(Reject("no"), "handler_rejected"), (Retry("later"), "handler_retried")]
)
def test_what_a_handler_decides_is_no_failure(
    jobs: Queue, log: pytest.LogCaptureFixture, error: Exception, words: str
) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise error

    jobs.worker(handle).run(drain=True)
    (record,) = log.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage().startswith(f"{words} queue=jobs claim_id=")


def test_a_handler_is_logged_also_if_the_hook_raises(
    jobs: Queue, log: pytest.LogCaptureFixture
) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        raise ValueError("no luck")

    def hook(*facts: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jobs.worker(handle, on_error=hook).run(drain=True)
    assert "ValueError: no luck" in log.text


def test_a_handler_with_a_wrong_number_of_parameters_is_refused(jobs: Queue) -> None:
    with pytest.raises(InvalidInput, match="takes 3 parameters"):
        jobs.worker(lambda message, tx, more: None)


def test_a_function_that_only_makes_a_coroutine_has_not_worked(jobs: Queue) -> None:
    jobs.put("work")

    async def work(message: Message) -> None: ...

    stats = jobs.worker(lambda message: work(message)).run(drain=True)
    assert (stats.done, stats.failed) == (0, 1)
    (failed,) = jobs.failed()
    assert "make the handler itself `async def`" in failed.reason
