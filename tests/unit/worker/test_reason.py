"""What is kept of an error: what happened, and where, as far as it fits."""

from __future__ import annotations

from collections.abc import Callable

from millstream.queue.model.message import Reject, Retry
from millstream.queue.rules.endings import REASON_CHARS_MAX
from millstream.worker.reason import TEXT_CHARS_MAX, reason_of


def caught(raises: Callable[[], object]) -> Exception:
    try:
        raises()
    except Exception as error:
        return error
    raise AssertionError


def inner(depth: int = 0, text: str = "no") -> None:
    if depth:
        inner(depth - 1, text)
    raise ValueError(text)


def test_an_error_tells_where_it_was_raised_the_innermost_last() -> None:
    told, *frames = reason_of(caught(lambda: inner(1))).splitlines()
    assert told == "ValueError: no"
    assert [frame.rpartition(" in ")[2] for frame in frames] == [
        "caught",
        "<lambda>",
        "inner",
        "inner",
    ]
    assert all(frame.startswith('  File "') and "test_reason.py" in frame for frame in frames)


def test_a_decision_of_the_handler_tells_only_its_reason() -> None:
    def reject() -> None:
        raise Reject("never")

    def retry() -> None:
        raise Retry("later")

    assert reason_of(caught(reject)) == "never"
    assert reason_of(caught(retry)) == "later"


def test_the_outermost_frames_go_if_they_do_not_fit() -> None:
    told = reason_of(caught(lambda: inner(200, "x" * 2_000)))
    assert TEXT_CHARS_MAX < len(told) <= REASON_CHARS_MAX
    first, *frames = told.splitlines()
    assert first == ("ValueError: " + "x" * 2_000)[:TEXT_CHARS_MAX]
    assert frames
    assert all(frame.endswith(" in inner") for frame in frames)
