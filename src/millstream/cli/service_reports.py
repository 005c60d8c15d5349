"""Reports of a server to the service manager (systemd): it is ready, and it still works."""

from __future__ import annotations

import asyncio

from millstream.jobs.processes.service_manager import ServiceManager


class ServiceReports:
    """Reports from an event loop: a loop that hangs reports nothing, and the service is restarted."""

    def __init__(self, manager: ServiceManager | None = None) -> None:
        self._manager = ServiceManager() if manager is None else manager

    def begin(self) -> None:
        """Report that the server is ready, then report in time until the running loop ends."""
        self._manager.notify("READY=1")
        if self._manager.watchdog_s is not None:
            self._report(asyncio.get_running_loop(), self._manager.watchdog_s)

    def _report(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._manager.notify("WATCHDOG=1")
        loop.call_later(interval_s, self._report, loop, interval_s)
