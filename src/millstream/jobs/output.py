"""The output of a job: a log with a record for each chunk, and a record that ends it."""

from __future__ import annotations

from typing import Any

from millstream.format.packing import pack_single
from millstream.jobs.chores import delete_later, make_chores
from millstream.limits import Limits
from millstream.log.commands import Append

OUTPUT = "jobs.output."
"""The beginning of the names of the logs."""

ATTEMPT_HEADER = "job-attempt"
END_HEADER = "job-end"
"""The header of the last record: how the job ended. The record has no value."""


def output_of(job_id: str) -> str:
    """Return the name of the log of a job."""
    return f"{OUTPUT}{job_id}"


def append_chunk(job_id: str, attempt: int, chunk: Any, limits: Limits) -> Append:
    """Return the command that adds a chunk: bytes, text, or what JSON can express."""
    record = pack_single(
        chunk, key=None, headers={ATTEMPT_HEADER: attempt}, timestamp=None, limits=limits
    )
    return Append(output_of(job_id), record)


def close_output(job_id: str, how: str, keep_s: float, limits: Limits) -> list[Any]:
    """Return the steps that end the output, and delete it after a time."""
    log = output_of(job_id)
    end = pack_single(b"", key=None, headers={END_HEADER: how}, timestamp=None, limits=limits)
    return [Append(log, end), make_chores(), delete_later(log, keep_s, limits)]
