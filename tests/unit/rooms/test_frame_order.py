"""Frames of one connection: none is stored behind one that may not be."""

from __future__ import annotations

import pytest

from millstream.errors import OutOfSequence
from millstream.rooms import frame_order
from millstream.rooms.frame_order import LastTurns, Turn


def test_a_frame_that_follows_no_other_always_runs() -> None:
    found = LastTurns()
    for number in (1, 7, 3):
        found.take(Turn("one", number, follows=False), 0)


def test_frames_run_one_behind_the_other_each_connection_by_itself() -> None:
    found = LastTurns()
    for connection in ("one", "two"):
        found.take(Turn(connection, 1, follows=False), 0)
    for connection in ("two", "one"):
        found.take(Turn(connection, 2, follows=True), 0)


@pytest.mark.parametrize(
    ("number", "failures"),
    [(2, 1), (3, 0), (1, 0)],
    ids=["a commit has failed since", "one did not run", "it ran already"],
)
def test_a_frame_behind_one_that_may_not_be_stored_is_refused(number: int, failures: int) -> None:
    found = LastTurns()
    found.take(Turn("one", 1, follows=False), 0)
    with pytest.raises(OutOfSequence, match="sent before"):
        found.take(Turn("one", number, follows=True), failures)
    with pytest.raises(OutOfSequence):  # and so is what follows it
        found.take(Turn("one", number + 1, follows=True), failures)
    found.take(Turn("one", number + 2, follows=False), failures)


def test_a_connection_that_was_forgotten_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_order, "CONNECTIONS_MAX", 2)
    found = LastTurns()
    for connection in ("one", "two", "three"):
        found.take(Turn(connection, 1, follows=False), 0)
    for connection in ("two", "three"):
        found.take(Turn(connection, 2, follows=True), 0)
    with pytest.raises(OutOfSequence):
        found.take(Turn("one", 2, follows=True), 0)
