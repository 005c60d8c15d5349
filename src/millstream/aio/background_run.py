"""A run beside its caller: how a worker of messages and a worker of jobs start and end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from millstream.aio.worker_runtime import SideCall
from millstream.errors import InvalidInput
from millstream.numbers import checked_numbers
from millstream.record import Seconds, to_ms


@checked_numbers
class BackgroundRun(ABC):
    """A run that `start` begins once, and `join` waits for; a `with` block does both."""

    _name: ClassVar[str]
    """The name of the thread, or of the task."""

    def __init__(self) -> None:
        self._started: SideCall | None = None

    @abstractmethod
    async def run(self, *, drain: bool = False) -> Any:
        """Work until `stop`; with `drain` until nothing is left to do."""

    @abstractmethod
    def stop(self) -> None:
        """Begin nothing more. Does not wait: see `join`."""

    def start(self, *, drain: bool = False) -> Self:
        """Run concurrently with the caller."""
        if self._started is not None:
            raise InvalidInput("a worker runs once; make another")
        self._started = SideCall(partial(self.run, drain=drain), name=self._name)
        return self

    async def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until a started worker has ended, and raise what ended it; False if it still runs."""
        if self._started is None:
            return True
        if not await self._started.ends(None if timeout is None else to_ms(timeout) / 1000):
            return False
        error = self._started.take_error()
        if error is not None:
            raise error
        return True

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._started is not None:
            await self._started.wind_up(error)
        await self.join()
