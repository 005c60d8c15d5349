"""The first signal requests a stop of all blocks, in whichever order they begin and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from millstream.worker.stop_signals import SIGNALS, stopped_by_signals


@pytest.fixture(autouse=True)
def usual() -> Iterator[list[int]]:
    """The signals that had their usual effect."""
    numbers: list[int] = []
    before = {number: signal.signal(number, lambda n, _: numbers.append(n)) for number in SIGNALS}
    yield numbers
    for number, action in before.items():
        signal.signal(number, action)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_stops_all_blocks_and_the_second_has_its_usual_effect(
    usual: list[int], number: signal.Signals
) -> None:
    stopped: list[str] = []
    with (
        stopped_by_signals(lambda: stopped.append("outer")),
        stopped_by_signals(lambda: stopped.append("inner")),
    ):
        signal.raise_signal(number)
        assert (stopped, usual) == (["outer", "inner"], [])
        signal.raise_signal(number)
    assert (stopped, usual) == (["outer", "inner"], [number])


def test_blocks_that_end_in_another_order_than_they_began_leave_no_handler(
    usual: list[int],
) -> None:
    stopped: list[str] = []
    first, second = ExitStack(), ExitStack()
    first.enter_context(stopped_by_signals(lambda: stopped.append("first")))
    second.enter_context(stopped_by_signals(lambda: stopped.append("second")))
    first.close()
    signal.raise_signal(signal.SIGINT)
    assert (stopped, usual) == (["second"], [])
    second.close()
    signal.raise_signal(signal.SIGINT)
    assert usual == [signal.SIGINT]


def test_a_block_that_begins_after_a_signal_is_stopped_by_the_next(usual: list[int]) -> None:
    stopped: list[str] = []
    with stopped_by_signals(lambda: stopped.append("outer")):
        signal.raise_signal(signal.SIGTERM)
        with stopped_by_signals(lambda: stopped.append("inner")):
            signal.raise_signal(signal.SIGTERM)
    assert (stopped, usual) == (["outer", "outer", "inner"], [])


def test_other_threads_leave_signals_alone(usual: list[int]) -> None:
    stopped: list[str] = []

    def work() -> None:
        with stopped_by_signals(lambda: stopped.append("other")):
            signal.raise_signal(signal.SIGTERM)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (stopped, usual) == ([], [signal.SIGTERM])
