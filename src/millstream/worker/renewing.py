"""The thread on which a worker of threads prolongs its leases; `Leases` says which, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream.clock import Clock
from millstream.worker.effects import Renew
from millstream.worker.leases import Leases
from millstream.worker.supply import Supply


class Renewing:
    """Prolongs leases until it is closed. The lock guards the leases, for all who use them."""

    def __init__(
        self,
        queue: Supply,
        leases: Leases,
        *,
        lease_s: float,
        lock: threading.Lock,
        clock: Clock,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._queue = queue
        self._leases = leases
        self._lease_s = lease_s
        self._changed = threading.Condition(lock)
        self._clock = clock
        self._on_failure = on_failure
        self._sleeps_unlimited = False
        self._closed = False
        self._thread = threading.Thread(target=self._keep, name="millstream-leases", daemon=True)
        self._thread.start()

    def notice(self) -> None:
        """Leases are held now; under the lock. Only a thread without any to wait for is woken."""
        if self._sleeps_unlimited:
            self._sleeps_unlimited = False
            self._changed.notify()

    def close(self) -> None:
        """Prolong nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _keep(self) -> None:
        try:
            while (due := self._wait_for_due()) is not None:
                self._prolong(due)
        except Exception as error:
            self._on_failure(error)

    def _wait_for_due(self) -> Renew | None:
        """What is to be prolonged, once there is something; None when closed."""
        now_s = self._clock.seconds()
        with self._changed:
            while not self._closed:
                step = self._leases.next(now_s)
                if isinstance(step, Renew):
                    return step
                self._sleeps_unlimited = step.until_s is None
                if step.until_s is None:
                    self._changed.wait()
                    now_s = self._clock.seconds()
                elif self._changed.wait(step.until_s - now_s):
                    now_s = self._clock.seconds()
                else:
                    now_s = max(self._clock.seconds(), step.until_s)
        return None

    def _prolong(self, due: Renew) -> None:
        since_s = self._clock.seconds()
        try:
            self._queue.renew(due.messages, lease=self._lease_s)
        except Exception as error:
            with self._changed:
                if not self._leases.refused(due.messages, error, now_s=self._clock.seconds()):
                    raise
        else:
            with self._changed:
                self._leases.renewed(due.messages, since_s=since_s)
