"""A thousand devices feed one queue: each writes a log of its own, offline, and pushes when it can.

Each device has a store in a file of its own. `device/NAME` is its log, and it is the only one that
writes it. The hub gets copies, and one queue takes from all of them by the pattern `device/*`. Run it
twice: what was pushed before is not sent again.

    python examples/devices.py [DIRECTORY] [DEVICES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import millstream
from millstream import Message

READINGS = 3


def measure(directory: Path, name: str) -> Path:
    """What a device does, with or without a network: append to its own log."""
    path = directory / f"{name}.db"
    with millstream.open(path, durability="relaxed") as device:
        log = device.log(f"device/{name}")
        log.append_many(
            [{"device": name, "reading": log.end_offset() + n} for n in range(READINGS)]
        )
    return path


def push(path: Path, hub: millstream.Millstream) -> int:
    """What a device does once it has a network. `hub` might as well be a server's address."""
    with millstream.open(path, durability="relaxed") as device:
        return device.sync(hub, direction="push", logs="device/*").pushed


def work(hub: millstream.Millstream) -> int:
    """What the hub does: one queue over all devices, whichever there are."""
    readings = hub.create_queue("readings", sources=["device/*"], start="earliest")
    done: list[Message] = []
    total = 0
    while done := readings.claim(500, ack=done):
        total += len(done)
    return total


def main(directory: str, devices: int) -> None:
    """Let every device measure and push, then work on what came."""
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    with millstream.open(place / "hub.db") as hub:
        names = [f"{number:04}" for number in range(devices)]
        pushed = sum(push(measure(place, name), hub) for name in names)
        print(f"{devices} devices pushed {pushed} readings, the queue handled {work(hub)}")


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else "devices",
        int(sys.argv[2]) if len(sys.argv) > 2 else 1_000,
    )
