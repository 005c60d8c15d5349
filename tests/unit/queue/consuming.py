"""A process that consumes the queue `jobs` of a store, for tests that stop or kill it."""

from __future__ import annotations

import os
import sys
import threading

import millstream


def say(text: object) -> None:
    """Write one whole line to the process that started this one."""
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    place, mode, prefetch = sys.argv[1:]
    with (
        millstream.open(place) as ms,
        ms.queue("jobs").consumer(prefetch=int(prefetch)) as consumer,
    ):
        say("begun")
        for message in consumer:
            say(message.text)
            while mode == "slow" and not consumer.stopping:
                threading.Event().wait(0.001)
            consumer.ack(message)
    say(f"ended {consumer.stopping} {consumer.lost}")
