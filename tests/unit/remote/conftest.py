"""A server over a file, a proxy in front of it that can be broken, and calls that wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import MillstreamError
from millstream.server.settings import Settings
from tests.unit.aio.conftest import pytest_pyfunc_call as pytest_pyfunc_call
from tests.unit.remote.proxy import Proxy, proxied

if TYPE_CHECKING:
    from millstream.server.serving import Serving

SETTINGS = Settings(port=0, stop_s=1.0)
TOO_LONG_S = 30


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    from millstream.server.serving import running

    with running(tmp_path / "served.db", SETTINGS, durability="relaxed") as found:
        yield found


@pytest.fixture
def proxy(server: Serving) -> Iterator[Proxy]:
    with proxied(server.port) as found:
        yield found


class Call(threading.Thread):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._found: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._call()
        except (MillstreamError, RuntimeError) as error:
            self._found = error

    def result(self) -> Any:
        """What it answered, or the error that it ended with."""
        self.join(TOO_LONG_S)
        assert not self.is_alive(), "it still waits"
        return self._found


@pytest.fixture
def in_child() -> Callable[[Callable[[], str]], str]:
    """Runs something in a forked child, and gives its answer."""
    return _in_child


def _in_child(answer: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = answer()
        except BaseException as error:
            found = repr(error)
        os.write(writing, found.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found
