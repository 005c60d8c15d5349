"""`millstream serve` as a process of its own, for tests and measurements that kill it.

with served("s3://trial/shop") as first, served("s3://trial/shop", "--standby") as second:
    second.await_said("waiting")
    first.kill()
    second.url()  # it has taken over
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec


class ServerProgram:
    """A server process; threads read its output all the time, so it never blocks on a full pipe."""

    def __init__(
        self,
        place: str,
        *options: str,
        on_serving: Callable[[ServerProgram], None] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "millstream", "--store", place, "serve", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        """The lines of its standard error."""
        self._on_serving = on_serving
        self._url = ""
        self._changed = threading.Condition()
        self._open = 2
        """How many of its two outputs may still say something."""
        reads = (self._read_address, self._read_notes)
        self._readers = [threading.Thread(target=read, daemon=True) for read in reads]
        for reader in self._readers:
            reader.start()

    def url(self) -> str:
        """Return the address when the server is ready; `RuntimeError` if the process ends first."""
        with self._changed:
            self._changed.wait_for(lambda: self._url or not self._open)
            if not self._url:
                raise RuntimeError(f"the server ended instead of serving: {''.join(self.said)}")
            return self._url

    def await_said(self, text: str) -> None:
        """Wait for a line on standard error; `RuntimeError` if the process ends first."""
        with self._changed:
            is_printed = self._changed.wait_for(
                lambda: any(text in line for line in self.said) or not self._open
            )
            if not is_printed or not any(text in line for line in self.said):
                raise RuntimeError(f"the server never said {text!r}: {''.join(self.said)}")

    def kill(self) -> None:
        """End it as a crash does, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()

    def _read_address(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            line = output.readline()
            self._note_address(line)
            output.read()

    def _note_address(self, line: str) -> None:
        with self._changed:
            self._url = str(msgspec.json.decode(line)["rest"]) if line else ""
            self._open -= 1
            self._changed.notify_all()
        if line and self._on_serving is not None:
            self._on_serving(self)

    def _read_notes(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as output:
            for line in output:
                with self._changed:
                    self.said.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()


@contextmanager
def served(
    place: str, *options: str, on_serving: Callable[[ServerProgram], None] | None = None
) -> Iterator[ServerProgram]:
    """A server of a store, killed when the block ends."""
    program = ServerProgram(place, *options, on_serving=on_serving)
    try:
        yield program
    finally:
        program.kill()
