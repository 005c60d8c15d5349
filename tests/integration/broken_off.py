"""Runs `millstream` until it has made or deleted a number of streams, and kills itself then."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable

from millstream.cli import main
from millstream.cluster.nats.jetstream import JetStreamLog


def break_off_after(changes: int) -> None:
    """Let this process be killed once it has made or deleted so many streams; if 0, before the first."""
    made = itertools.count(1)

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def called(*arguments: object, **options: object) -> None:
            if changes:
                change(*arguments, **options)
            if not changes or next(made) == changes:
                os.kill(os.getpid(), signal.SIGKILL)

        return called

    JetStreamLog.found = counted(JetStreamLog.found)  # type: ignore[method-assign]
    JetStreamLog.drop = counted(JetStreamLog.drop)  # type: ignore[method-assign]


if __name__ == "__main__":
    break_off_after(int(sys.argv.pop(1)))
    main()
