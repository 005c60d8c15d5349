"""Models hold the background back where what they look at depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from millstream import Millstream
from millstream.testing import Probe


def at_rest(handles: Iterable[Millstream]) -> ExitStack:
    """A block in which nothing is committed but by its own calls, so that a peek routes all."""
    found = ExitStack()
    for handle in handles:
        found.enter_context(Probe(handle).pause_keeper())
    return found
