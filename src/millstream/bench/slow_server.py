"""A server on a simulated slow disk: `python -m millstream.bench.slow_server`.

It prints its address as `millstream serve --json` does, and ends on a signal.
"""

from __future__ import annotations

import sys
from functools import partial

import msgspec

from millstream.bench.disk import open_slow_engine
from millstream.server.serving import Serving
from millstream.server.settings import Settings


def main(path: str, sync_delay_ms: str) -> None:
    """Serve a file whose every sync takes so much longer, until a signal."""
    slow = partial(open_slow_engine, path, sync_delay_s=float(sync_delay_ms) / 1000)
    serving = Serving(path, Settings(port=0), make_engine=slow)

    def say() -> None:
        sys.stdout.write(msgspec.json.encode({"rest": serving.url}).decode() + "\n")
        sys.stdout.flush()

    serving.run(on_ready=say, with_signals=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
