"""A store fills its small disk: a program, because only its own processes see the disk.

`python -m tests.integration.small_disk FOLDER`, where FOLDER is a disk of its own. The background
rests, so the write-ahead log holds all that is not in the file when the disk is full: the most that
a checkpoint can need.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import millstream
from millstream.doctor import examine
from millstream.errors import DiskFull
from millstream.testing import Probe


def fill(log: millstream.Log) -> int:
    """Append until the disk is full; how many records are stored."""
    while True:
        try:
            log.append_many([os.urandom(1_000) for _ in range(200)])
        except DiskFull:
            return log.end_offset()


def fill_singly(log: millstream.Log) -> None:
    """Hand in records until the producer ends: stored records are in front, and no others exist."""
    handles = []
    producer = log.producer(retry_for=0, in_flight=200)
    try:
        while True:
            handles.append(producer.append(os.urandom(1_000)))
    except DiskFull:
        pass
    errors = []
    for at, handle in enumerate(handles):
        try:
            assert handle.offset() == at
        except DiskFull as error:
            errors.append(error)
    assert errors
    assert log.end_offset() == len(handles) - len(errors)


def main(file: Path) -> None:
    """Fill the disk, and do all that must work then."""
    with millstream.open(file) as ms:
        Probe(ms).pause_keeper()
        jobs, log = ms.create_queue("jobs"), ms.log("a")
        jobs.put(b"work")
        stored = fill(log)
        assert sum(1 for _ in log.read()) == stored
        Probe(ms).store.engine.checkpoint(nullcontext())
        jobs.ack(jobs.claim(1))
        log.truncate(before=stored)
        Probe(ms).upkeep()
        Probe(ms).store.engine.upkeep(nullcontext())
        fill_singly(ms.log("b"))
        with jobs.consumer(timeout=0) as consumer:
            assert list(consumer) == []
        ms.log("b").truncate(before=ms.log("b").end_offset())
        Probe(ms).upkeep()
        Probe(ms).store.engine.upkeep(nullcontext())
        assert fill(log) > stored
        log.truncate(before=log.end_offset())
    assert examine(file).healthy
    print(stored)


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "store.db")
