"""Messages to the service manager (systemd), as `sd_notify` sends them: READY, STOPPING, WATCHDOG.

A unit with `Type=notify` and `WatchdogSec=` restarts a worker that does not report in time. Without
a service manager every call does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """The socket of the service manager, found by the variables that it sets."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._address = variables.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # the abstract namespace of Linux
            self._address = "\0" + self._address[1:]
        pid = variables.get("WATCHDOG_PID", "")
        interval_us = variables.get("WATCHDOG_USEC", "")
        is_watched = interval_us.isdecimal() and pid in ("", str(os.getpid()))
        self.watchdog_s: float | None = int(interval_us) / 2_000_000 if is_watched else None
        """How often to report: half of the interval after which the service is restarted."""

    def notify(self, state: str) -> None:
        """Send a state, such as READY=1; a service manager that has gone is no error."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            try:
                sender.connect(self._address)
                sender.send(state.encode())
            except OSError:
                pass  # it is told again by the next message
