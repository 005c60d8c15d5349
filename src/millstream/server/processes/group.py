"""A group of server processes: one listening socket, one store, and a parent that keeps all running.

The parent opens the port and serves nothing itself. A connection waits in the port's backlog until a
process accepts it, so a process that is restarted refuses no connection. SO_REUSEPORT would give each
process a backlog of its own, and the connections in it would be lost with the process.

- A process that ends by itself is started again, after a delay that doubles while processes end
  before they serve.
- The first process starts alone. If it cannot serve, it prints the reason, and the group ends with
  its exit code.
- SIGTERM or Ctrl-C stops all processes, and a second signal kills them. SIGHUP restarts one process
  after the other; the next process is stopped once its predecessor serves again.
- A process whose parent has gone stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence

from millstream.server.processes.figures import SharedFigures, create_figures
from millstream.server.processes.place import READY, VARIABLE, ProcessPlace

_logger = logging.getLogger("millstream.server")

FIRST_DELAY_S = 0.1
DELAY_S_MAX = 10.0
START_S = 60.0
"""How long a restarted process may take to serve before a rolling restart is given up."""
KILL_S = 5.0
"""How much longer than `stop_s` a process may take to stop before it is killed."""


class ServerGroup:
    """Runs a number of server processes until a signal. Belongs to the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        listening: socket.socket,
        *,
        count: int,
        stop_s: float,
        on_ready: Callable[[], object],
    ) -> None:
        """`command` starts one process. `on_ready` is called once, when all processes serve."""
        self._command = command
        self._listening = listening
        self._count = count
        self._stop_s = stop_s
        self._on_ready = on_ready
        self._figures_fd = create_figures(count)
        self._figures = SharedFigures(self._figures_fd, count)
        self._processes: dict[int, Process] = {}
        self._serving = [asyncio.Event() for _ in range(count)]
        """For each process: set while the process serves."""
        self._planned: set[int] = set()
        """Processes that a rolling restart has stopped."""
        self._was_ready = False
        self._stopping = asyncio.Event()
        self._restart: asyncio.Task[None] | None = None
        self._code = 0

    def run(self) -> int:
        """Run until a signal; return the exit code of the program."""
        try:
            asyncio.run(self._run())
        finally:
            self._figures.close()
            os.close(self._figures_fd)
        return self._code

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._restart_all)
        try:
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(self._keep(1))
                await self._first_serves(first)  # a reason not to serve is printed once
                for position in range(2, self._count + 1):
                    tasks.create_task(self._keep(position))
        finally:
            for process in self._processes.values():  # only after a mistake of the group itself
                _signal(process, signal.SIGKILL)
        if self._restart is not None:
            await self._restart

    async def _first_serves(self, first: asyncio.Task[None]) -> None:
        """Wait until the first process serves, or has given up."""
        serving = asyncio.ensure_future(self._serving[0].wait())
        await asyncio.wait([first, serving], return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()

    # One process.

    async def _keep(self, number: int) -> None:
        """Run a process, again and again, until the group stops."""
        delay_s = FIRST_DELAY_S
        while not self._stopping.is_set():
            process, group_end = await self._start(number)
            try:
                has_served = await self._becomes_ready(number, group_end)
                code = await process.wait()
            finally:
                group_end.close()
                self._ended(number)
            if self._stopping.is_set():
                return
            if number in self._planned:
                self._planned.discard(number)
                continue
            if not has_served and not self._was_ready:
                self._give_up(code)
                return
            _logger.error("process_ended", extra={"number": number, "exit": _exit_text(code)})
            delay_s = FIRST_DELAY_S if has_served else min(2 * delay_s, DELAY_S_MAX)
            await _happens_within(self._stopping, delay_s)

    async def _start(self, number: int) -> tuple[Process, socket.socket]:
        """Start a process; return it with the group's end of the socket between both."""
        group_end, process_end = socket.socketpair()
        group_end.setblocking(False)
        with process_end:
            place = ProcessPlace(
                number=number,
                count=self._count,
                listening_fd=self._listening.fileno(),
                group_fd=process_end.fileno(),
                figures_fd=self._figures_fd,
            )
            variables = {**os.environ, VARIABLE: place.encoded()}
            variables.pop("NOTIFY_SOCKET", None)  # the group itself speaks to the service manager
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=variables,
                pass_fds=place.descriptors,
                process_group=0,  # Ctrl-C reaches the group, which stops its processes in order
            )
        self._processes[number] = process
        if self._stopping.is_set():
            _signal(process, signal.SIGTERM)
        return process, group_end

    async def _becomes_ready(self, number: int, group_end: socket.socket) -> bool:
        """Wait until a process serves; False if the process ends before."""
        try:
            answer = await asyncio.get_running_loop().sock_recv(group_end, len(READY))
        except OSError:
            return False
        if answer != READY:
            return False
        self._serving[number - 1].set()
        if not self._was_ready and all(event.is_set() for event in self._serving):
            self._was_ready = True
            self._on_ready()
        return True

    def _ended(self, number: int) -> None:
        del self._processes[number]
        self._serving[number - 1].clear()
        self._figures.clear(number)

    # All processes.

    def _give_up(self, code: int) -> None:
        """Stop all processes, because a process cannot serve."""
        self._code = code if code > 0 else 1
        self._stop()

    def _stop(self) -> None:
        """Stop all processes; a second call kills them."""
        is_second = self._stopping.is_set()
        self._stopping.set()
        for process in self._processes.values():
            _signal(process, signal.SIGKILL if is_second else signal.SIGTERM)
        if not is_second:
            loop = asyncio.get_running_loop()
            loop.call_later(self._stop_s + KILL_S, self._stop)

    def _restart_all(self) -> None:
        if self._was_ready and (self._restart is None or self._restart.done()):
            self._restart = asyncio.create_task(self._roll())

    async def _roll(self) -> None:
        """Restart one process after the other."""
        for number, serving in enumerate(self._serving, 1):
            if self._stopping.is_set():
                return
            process = self._processes.get(number)
            if process is not None and serving.is_set():
                self._planned.add(number)
                _signal(process, signal.SIGTERM)
                await self._ends(process)
            if not await self._serves(serving):
                return

    async def _ends(self, process: Process) -> None:
        try:
            async with asyncio.timeout(self._stop_s + KILL_S):
                await process.wait()
        except TimeoutError:
            _signal(process, signal.SIGKILL)
            await process.wait()

    async def _serves(self, serving: asyncio.Event) -> bool:
        """Wait until a process serves again; False if it takes too long, or the group stops."""
        while not self._stopping.is_set():
            if await _happens_within(serving, START_S):
                return True
            if not self._stopping.is_set():
                _logger.error("rolling_restart_given_up", extra={"seconds": START_S})
                return False
        return False


async def _happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False after the time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        pass  # it has ended


def _exit_text(code: int) -> str:
    """Return an exit code as text: a signal by its name."""
    return signal.Signals(-code).name if code < 0 else str(code)
