"""The program `millstream`: an interrupt ends it quietly, also while its parts are imported.

It is a package of its own, since importing anything of `millstream` imports most of it.
"""

from __future__ import annotations

import os
import signal

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; until it is there, Ctrl-C ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
        from millstream.cli import main as run

        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        from millstream.cli import main as run
    try:
        run()
    except KeyboardInterrupt:  # before or after the command, which handles it
        raise SystemExit(EXIT_INTERRUPTED) from None
