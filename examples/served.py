"""One server, and programs on other machines that work through it.

Start a server, put work from one terminal, and work on it from as many others as you like:

    millstream serve shared.db
    python examples/served.py put 20
    python examples/served.py work

A worker that is killed loses nothing: its messages come to another when their leases end. A server
that is started again is found again.
"""

from __future__ import annotations

import os
import sys

import millstream
from millstream import Message

SERVER = "http://127.0.0.1:8080"


def put(ms: millstream.Millstream, count: int) -> None:
    """Put numbered messages, in one commit."""
    ms.create_queue("shared", lease=10).put_many([{"number": n} for n in range(count)])
    print("put", count)


def work(ms: millstream.Millstream, *, drain: bool = False) -> None:
    """Handle messages until Ctrl-C, or until none is left."""

    def handle(message: Message) -> None:
        print("handled", message.json()["number"], flush=True)

    queue = ms.create_queue("shared", lease=10)
    stats = queue.worker(handle).run(drain=drain)
    print("done", stats.done)


def main(arguments: list[str]) -> None:
    """`put COUNT` or `work`; a token is taken from MILLSTREAM_TOKEN."""
    with millstream.open(os.environ.get("MILLSTREAM_URL", SERVER)) as ms:
        if arguments[:1] == ["put"]:
            put(ms, int(arguments[1]) if len(arguments) > 1 else 10)
        else:
            work(ms, drain=arguments[1:] == ["--drain"])


if __name__ == "__main__":
    main(sys.argv[1:])
