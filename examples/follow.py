"""Follow a log that another process writes: run it twice, in two terminals.

python examples/follow.py write
python examples/follow.py
"""

from __future__ import annotations

import sys
from itertools import count
from time import sleep

import millstream

STORE = "follow.db"


def write(records_max: int | None = None) -> None:
    """Append a record every half second."""
    with millstream.open(STORE) as ms:
        for number in count() if records_max is None else range(records_max):
            print("wrote", ms.log("ticks").append({"tick": number}))
            sleep(0.5 if records_max is None else 0)


def follow(idle_s: float | None = None) -> None:
    """Print every record from the start, then each as it arrives."""
    with millstream.open(STORE) as ms:
        for record in ms.log("ticks").tail(0, timeout=idle_s):
            print(record.offset, record.json())


if __name__ == "__main__":
    try:
        write() if sys.argv[1:] == ["write"] else follow()
    except KeyboardInterrupt:
        pass
