"""A worker: messages that succeed, that are tried again, and that can never succeed.

Stop it with Ctrl-C at any moment: what runs is finished, and the rest is there at the next start.

    python examples/worker.py [STORE]
"""

from __future__ import annotations

import logging
import sys

import millstream
from millstream import Message, Reject, Retry

PICTURES = ["cat.png", "dog.png", "notes.txt", "slow.png"]


def resize(message: Message) -> None:
    """Handle one picture. What it raises decides what becomes of the message."""
    name = message.text
    if not name.endswith(".png"):
        raise Reject(f"{name} is no picture")  # failed at once: no attempt could help
    if name.startswith("slow") and message.attempt == 1:
        raise Retry("the disk is busy", after=0.1)  # tried again after that time
    print("resized", name, "at attempt", message.attempt)


def main(path: str) -> None:
    """Put four pictures, and work until none is left."""
    logging.basicConfig(level=logging.ERROR)  # a handler that fails is logged with its traceback
    with millstream.open(path) as ms:
        pictures = ms.create_queue("pictures", lease=30, max_attempts=3)
        pictures.put_many(PICTURES)
        stats = pictures.worker(resize).run(drain=True)
        print(f"{stats.done} done, {stats.retried} tried again, {stats.failed} failed")
        for message in pictures.failed():
            print("failed:", message.text, "because", message.reason)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pictures.db")
