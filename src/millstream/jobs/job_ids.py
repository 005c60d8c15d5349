"""Ids of jobs: the name of the queue, a hyphen, and the id that `put` returned."""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import InvalidInput
from millstream.log.model.names import check_name
from millstream.numbers import NUMBER_MAX


class JobPlace(NamedTuple):
    """The queue of a job, and the id of its message."""

    queue: str
    put_id: int


def job_id_of(queue: str, put_id: int) -> str:
    """Return the id of a job."""
    return f"{queue}-{put_id}"


def place_of_job(id: object) -> JobPlace:
    """Return the place that an id names."""
    queue, hyphen, number = id.rpartition("-") if isinstance(id, str) else ("", "", "")
    if not (hyphen and queue and number.isascii() and number.isdecimal()):
        raise InvalidInput(f"the id of a job is QUEUE-NUMBER, as in 'jobs-17', not {id!r:.100}")
    put_id = int(number[:40])
    if put_id > NUMBER_MAX:
        raise InvalidInput(f"the number in the id of a job is below 2^63, not {number[:40]}")
    return JobPlace(check_name(queue, "queue"), put_id)
