"""The inspection of a node's file when it starts: damage is found before the node may lead.

A node reads little of its file, so damage would go unnoticed until the node leads and others depend
on it. The inspection reads the complete file on a separate thread. The node does not wait without
end for a very large file: it may lead, and steps down if damage is found later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, cast

from millstream.clock import Clock
from millstream.engine.protocol import Engine
from millstream.errors import CorruptionError, MillstreamError

_logger = logging.getLogger("millstream.cluster")


class Verifiable(Protocol):
    """An engine whose rows can be verified completely."""

    def verify(self, stop: Callable[[], bool]) -> bool:
        """Read every row. Raises `CorruptionError` for damage. False if stopped."""


class Inspection:
    """Verifies all rows of an engine once, if the engine has a file."""

    def __init__(self, engine: Engine, *, clock: Clock, wait_s: float) -> None:
        """Prepare; `start` begins."""
        self.damage = ""
        """The damage; empty while no damage is known."""
        self._engine, self._clock, self._wait_s = engine, clock, wait_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._due_s = 0.0

    @property
    def is_awaited(self) -> bool:
        """Whether the inspection runs, and the node still waits for its result."""
        if self._thread is None or not self._thread.is_alive():
            return False
        return self._clock.seconds() < self._due_s

    def start(self) -> None:
        """Start the inspection."""
        if hasattr(self._engine, "verify"):
            self._due_s = self._clock.seconds() + self._wait_s
            self._thread = threading.Thread(
                target=self._run, name="millstream-inspection", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the inspection, and forget its result: the file is closed or exchanged."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._thread, self.damage = None, ""

    def _run(self) -> None:
        began_s = self._clock.seconds()
        try:
            is_whole = cast(Verifiable, self._engine).verify(self._stopping.is_set)
        except CorruptionError as error:
            self.damage = error.message
            _logger.warning("store_damaged", extra={"why": error.message})
        except MillstreamError as error:  # closed meanwhile, or busy
            _logger.warning("store_not_checked", extra={"why": error.message})
        else:
            if is_whole:
                took_s = round(self._clock.seconds() - began_s, 3)
                _logger.info("store_checked", extra={"seconds": took_s})
