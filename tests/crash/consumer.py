"""A consumer that is killed sooner or later; it tells what it claimed and what was acknowledged.

Started as a script with the path, its name and a seed. One line per fact, written before the next
step, so that a kill loses at most what had not happened.
"""

from __future__ import annotations

import random
import sys

import millstream
from millstream import Limits
from millstream.errors import LeaseLost

FOLDS_OFTEN = Limits(tail_deltas_max=40, fold_deltas_min=5, fold_slice_deltas=7)
LEASE_S = 0.3


def work(path: str, name: str, seed: int) -> None:
    """Claim, acknowledge, give back and fail, until killed."""
    chance = random.Random(f"{seed}.{name}")
    with millstream.open(path, limits=FOLDS_OFTEN) as ms:
        queue = ms.queue("jobs")
        held: list[millstream.Message] = []
        while True:
            try:
                found = queue.claim(
                    chance.randint(1, 9), lease=LEASE_S, wait=0.05, consumer=name, ack=held
                )
            except LeaseLost:
                held = []
                continue
            for message in held:
                print("acked", message.claim_id, message.attempt, message.text, flush=True)
            held = []
            if not found:
                print("idle", 0, 0, "-", flush=True)
            for message in found:
                print("held", message.claim_id, message.attempt, message.text, flush=True)
                if chance.random() < 0.1:
                    try:
                        queue.nack(message, delay=0)
                    except LeaseLost:
                        continue
                else:
                    held.append(message)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
