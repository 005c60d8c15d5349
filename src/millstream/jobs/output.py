"""The output of a job: a log with a record for each chunk, and a record that ends it."""

from __future__ import annotations

from typing import Any

from millstream.command import Transact
from millstream.format.packing import pack_single
from millstream.jobs.chores import ExpireOutput, do_later, make_chores
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


def begin_output(first_chunk: Append, job_id: str, keep_s: float, limits: Limits) -> Transact:
    """Return the command that adds the first chunk of an attempt, and deletes the output later.

    The chore is stored with the first chunk, because the worker may die before the end of the job.
    """
    expire = do_later(ExpireOutput(job_id, keep_s), keep_s, limits)
    return Transact([first_chunk, make_chores(), expire])


def append_chunk(job_id: str, attempt: int, chunk: Any, limits: Limits) -> Append:
    """Return the command that adds a chunk: bytes, text, or what JSON can express."""
    record = pack_single(
        chunk, key=None, headers={ATTEMPT_HEADER: attempt}, timestamp=None, limits=limits
    )
    return Append(output_of(job_id), record)


def close_output(job_id: str, how: str, limits: Limits) -> list[Any]:
    """Return the step that ends the output."""
    end = pack_single(b"", key=None, headers={END_HEADER: how}, timestamp=None, limits=limits)
    return [Append(output_of(job_id), end)]
