"""Workers speak: how a handler failed is logged, with its traceback and without any payload."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from millstream import Message, Reject, Retry
from millstream.errors import InvalidInput


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="millstream.worker")
    return caplog


def test_a_failed_handler_is_logged_with_its_traceback(
    jobs: Any, log: pytest.LogCaptureFixture
) -> None:
    jobs.put("a payload of ours", key="a key of ours", headers={"kind": "a header of ours"})

    def deep_inside() -> None:
        raise ValueError("no luck")

    def handle(message: Message) -> None:
        deep_inside()

    jobs.worker(handle).run(drain=True)
    assert [(r.name, r.levelname) for r in log.records] == [("millstream.worker", "ERROR")] * 3
    (failed,) = jobs.failed()
    where = f"handler_failed queue=jobs claim_id={failed.claim_id}"
    assert log.messages == [
        f"{where} attempt=1 next=retry_after_backoff",
        f"{where} attempt=2 next=retry_after_backoff",
        f"{where} attempt=3 next=failed",
    ]
    assert "in deep_inside" in log.text
    assert "ValueError: no luck" in log.text
    assert "of ours" not in log.text


@pytest.mark.parametrize(
    ("error", "words", "then"),
    [
        (Reject("no"), "handler_rejected", "failed"),
        (Retry("later"), "handler_retried", "retry_after_backoff"),
        (Retry("later", after=0.001), "handler_retried", "retry_after_0.001s"),
    ],
)
def test_what_a_handler_decides_is_no_failure(
    jobs: Any, log: pytest.LogCaptureFixture, error: Exception, words: str, then: str
) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise error

    jobs.worker(handle).run(drain=True)
    (record,) = log.records
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage().startswith(f"{words} queue=jobs claim_id=")
    assert record.getMessage().endswith(f" attempt=1 next={then}")


def test_a_thread_over_its_time_is_said_to_come_back_with_its_lease(
    jobs: Any, log: pytest.LogCaptureFixture
) -> None:
    jobs.alter(max_attempts=100)  # of which a slow machine may need more than two
    jobs.put("stuck")
    release = threading.Event()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            release.wait(60)

    jobs.worker(handle, lease=0.6, time_limit=0.3).run(drain=True)
    release.set()
    record, *_ = log.records
    assert record.getMessage().endswith(" attempt=1 next=back_when_lease_ends")


def test_a_handler_is_logged_also_if_the_hook_raises(
    jobs: Any, log: pytest.LogCaptureFixture
) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        raise ValueError("no luck")

    def hook(*facts: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jobs.worker(handle, on_error=hook).run(drain=True)
    assert "ValueError: no luck" in log.text


def test_a_handler_with_a_wrong_number_of_parameters_is_refused(jobs: Any) -> None:
    with pytest.raises(InvalidInput, match="takes 3 parameters"):
        jobs.worker(lambda message, tx, more: None)


def test_a_function_that_only_makes_a_coroutine_has_not_worked(jobs: Any) -> None:
    jobs.put("work")

    async def work(message: Message) -> None: ...

    stats = jobs.worker(lambda message: work(message)).run(drain=True)
    assert (stats.done, stats.failed) == (0, 1)
    (failed,) = jobs.failed()
    assert "make the handler itself `async def`" in failed.reason
