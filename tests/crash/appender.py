"""The process that is killed: appends, acknowledges and folds, and says what it was told.

Each line that it writes is one JSON array. `["ack", …]` stands for something that the store has
acknowledged, `["try", …]` for a cursor move that it is about to ask for. Values are a function of
their tag, so that the parent can tell what must be there, byte for byte.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import zlib

import millstream
from millstream import Limits, Log, Millstream, SqliteOptions

THREADS = 3
LOG, OTHER = "events", "quiet"

FOLDS_ALWAYS = Limits(
    inline_bytes_max=300,
    tail_deltas_max=20,
    fold_deltas_min=4,
    fold_slice_deltas=3,
)
COPIES_OFTEN = SqliteOptions(wal_bytes_checkpoint=200_000, wal_bytes_reset=400_000)


def body(tag: str, index: int, count: int) -> bytes:
    """The value of record `index` of the append `tag` of `count` records."""
    head = f"{tag}/{index}/{count}/".encode()
    chance = random.Random(head)
    size = chance.choice((0, 1, 20, 250, 400, 3_000, 40_000 if count == 1 else 60))
    content = head + chance.randbytes(size)
    return content + zlib.crc32(content).to_bytes(4, "big")


def parse(value: bytes) -> tuple[str, int, int]:
    """Tag, index and count of a value; raises if it is not whole."""
    tag, index, count, _ = value.split(b"/", 3)
    found = tag.decode(), int(index), int(count)
    if body(*found) != value:
        raise ValueError(f"the value of {found} is not what was appended")
    return found


def say(*words: object) -> None:
    """One line, in one write: lines of several threads do not mix."""
    os.write(1, json.dumps(words).encode() + b"\n")


def append(log: Log, tag: str, chance: random.Random) -> int:
    """One append, single or batch, and the report of it; answers the log's end then."""
    count = chance.choice((1, 1, 1, 2, 7, 200))
    values = [body(tag, index, count) for index in range(count)]
    if count == 1:
        first = log.append(values[0])
    else:
        first = log.append_many(values).start
    say("ack", "append", tag, count, first)
    return first + count


def run(ms: Millstream, name: str, seed: int) -> None:
    """Append and acknowledge until killed."""
    chance = random.Random(f"{seed}.{name}")
    log = ms.log(LOG)
    cursor = log.cursor(name.split(".")[1])
    number = 0
    while True:
        number += 1
        end = append(log, f"{name}.{number}", chance)
        if chance.random() < 0.4:
            offset = chance.randrange(max(0, end - 50), end)
            say("try", "cursor", cursor.name, offset)
            cursor.ack(offset)
            say("ack", "cursor", cursor.name, offset)
        if chance.random() < 0.05:
            ms.fold()
        if chance.random() < 0.1:
            with ms.transaction() as tx:
                first = tx.append(LOG, body(f"{name}.{number}.t", 0, 1))
                second = tx.append(OTHER, body(f"{name}.{number}.q", 0, 1))
            say("ack", "both", f"{name}.{number}", first.result, second.result)


def main(path: str, seed: int, number: int) -> None:
    """Open, say so, and go on until killed."""
    ms = millstream.open(path, limits=FOLDS_ALWAYS, options=COPIES_OFTEN)
    say("ready")
    for thread in range(1, THREADS):
        threading.Thread(target=run, args=(ms, f"{number}.{thread}", seed), daemon=True).start()
    run(ms, f"{number}.0", seed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
