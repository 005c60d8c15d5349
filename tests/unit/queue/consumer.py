"""One of several processes that work on one queue; reports what it had and when, as one JSON line.

Started as a script with the path, its name, a seed and when to stop. It sometimes gives a message
back, and sometimes leaves one until its lease ends, so that others must take over.
"""

from __future__ import annotations

import json
import random
import sys

import millstream
from millstream import Limits
from millstream.errors import LeaseLost

FOLDS_ALWAYS = Limits(
    inline_bytes_max=50, tail_deltas_max=12, fold_deltas_min=3, fold_slice_deltas=2
)
LEASE_S = 0.5


def work(path: str, name: str, seed: int, total: int) -> dict[str, list[object]]:
    chance = random.Random(f"{seed}.{name}")
    held: list[object] = []
    acked: list[object] = []
    with millstream.open(path, limits=FOLDS_ALWAYS, durability="relaxed") as ms:
        queue = ms.queue("jobs")
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            messages = queue.claim(chance.randint(1, 8), lease=LEASE_S, wait=0.05, consumer=name)
            info = queue.info()
            assert info is not None
            if info.done + info.failed == total:
                return {"held": held, "acked": acked}
            for message in messages:
                held.append([message.claim_id, message.attempt, message.text])
                luck = chance.random()
                try:
                    if luck < 0.1:
                        queue.nack(message, delay=0)
                    elif luck > 0.02 or message.attempt > 2:
                        queue.ack(message)
                        acked.append([message.claim_id, message.attempt, message.text])
                except LeaseLost:
                    continue  # worked too slowly: another has it now
    return {"held": held, "acked": acked}


if __name__ == "__main__":
    path, name, seed, total = sys.argv[1:]
    print(json.dumps(work(path, name, int(seed), int(total))))
