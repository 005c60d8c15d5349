"""One of several processes on one file: does its part, and reports it as one JSON line.

Started as a script with the path, the part's name and its arguments. It says "ready", waits for
a line on its standard input, and works; so that several begin at the same moment.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any

import millstream
from millstream import Limits, Millstream, Producer, SqliteOptions
from millstream.errors import EndMoved
from millstream.testing import Probe

FOLDS_ALWAYS = Limits(
    inline_bytes_max=300,
    tail_deltas_max=12,
    fold_deltas_min=3,
    fold_slice_deltas=2,
)
COPIES_OFTEN = SqliteOptions(wal_bytes_checkpoint=100_000, wal_bytes_reset=200_000)


def value(name: str, number: int) -> bytes:
    """A value that says whose it is, and shows damage."""
    content = f"{name}:{number}:".encode() + b"x" * (number % 5 * 150)
    return content + zlib.crc32(content).to_bytes(4, "big")


def mix(ms: Millstream, name: str, count: int, seed: int) -> dict[str, Any]:
    """Append, read, acknowledge on an own and on a shared cursor, fold, in random order."""
    chance = random.Random(f"{seed}.{name}")
    log = ms.log("events")
    own, shared = log.cursor(name), log.cursor("shared")
    appended: dict[int, list[int]] = {}
    acked, read = [], 0
    position, number = 0, 0
    while number < count:
        size = chance.choice((1, 1, 1, 3, 20))
        numbers = list(range(number, number + size))
        number += size
        offsets = log.append_many([value(name, one) for one in numbers])
        appended[offsets.start] = numbers
        if chance.random() < 0.3:
            shared.ack(list(offsets))
            acked += list(offsets)
        if chance.random() < 0.3:
            for record in log.read(position):
                assert record.offset == position, (record.offset, position)
                assert zlib.crc32(record.value[:-4]).to_bytes(4, "big") == record.value[-4:]
                position += 1
                read += 1
            own.ack_up_to(position)
        if chance.random() < 0.1:
            ms.fold()
    return {"appended": appended, "acked": acked, "position": position, "read": read}


def follow(ms: Millstream, total: int) -> dict[str, Any]:
    """Only read, as records come, until `total` have come."""
    log, seen = ms.log("events"), []
    for record in log.tail(0, timeout=60):
        seen.append(record.offset)
        if len(seen) == total:
            break
    held = len(Probe(ms).store.state.overlay)
    return {"in_order": seen == list(range(total)), "held": held}


def compete(ms: Millstream, name: str, until: int) -> dict[str, Any]:
    """Append only where the log still ends where it was seen to end."""
    log, won = ms.log("race"), []
    while (end := log.end_offset()) < until:
        try:
            offset = log.append(name, expect_end=end)
        except EndMoved as error:
            assert error.end > end  # noqa: PT017
            continue
        assert offset == end
        won.append(offset)
    return {"won": won}


def produce(ms: Millstream, count: int) -> dict[str, Any]:
    """Append under the same producer and sequences as everybody else."""
    log = ms.log("produced")
    offsets = [
        log.append(b"%d" % number, producer=Producer("p", number)) for number in range(count)
    ]
    return {"offsets": offsets}


def wait(ms: Millstream, log: str, offset: int) -> dict[str, Any]:
    """Wait for a record on a thread, and say when that thread has begun to wait."""
    came: list[bool] = []
    waiter = threading.Thread(target=lambda: came.append(ms.log(log).wait(offset, timeout=60)))
    waiter.start()
    probe = Probe(ms)
    while not (probe.waiting() and _sleeps(waiter)):
        pass
    print("waiting", flush=True)
    waiter.join()
    return {"came": came[0]}


def _sleeps(thread: threading.Thread) -> bool:
    """Whether a thread is inside a wait of the standard library."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename == threading.__file__


def leave(ms: Millstream, count: int) -> dict[str, Any]:
    """Append, and end without closing, while the keeper is at work."""
    return {"offsets": [ms.log("events").append(value("leaver", one)) for one in range(count)]}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    part.__name__: part for part in (mix, follow, compete, produce, wait, leave)
}


def main() -> None:
    """Play the part that the command line names."""
    path, part, *arguments = sys.argv[1:]
    early = os.environ.get("OPEN_EARLY", "1") == "1"
    ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN) if early else None
    print("ready", flush=True)
    sys.stdin.readline()
    ms = ms or millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
    report = PARTS[part](ms, *(int(a) if a.isdigit() else a for a in arguments))
    print(json.dumps(report), flush=True)
    if part != "leave":
        ms.close()


if __name__ == "__main__":
    main()
